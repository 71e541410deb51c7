"""`manage.py allow_expiry registrations`: let the number of registrations that the indicator names end at once."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from kit.db.clock import database_now
from kit.expiry.asking import allow, waiting


class Command(BaseCommand):
    """Let end what waits for somebody, for a day."""

    help = "let registrations or devices expire although they are more than a tenth of all: see the indicator first"

    def add_arguments(self, parser: CommandParser) -> None:
        """Take what may expire."""
        parser.add_argument("name", choices=["registrations", "devices"])

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002 - the signature of a command
        """Say how many that are. Raises CommandError when nothing waits."""
        found = next((each for each in waiting() if each.name == options["name"]), None)
        if found is None or not allow(options["name"], now=database_now()):
            raise CommandError(f"No {options['name']} wait for that.")
        self.stdout.write(f"{found.count:,} of {found.total:,} {found.name} expire with the next run, within hours.")
