"""`manage.py import_status_go FILE`: import the registrations of a push server of status-go (docs/migration.md)."""

import sqlite3
from argparse import ArgumentParser
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from kit.db.clock import database_now
from pushserver.console.waku import sqlcipher
from pushserver.console.waku.moving import NotStatusGoError, carry_over, is_carried_over, read
from waku_bridge.codec.keys import chat_key
from waku_bridge.query_topics import server_identities, server_identity


class Command(BaseCommand):
    """Read the whole database, write all rows in one transaction, and show how many were not imported."""

    help = "import the registrations of a push server of status-go, so that phones need not register again"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path, help="its database, copied while it was stopped: SQLCipher or SQLite")
        parser.add_argument("--password-file", type=Path, help="a file with the password of an SQLCipher database")
        parser.add_argument("--iterations", type=int, default=sqlcipher.ITERATIONS, help="of the key's derivation")
        parser.add_argument(
            "--server-key",
            default=chat_key(server_identity().pub33),
            help="the public key of that server, which this server must have (see server_keys); default: the first",
        )
        parser.add_argument("--dry-run", action="store_true", help="show the result, and write nothing")

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002 - the signature of a command
        """Import the file. A file that is damaged or of another kind ends in one sentence, and nothing is written."""
        identities = {chat_key(identity.pub33): identity.pub33 for identity in server_identities()}
        if (server_public_key := identities.get(options["server_key"])) is None:
            raise CommandError(
                "--server-key is none of this server's keys: see server_keys, or set OTHER_SERVER_PRIVATE_KEYS."
            )
        try:
            database = _open(options["file"], options["password_file"], options["iterations"])
            with closing(database), transaction.atomic():
                ends = carry_over(read(database), server_public_key=server_public_key, now=database_now())
                transaction.set_rollback(options["dry_run"])
        except (OSError, sqlite3.Error, sqlcipher.NotReadableError, NotStatusGoError) as error:
            raise CommandError(f"Nothing was imported from {options['file']}: {error}.") from error
        self._print(ends, is_dry_run=options["dry_run"])

    def _print(self, ends: Counter[str], *, is_dry_run: bool) -> None:
        for end, count in ends.most_common():
            note = "" if is_carried_over(end) else "  not imported"
            self.stdout.write(f"{count:>9,} {end}{note}")
        self.stdout.write("Nothing was written." if is_dry_run else f"{ends.total():,} rows were read.")


def _open(file: Path, password_file: Path | None, iterations: int) -> sqlite3.Connection:
    """Return the database, opened in memory."""
    data = file.read_bytes()
    log = file.with_name(f"{file.name}-wal")
    if log.exists() and log.stat().st_size:
        raise NotStatusGoError(f"{log.name} holds changes that are not in it yet: stop that server first")
    if sqlcipher.is_encrypted(data):
        if password_file is None:
            raise sqlcipher.NotReadableError("it is encrypted, or no database: give a --password-file")
        data = sqlcipher.decrypt(data, password_file.read_bytes().strip(), iterations=iterations)
    database = sqlite3.connect(":memory:")
    database.deserialize(sqlcipher.standing_alone(data))
    return database
