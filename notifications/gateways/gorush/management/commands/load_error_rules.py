"""`manage.py load_error_rules`: bring the error rules in line with `error_rules.yaml`.

It is for use after a change of the file. `manage.py migrate` does the same, so an upgrade needs no step of its own. It
adds what is new, refreshes what still follows the file, and removes what left it. What operators added, changed or
switched off in the console stays as it is.
"""

from typing import Any

from django.core.management.base import BaseCommand

from notifications.gateways.gorush.rules.table import load_seed


class Command(BaseCommand):
    help = "Bring the table of gateway errors in line with the file. Changes of operators stay. Safe at any time."

    def handle(self, *_args: Any, **_options: Any) -> None:
        loaded = load_seed()
        self.stdout.write(
            f"{loaded.added} added, {loaded.refreshed} refreshed, {loaded.removed} removed, "
            f"{loaded.kept} left as operators changed them."
        )
