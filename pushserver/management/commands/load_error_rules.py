"""`manage.py load_error_rules`: update the table of error rules from `error_rules.yaml`.

It is for use after a change of the file. `manage.py migrate` does the same, so an upgrade needs no step of its own. The
command adds new rules, refreshes unchanged ones, and removes those that the file no longer has. Rules that operators
added, changed or switched off in the console stay as they are.
"""

from typing import Any

from django.core.management.base import BaseCommand

from pushserver.console.gorush.loading import load_seed


class Command(BaseCommand):
    help = "Update the table of error rules from the file. Changes of operators stay. It is safe to run at any time."

    def handle(self, *_args: Any, **_options: Any) -> None:
        loaded = load_seed()
        self.stdout.write(
            f"{loaded.added} added, {loaded.refreshed} refreshed, {loaded.removed} removed, "
            f"{loaded.kept} left as operators changed them."
        )
