"""A month of made-up traffic in a database, for `manage.py seed_bench` and the benchmark of the console.

The rows are made in the database itself, by `seeding.sql`. Indexes are built afterwards, each at once. Updating them
row by row would take most of the time. Everything is one transaction, so a failure leaves nothing behind.
"""

import re
from collections.abc import Callable
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

from coincurve import PrivateKey
from django.apps import apps
from django.core.management.color import no_style
from django.db import connection, transaction
from django.utils import timezone
from psycopg import sql

from notifications import retention as notifications
from registrations.keys.encryption import Purpose
from registrations.keys.keyring import keyring
from registrations.upkeep import retention as registrations
from waku_bridge.codec.keys import key_hash
from waku_bridge.removal import retention as waku

STATEMENTS = [
    part.strip() for part in Path(__file__).with_suffix(".sql").read_text("utf-8").split(";\n") if part.strip()
]
TABLES = list(dict.fromkeys(re.findall(r"^INSERT INTO (\w+)", ";\n".join(STATEMENTS), re.MULTILINE)))
PAST = timedelta(days=31)
FEW_DAYS = timedelta(days=4)
# For tables with a partition for each day: the days that their rows go back.
DAYS = {
    **dict.fromkeys(notifications.BY_DAY, PAST),
    registrations.EVENTS: timedelta(days=400),
    waku.HASHES: FEW_DAYS,
    waku.ENVELOPES: FEW_DAYS,
    waku.REPLIES: FEW_DAYS,
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
Progress = Callable[[str], None]


class NotEmptyError(Exception):
    """The database has rows already, which may belong to somebody."""


def chat_keys(prefix: str = "bench user") -> list[bytes]:
    """Return the compressed public keys of the first users, or with another prefix keys of no users."""
    secrets = [sha256(f"{prefix} {number}".encode()).digest() for number in range(KNOWN_USERS)]
    return [PrivateKey(secret).public_key.format() for secret in secrets]


def fill(registrations: int, attempts: int, progress: Progress) -> None:
    """Fill the database with these registrations and at least this number of attempts (about 4 % more).

    Raises NotEmptyError. Other writers wait until the end, so nothing is added between the check and the first row.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"LOCK TABLE {table}")
        for table in TABLES:
            cursor.execute(f"SELECT EXISTS (SELECT FROM {table})")
            if cursor.fetchone()[0]:
                raise NotEmptyError(f"There are rows in {table}.")
        for table, past in DAYS.items():
            table.make_from(timezone.now() - past, to=timezone.now())
        _define_functions(cursor, registrations, attempts)
        cursor.execute(DEFINITIONS, {"tables": TABLES})
        definitions = cursor.fetchall()
        for drop, _ in definitions:
            cursor.execute(drop)
        _insert(cursor, progress)
        cursor.execute("SET LOCAL maintenance_work_mem = '512MB'")
        for _, create in reversed(definitions):
            cursor.execute(create)
        progress(f"{len(definitions)} indexes and constraints made")


def settle() -> None:
    """Do the work that autovacuum would do within minutes. This cannot run in a transaction."""
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")


def _define_functions(cursor: Any, registrations: int, attempts: int) -> None:
    """Define what `seeding.sql` calls. ``known_key`` has the key hashes of the known users."""
    constants = {"registrations": ("bigint", registrations), "notifications": ("bigint", attempts)}
    encrypted = {name: ("bytea", keyring().encrypt(*sample)) for name, sample in SAMPLES.items()}
    for name, (type_, value) in {**constants, **encrypted}.items():
        returned = sql.SQL(f"RETURNS {type_} LANGUAGE sql IMMUTABLE RETURN {{}}::{type_}").format(sql.Literal(value))
        cursor.execute(sql.SQL(f"CREATE FUNCTION pg_temp.{name}() ") + returned)
    hashes = sql.SQL(", ").join(sql.Literal(key_hash(key)) for key in chat_keys())
    returned = sql.SQL("RETURN (ARRAY[{}]::bytea[])[1 + person]").format(hashes)
    head = "CREATE FUNCTION pg_temp.known_key(person bigint) RETURNS bytea LANGUAGE sql IMMUTABLE "
    cursor.execute(sql.SQL(head) + returned)


def _insert(cursor: Any, progress: Progress) -> None:
    for statement in STATEMENTS:
        cursor.execute(statement)
        if named := re.search(r"^INSERT INTO (\w+)", statement, re.MULTILINE):
            progress(f"{named[1]}: {cursor.rowcount:,} rows")
    models = [model for model in apps.get_models() if model._meta.db_table in TABLES]  # noqa: SLF001 - documented
    for statement in connection.ops.sequence_reset_sql(no_style(), models):
        cursor.execute(statement)
