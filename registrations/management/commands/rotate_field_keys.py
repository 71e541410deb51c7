"""`manage.py rotate_field_keys`: once a new key is the first of FIELD_ENCRYPTION_KEYS, use it for what is stored.

How to change a key while the server runs:
1. Add the new key at the end of FIELD_ENCRYPTION_KEYS and restart every process: now all of them can read it.
2. Move it to the front and restart every process: now all of them write it.
3. Run this command. It can be stopped, and run again, at any time.
4. Remove the old key once this command says that nothing needs it any more.

Digests of a registration's content cannot be made anew, because the content is not stored. They recognise a repeated
registration, and change to the new key with the client's next one. An old key removed too early loses no data, but a
client whose last reply got lost is then refused until it registers with a new version.
"""

from typing import Any

from django.core.management.base import BaseCommand

from registrations.keys.keyring import keyring
from registrations.upkeep.rotation import COLUMNS, Column, rotate, still_needing_old_keys

# Each pass finds the rows that were in use during the pass before.
MAX_PASSES = 10


class Command(BaseCommand):
    help = (
        "Re-encrypt what is stored with the first key of FIELD_ENCRYPTION_KEYS. Safe while the server runs, once every "
        "process knows that key: add it at the end, restart every process, move it to the front, restart every process."
    )

    def handle(self, *_args: Any, **_options: Any) -> None:
        for column in COLUMNS:
            self._rotate(column)
        remaining = still_needing_old_keys(keyring())
        for name, number in remaining.items():
            self.stdout.write(f"{number} {name} still need an old key.")
        self.stdout.write(
            "Keep the old keys listed. Content digests change with each client's next registration."
            if remaining
            else "Nothing needs an old key any more: they can be removed."
        )

    def _rotate(self, column: Column) -> None:
        changed = unreadable = 0
        for _ in range(MAX_PASSES):
            changed_before = changed
            unreadable = 0
            for batch in rotate(column, keyring()):
                changed += batch.changed
                unreadable += batch.unreadable
                self._show(f"{column.purpose}: {changed}", ending="\r")
            if changed == changed_before:
                break
        self._show(f"{column.purpose}: {changed} re-encrypted", ending="\n")
        if unreadable:
            self.stderr.write(f"{column.purpose}: {unreadable} cannot be read with any listed key.")

    def _show(self, text: str, *, ending: str) -> None:
        self.stdout.write(text, ending=ending)
