"""A month of made-up traffic in a database, for `manage.py seed_bench` and the benchmark of the console.

The rows are made in the database itself, by `seeding.sql`. Indexes are built afterwards, each at once. Updating them
row by row would take most of the time. Everything is one transaction, so a failure leaves nothing behind.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
CONSTRAINTS = """
    SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE conrelid::regclass::text = ANY(%s) AND contype IN ('f', 'u') ORDER BY contype, conname
"""
INDEXES = """
    SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid) FROM pg_index
    WHERE indrelid::regclass::text = ANY(%s)
    AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid AND contype IN ('p', 'u'))
"""
Progress = Callable[[str], None]


class NotEmptyError(Exception):
    """The database has rows already, which may belong to somebody."""


@dataclass(frozen=True, slots=True)
class Definition:
    """The statements that remove a constraint or an index and create it again."""

    drop: sql.Composed
    create: sql.Composed


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
            cursor.execute(sql.SQL("LOCK TABLE {}").format(sql.Identifier(table)))
        _refuse_if_not_empty(cursor)
        for table, past in DAYS.items():
            table.make_from(timezone.now() - past, to=timezone.now())
        _define_functions(cursor, registrations, attempts)
        definitions = list(_definitions(cursor))
        for definition in definitions:
            cursor.execute(definition.drop)
        _insert(cursor, progress)
        cursor.execute("SET LOCAL maintenance_work_mem = '512MB'")
        for definition in reversed(definitions):
            cursor.execute(definition.create)
        progress(f"{len(definitions)} indexes and constraints made")


def settle() -> None:
    """Do the work that autovacuum would do within minutes. This cannot run in a transaction."""
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")


def _refuse_if_not_empty(cursor: Any) -> None:
    for table in TABLES:
        cursor.execute(sql.SQL("SELECT EXISTS (SELECT FROM {})").format(sql.Identifier(table)))
        if cursor.fetchone()[0]:
            raise NotEmptyError(f"There are rows in {table}.")


def _define_functions(cursor: Any, registrations: int, attempts: int) -> None:
    hashes = [key_hash(key) for key in chat_keys()]
    texts = sql.SQL(", ").join(sql.Literal(value) for value in hashes)
    constant = "CREATE FUNCTION pg_temp.{}() RETURNS {} LANGUAGE sql IMMUTABLE RETURN {}::{}"
    constants: list[tuple[str, str, object]] = [
        ("registrations", "bigint", registrations),
        ("notifications", "bigint", attempts),
        *((name, "bytea", keyring().encrypt(*sample)) for name, sample in SAMPLES.items()),
    ]
    for name, type_, value in constants:
        parts = sql.Identifier(name), sql.SQL(type_), sql.Literal(value), sql.SQL(type_)
        cursor.execute(sql.SQL(constant).format(*parts))
    cursor.execute(
        sql.SQL(
            "CREATE FUNCTION pg_temp.known_key(person bigint) RETURNS bytea LANGUAGE sql IMMUTABLE"
            " RETURN (ARRAY[{}]::bytea[])[1 + person]"
        ).format(texts)
    )


def _insert(cursor: Any, progress: Progress) -> None:
    for statement in STATEMENTS:
        cursor.execute(statement)
        if named := re.search(r"^INSERT INTO (\w+)", statement, re.MULTILINE):
            progress(f"{named[1]}: {cursor.rowcount:,} rows")
    models = [model for model in apps.get_models() if model._meta.db_table in TABLES]  # noqa: SLF001 - documented
    for statement in connection.ops.sequence_reset_sql(no_style(), models):
        cursor.execute(statement)


def _definitions(cursor: Any) -> Iterator[Definition]:
    """Yield all constraints and indexes of these tables but their primary keys.

    Foreign keys come first, then the keys that they rely on.
    """
    tables = [TABLES]
    cursor.execute(CONSTRAINTS, tables)
    for table, name, definition in cursor.fetchall():
        about = sql.SQL("ALTER TABLE {} ").format(sql.Identifier(table))
        constraint = sql.Identifier(name)
        yield Definition(
            about + sql.SQL("DROP CONSTRAINT {}").format(constraint),
            about + sql.SQL("ADD CONSTRAINT {} ").format(constraint) + sql.SQL(definition),
        )
    cursor.execute(INDEXES, tables)
    for name, definition in cursor.fetchall():
        # PostgreSQL gives the index of a partitioned table without those of its partitions.
        create = sql.SQL(definition.replace(" ON ONLY ", " ON "))
        yield Definition(sql.SQL("DROP INDEX {}").format(sql.Identifier(name)), sql.Composed([create]))
