"""`manage.py allow_expiry registrations`: allow the registrations that the indicator counts to expire at once."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from kit.db.clock import database_now
from kit.expiry.models import allow


class Command(BaseCommand):
    """Allow an expiry that waits for an operator. The permission lasts a day."""

    help = "let registrations or devices expire although they are more than a tenth of all (see the indicator first)"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", choices=["registrations", "devices"])

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002 - the signature of a command
        """Print the number of expiring rows. Raises CommandError if no expiry waits."""
        found = allow(options["name"], now=database_now())
        if found is None:
            raise CommandError(f"No {options['name']} wait for this permission.")
        self.stdout.write(f"{found.count:,} of {found.total:,} {found.name} expire with the next run, within hours.")
