"""Export of a day: all its tables from one snapshot, complete or not at all."""

import hashlib
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import structlog
from django.conf import settings
from django.db import connection, transaction

from kit.db.base import REPORTS, timeouts
from spark_reports.export.copying import copy_rows
from spark_reports.export.pseudonyms import Period, PseudonymKey, Subject, destroy_seeds, key_for, seed_for
from spark_reports.export.queries import QUERIES
from spark_reports.jobs.tables import EVENT_TABLES, SCHEMA_VERSION
from spark_reports.lake import EXPORT_ID, Day, Lake, TornDay, arrow_schema, file_in
from spark_reports.models import PublishedDay
from spark_reports.nights.nights import last_closed_day

# Reports look back a month. Ten days more are kept, so that reports of the last days can be made again.
LEAST_DAYS_OF_LAKE = 40
# The tables with a row for each event. Once a day is over, they lose rows by retention and by forgetting only.
OF_EVENTS = ("envelopes", "notifications", "attempts", "replies", "registration_events")
log = structlog.get_logger(__name__)
# What hears of the progress of an export or a run, a line at a time.
Progress = Callable[[str], object]


def silent(_line: str) -> None:
    """Report no progress."""


class ExportError(Exception):
    """A day cannot be exported. The text says why in one line."""


def closed_days(first: date, last: date, *, now: datetime) -> list[date]:
    """Return the days of a range. Raises ExportError when one of them is not closed."""
    if first > last:
        raise ExportError(f"{first} is after {last}.")
    if last > last_closed_day(now):
        raise ExportError(f"{last} is not over: the last closed day (UTC) is {last_closed_day(now)}.")
    return [first + timedelta(days=n) for n in range((last - first).days + 1)]


def export_day(day: date, lake: Lake, *, now: datetime, progress: Progress = silent, replace: bool = False) -> Day:
    """Write the facts of a closed day into the lake, and return the day.

    A day that counts stays as it is, unless ``replace`` is true or its schema is older. Reports of replaced facts are
    stale. Raises ExportError if replacing would lose rows that the database no longer has, for a day of a newer
    version, and for one that is older than the lake keeps.
    """
    recorded, fault = _recorded(day, lake)
    if recorded is not None and not fault and not replace:
        if recorded.schema_version == SCHEMA_VERSION:
            return recorded
        if recorded.schema_version > SCHEMA_VERSION:
            raise ExportError(f"{day} was exported by a newer version: install that, or export with --replace.")
    if day < oldest_day_of_lake(now):
        raise ExportError(f"{day} would not stay in the lake: it is older than EVENT_RETENTION_DAYS.")
    is_complete = day >= oldest_complete_day(now)
    if lake.has(day) and not is_complete:
        raise ExportError(f"{fault}{day} cannot be exported again: parts of it are no longer in the database.")
    destroy_seeds(now)
    period = Period(settings.REPORTS_PSEUDONYM_PERIOD)
    key = key_for(day, settings.FIELD_ENCRYPTION_KEYS[0], seed_for(period.label(day), period.last_day(day)), period)
    export_id = secrets.token_hex(8)
    with lake.incoming(export_id) as folder:
        rows = _copy_all(day, key, folder, export_id, progress)
        if recorded is not None:
            _refuse_loss(recorded, rows)
        since = _kept_since(settings.EVENT_RETENTION_DAYS, now)
        exported = Day(day, export_id, SCHEMA_VERSION, key.id, is_complete, since, rows, digests_in(folder))
        PublishedDay.objects.filter(day=day).update(renewed_at=now)
        lake.publish(exported, folder)
    log.info("day_exported", day=day.isoformat(), key_id=key.id, rows=exported.row_count)
    return exported


def _recorded(day: date, lake: Lake) -> tuple[Day | None, str]:
    """Return a day as the lake has recorded it, and why it does not count, if it does not."""
    try:
        return lake.day(day), ""
    except TornDay as error:
        log.warning("day_torn", error=str(error))
        return error.recorded, f"{error} "


def _refuse_loss(recorded: Day, rows: Mapping[str, int]) -> None:
    """Refuse to replace a day by one with fewer events, as a database has that was restored to an earlier time."""
    before = {name: recorded.rows.get(name, 0) for name in OF_EVENTS}
    if lost := [f"{rows[name]} of {number} {name}" for name, number in before.items() if rows[name] < number]:
        raise ExportError(f"{recorded.day} cannot be exported again: the database has {', '.join(lost)}.")


def _copy_all(day: date, key: PseudonymKey, folder: Path, export_id: str, progress: Progress) -> dict[str, int]:
    """Write all tables of a day from one snapshot, and return their numbers of rows."""
    rows = {}
    with timeouts(REPORTS), _session(key) as session:
        for table in EVENT_TABLES:
            schema = arrow_schema(table).with_metadata({EXPORT_ID: export_id})
            progress(f"{day}: exports {table.name}")
            rows[table.name] = copy_rows(session, QUERIES[table.name](day), schema, file_in(folder, table))
    return rows


@contextmanager
def _session(key: PseudonymKey) -> Iterator[psycopg.Connection[Any]]:
    """Open a transaction with one snapshot, and with the keys in a table that is dropped at its end.

    The keys are written by COPY, because parameters and statements may appear in the database's log. Parallel workers
    are off, so that half of the cores stay free for messages.
    """
    with transaction.atomic(durable=True):
        columns = ", ".join(f"{subject} bytea" for subject in Subject)
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            for option in ("TIME ZONE 'UTC'", "datestyle = 'ISO'", "work_mem = '128MB'"):
                cursor.execute(f"SET LOCAL {option}")
            cursor.execute("SET LOCAL max_parallel_workers_per_gather = 0")
            cursor.execute(
                f"CREATE TEMPORARY TABLE report_keys (outer_key bytea, deadline_us bigint, {columns}) ON COMMIT DROP"
            )
        session: psycopg.Connection[Any] = connection.connection
        with psycopg.Cursor(session) as keys, keys.copy("COPY report_keys FROM STDIN") as copy:
            deadline_us = round(settings.REPLY_DEADLINE_SECONDS * 10**6)
            copy.write_row([key.outer, deadline_us, *[key.prefix(subject) for subject in Subject]])
        yield session


def digests_in(folder: Path) -> dict[str, str]:
    """Return the digests of the files of all tables."""
    digests = {}
    for table in EVENT_TABLES:
        with file_in(folder, table).open("rb") as file:
            digests[table.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def oldest_day_of_lake(now: datetime) -> date:
    """Return the oldest day that the lake keeps."""
    return _kept_since(max(settings.EVENT_RETENTION_DAYS, LEAST_DAYS_OF_LAKE), now)


def oldest_complete_day(now: datetime) -> date:
    """Return the oldest day from which no retention has removed rows."""
    days = (settings.ENVELOPE_RETENTION_DAYS, settings.NOTIFICATION_RETENTION_DAYS, settings.EVENT_RETENTION_DAYS)
    return _kept_since(min(days), now)


def _kept_since(retention_days: int, now: datetime) -> date:
    """Return the first day from which a retention of this length has removed no rows."""
    return (now - timedelta(days=retention_days - 1)).astimezone(UTC).date()
