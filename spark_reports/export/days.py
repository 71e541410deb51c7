"""Export a day: all its tables as they were at one moment, complete or not at all."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any

import psycopg
import structlog
from django.conf import settings
from django.db import connection, transaction

from spark_reports.closing import last_closed_day
from spark_reports.export.copying import copy_table
from spark_reports.export.pseudonyms import Period, PseudonymKey, Subject, key_for
from spark_reports.export.queries import QUERIES
from spark_reports.jobs.tables import EVENT_TABLES, SCHEMA_VERSION, Table
from spark_reports.lake import File, Kind, Lake, LakeError, Manifest, folder_of
from spark_reports.seeds import destroy_seeds, seed_for

log = structlog.get_logger(__name__)

OnRows = Callable[[str, int], None]


class ExportError(Exception):
    """A day cannot be exported; the text says why in one line."""


def closed_days(first: date, last: date, *, now: datetime) -> list[date]:
    """Return the days of a range. Raises ExportError when one of them is not over."""
    if first > last:
        raise ExportError(f"{first} is after {last}.")
    if last > last_closed_day(now):
        raise ExportError(f"{last} is not over: the last closed day (UTC) is {last_closed_day(now)}.")
    return [first + timedelta(days=n) for n in range((last - first).days + 1)]


def export_day(day: date, lake: Lake, *, now: datetime, on_rows: OnRows, replace: bool = False) -> Manifest:
    """Bring a closed day into the lake. One that is there already stays as it is, unless ``replace``.

    Raises ExportError when replacing would lose rows that retention has removed from the database meanwhile.
    """
    known = None if replace else lake.manifest(Kind.FACTS, day)
    if known is not None and known.schema_version == SCHEMA_VERSION:
        return known
    if day < oldest_complete_day(now) and lake.has(Kind.FACTS, day):
        raise ExportError(f"{day} cannot be exported again: parts of it are no longer in the database (retention).")
    destroy_seeds(now)
    period = Period(settings.REPORTS_PSEUDONYM_PERIOD)
    key = key_for(day, settings.FIELD_ENCRYPTION_KEYS[0], seed_for(period.label(day), period.last_day(day)), period)
    lake.tidy(Kind.FACTS, day, _readable_manifest(lake, day))
    with _snapshot(key) as session, _removed_unless_complete(lake) as files:
        for table in EVENT_TABLES:
            files[table.name] = [_export_table(session, table, day, lake, on_rows)]
    is_complete = day >= oldest_complete_day(now)
    since = _kept_since(settings.EVENT_RETENTION_DAYS, now)
    manifest = Manifest(
        day.isoformat(), SCHEMA_VERSION, now.isoformat(), key.id, is_complete, since.isoformat(), tables=files
    )
    lake.publish(Kind.FACTS, day, manifest)
    log.info("day_exported", day=day.isoformat(), key_id=key.id, rows=sum(manifest.rows.values()))
    return manifest


def _readable_manifest(lake: Lake, day: date) -> Manifest | None:
    try:
        return lake.manifest(Kind.FACTS, day)
    except LakeError:  # a damaged one names nothing that could be kept; this export replaces it
        return None


@contextmanager
def _removed_unless_complete(lake: Lake) -> Iterator[dict[str, list[File]]]:
    """Collect the files of an export by table, and remove them again when it does not get to its end."""
    files: dict[str, list[File]] = {}
    try:
        yield files
    except BaseException:
        for file in [file for written in files.values() for file in written]:
            lake.remove(file.path)
        raise


def oldest_complete_day(now: datetime) -> date:
    """Return the oldest day of which retention has removed nothing."""
    days = (settings.ENVELOPE_RETENTION_DAYS, settings.NOTIFICATION_RETENTION_DAYS, settings.EVENT_RETENTION_DAYS)
    return _kept_since(min(days), now)


def _kept_since(retention_days: int, now: datetime) -> date:
    """Return the first day of which a retention has removed nothing."""
    return (now - timedelta(days=retention_days - 1)).astimezone(UTC).date()


@contextmanager
def _snapshot(key: PseudonymKey) -> Iterator[psycopg.Connection[Any]]:
    """Open a transaction that sees one moment, with the keys in a table that vanishes with it."""
    with transaction.atomic(durable=True):
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SET LOCAL TIME ZONE 'UTC'")
            cursor.execute("SET LOCAL datestyle = 'ISO'")
            cursor.execute("SET LOCAL work_mem = '128MB'")
            columns = ", ".join(f"{subject} bytea" for subject in Subject)
            cursor.execute(
                f"CREATE TEMPORARY TABLE report_keys (outer_key bytea, deadline_us bigint, {columns}) ON COMMIT DROP"
            )
        session: psycopg.Connection[Any] = connection.connection
        _hand_over(session, key)
        yield session


def _hand_over(session: psycopg.Connection[Any], key: PseudonymKey) -> None:
    """Hand the keys over by COPY, because parameters and statements may appear in the database's log."""
    with psycopg.Cursor(session) as cursor, cursor.copy("COPY report_keys FROM STDIN") as copy:
        deadline_us = round(settings.REPLY_DEADLINE_SECONDS * 10**6)
        copy.write_row([key.outer, deadline_us, *[key.prefix(subject) for subject in Subject]])


def _export_table(session: psycopg.Connection[Any], table: Table, day: date, lake: Lake, on_rows: OnRows) -> File:
    """Export one table under a new name, which nobody reads until the manifest makes it count.

    It is not moved afterwards: an object store would copy it, and none of more than 5 GiB at once.
    """
    folder = folder_of(Kind.FACTS, table, day)
    name = secrets.token_hex(8)
    path = f"{folder}/{name}.parquet"
    query = QUERIES[table.name](day)
    try:
        rows = copy_table(session, query, table, lake, path, lambda number: on_rows(table.name, number))
    except BaseException:
        lake.remove(path)
        raise
    return lake.describe(path, rows)
