"""`manage.py seed_bench`: fill a database with a month of made-up traffic, for benchmarks and for trying the console.

The rows are made in the database itself, by `seed_bench.sql`. Indexes are built afterwards, each at once. Updating them
row by row would take most of the time. Everything is one transaction, so a failure leaves nothing behind.
"""

import re
from argparse import ArgumentParser
from collections.abc import Callable
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

from coincurve import PrivateKey
from django.apps import apps
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.core.management.color import no_style
from django.db import connection, transaction
from django.utils import timezone
from psycopg import sql

from notifications import retention as notifications
from registrations import retention as registrations
from registrations.encryption import Purpose, keyring
from waku_bridge import tasks as waku
from waku_bridge.codec.keys import key_hash

STATEMENTS = [
    part.strip() for part in Path(__file__).with_suffix(".sql").read_text("utf-8").split(";\n") if part.strip()
]
TABLES = list(dict.fromkeys(re.findall(r"^INSERT INTO (\w+)", ";\n".join(STATEMENTS), re.MULTILINE)))
PAST = timedelta(days=31)
# For tables with a partition for each day: the days that their rows go back.
DAYS = {
    **dict.fromkeys(notifications.BY_DAY, PAST),
    registrations.EVENTS: timedelta(days=400),
    **dict.fromkeys((waku.HASHES, waku.ENVELOPES, waku.REPLIES), timedelta(days=4)),
}
# Users with known chat keys, so that a search by them can be measured. The first two have a very long history.
KNOWN_USERS = 40
SAMPLES = {
    "device_token": (Purpose.ADDRESS, b"of no device: " + b"x" * 150),
    "access_token": (Purpose.ACCESS_TOKEN, b"00000000-0000-4000-8000-000000000000"),
    "topic_key": (Purpose.TOPIC_KEY, bytes(32)),
}
# For each constraint and index of these tables but their primary keys: the statement that removes it, and the one that
# creates it again. Foreign keys come first, then the keys that they rely on. PostgreSQL gives the index of a
# partitioned table without those of its partitions.
DEFINITIONS = """
    (SELECT format('ALTER TABLE %%s DROP CONSTRAINT %%I', conrelid::regclass, conname),
        format('ALTER TABLE %%s ADD CONSTRAINT %%I %%s', conrelid::regclass, conname, pg_get_constraintdef(oid))
    FROM pg_constraint WHERE conrelid::regclass::text = ANY(%(tables)s) AND contype IN ('f', 'u')
    ORDER BY contype, conname)
    UNION ALL
    SELECT format('DROP INDEX %%s', indexrelid::regclass), replace(pg_get_indexdef(indexrelid), ' ON ONLY ', ' ON ')
    FROM pg_index WHERE indrelid::regclass::text = ANY(%(tables)s)
    AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid AND contype IN ('p', 'u'))
"""


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
        fill(registrations, attempts, self.stdout.write)
        settle()


def chat_keys(prefix: str = "bench user") -> list[bytes]:
    """Return the compressed public keys of the first users, or with another prefix keys of no users."""
    secrets = [sha256(f"{prefix} {number}".encode()).digest() for number in range(KNOWN_USERS)]
    return [PrivateKey(secret).public_key.format() for secret in secrets]


def fill(registrations: int, attempts: int, progress: Callable[[str], None]) -> None:
    """Fill the database with these registrations and at least this number of attempts (about 4 % more).

    Raises CommandError when there are rows, which may be somebody's. Other writers wait until the end, so nothing is
    added between the check and the first row.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"LOCK TABLE {table}")
            cursor.execute(f"SELECT EXISTS (SELECT FROM {table})")
            if cursor.fetchone()[0]:
                raise CommandError(f"Nothing was done: the database is not empty. There are rows in {table}.")
        for table, past in DAYS.items():
            table.make_from(timezone.now() - past, to=timezone.now())
        _define_functions(cursor, registrations, attempts)
        cursor.execute(DEFINITIONS, {"tables": TABLES})
        definitions = cursor.fetchall()
        for drop, _ in definitions:
            cursor.execute(drop)
        for statement in STATEMENTS:
            cursor.execute(statement)
            if named := re.search(r"^INSERT INTO (\w+)", statement, re.MULTILINE):
                progress(f"{named[1]}: {cursor.rowcount:,} rows")
        models = [model for model in apps.get_models() if model._meta.db_table in TABLES]  # noqa: SLF001 - documented
        for statement in connection.ops.sequence_reset_sql(no_style(), models):
            cursor.execute(statement)
        cursor.execute("SET LOCAL maintenance_work_mem = '512MB'")
        for _, create in reversed(definitions):
            cursor.execute(create)
        progress(f"{len(definitions)} indexes and constraints made")


def settle() -> None:
    """Do the work that autovacuum would do within minutes. This cannot run in a transaction."""
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")


def _define_functions(cursor: Any, registrations: int, attempts: int) -> None:
    """Define what `seed_bench.sql` calls. ``known_keys`` has the key hashes of the known users."""
    constants: dict[str, tuple[str, Any]] = {
        "registrations": ("bigint", registrations),
        "notifications": ("bigint", attempts),
        "known_keys": ("bytea[]", list(map(key_hash, chat_keys()))),
    }
    encrypted = {name: ("bytea", keyring().encrypt(*sample)) for name, sample in SAMPLES.items()}
    for name, (type_, value) in {**constants, **encrypted}.items():
        returned = sql.SQL(f"RETURNS {type_} LANGUAGE sql IMMUTABLE RETURN {{}}::{type_}").format(sql.Literal(value))
        cursor.execute(sql.SQL(f"CREATE FUNCTION pg_temp.{name}() ") + returned)
