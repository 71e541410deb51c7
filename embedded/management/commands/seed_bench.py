"""`manage.py seed_bench`: fill a database with a month of traffic, for benchmarks and for trying the console."""

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from embedded import seeding


class Command(BaseCommand):
    help = (
        "Fill an empty database with made-up registrations, notifications and attempts, in minutes. For development: "
        "refuses a database that holds anything, and a server that has a gorush of its own."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--registrations", type=int, default=1_000_000)
        parser.add_argument("--attempts", type=int, default=10_000_000, help="at least this number")

    def handle(self, *_args: Any, registrations: int, attempts: int, **_options: Any) -> None:
        if min(registrations, attempts) < 1000:
            raise CommandError("At least 1000 of each.")
        if set(settings.GORUSH_URLS) - {settings.EMBEDDED.get("GORUSH_URL")}:
            raise CommandError("GORUSH_URL is set: it would get the made-up notifications.")
        try:
            seeding.fill(registrations, attempts, self.stdout.write)
        except seeding.NotEmptyError as error:
            raise CommandError(f"Nothing was done: the database is not empty. {error}") from error
        seeding.settle()
