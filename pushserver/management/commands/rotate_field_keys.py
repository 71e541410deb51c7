"""Command `manage.py rotate_field_keys`, which re-encrypts stored values with the first of FIELD_ENCRYPTION_KEYS.

How to change a key while the server runs:
1. Add the new key at the end of FIELD_ENCRYPTION_KEYS and restart every process. Now all of them can read it.
2. Move it to the front and restart every process. Now all of them write it.
3. Run this command. It can be stopped and repeated at any time.
4. Remove the old key when this command reports that nothing needs it any more.

A digest of a registration's content cannot be computed again, because the content is not stored. It identifies repeated
registrations, and gets the new key with the client's next registration. Removing an old key too early loses no data,
but a client whose last reply was lost is then refused until it registers with a new version.
"""

from typing import Any

from django.core.management.base import BaseCommand

from pushserver.console.registrations.rotation import COLUMNS, Column, rotate, still_needing_old_keys
from registrations.encryption import keyring

# Each pass finds the rows that other sessions had locked during the last pass.
MAX_PASSES = 10


class Command(BaseCommand):
    help = (
        "Re-encrypt all stored values with the first key of FIELD_ENCRYPTION_KEYS. It is safe while the server runs, "
        "if every process has the key. Before: add it at the end, restart every process, move it to the front, restart "
        "every process."
    )

    def handle(self, *_args: Any, **_options: Any) -> None:
        for column in COLUMNS:
            self._rotate(column)
        remaining = still_needing_old_keys(keyring())
        for name, number in remaining.items():
            self.stdout.write(f"{number} {name} still need an old key.")
        self.stdout.write(
            "Keep the old keys listed. Content digests change with the next registration of each client."
            if remaining
            else "Nothing needs an old key any more. The old keys can be removed."
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
