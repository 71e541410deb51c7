"""Reports between PostgreSQL and the folder of a run: the earlier ones for Spark, and the results from it.

All results are read and checked before any is published. PostgreSQL then takes all of them, or none.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
from django.conf import settings
from django.db import connection, transaction

from spark_reports.export.copying import copy_rows
from spark_reports.jobs.plan import EARLIER, LOOK_BACK_DAYS, RESULTS
from spark_reports.jobs.tables import REPORT_TABLES, SCHEMA_VERSION, Table
from spark_reports.lake import Day, LakeError, arrow_schema, file_in, fits
from spark_reports.models import REPORTS, DataQuality, PublishedDay, ReportRun
from spark_reports.running.spark import code_version

CHUNK_ROWS = 50_000
Results = Mapping[str, pa.Table]


# Before Spark --------------------------------------------------------------------------------------------------------
def earlier_days(first: date, *, is_made_up: bool) -> list[date]:
    """Return the days before ``first`` that a run may look back to: those with reports of this schema."""
    since = first - timedelta(days=max(LOOK_BACK_DAYS.values()))
    days = PublishedDay.objects.filter(day__gte=since, day__lt=first, is_made_up=is_made_up)
    return list(days.filter(schema_version=SCHEMA_VERSION).order_by("day").values_list("day", flat=True))


def write_earlier(folder: Path, first: date, days: Sequence[date]) -> None:
    """Write the reports of those of the days that each report looks back to."""
    (folder / EARLIER).mkdir()
    for report in REPORT_TABLES:
        if look_back := LOOK_BACK_DAYS.get(report.name):
            read = ", ".join(f"'{day}'" for day in days if day >= first - timedelta(look_back))
            query = f"SELECT {_columns(report)} FROM {_table(report)} WHERE day IN ({read or 'NULL'})"
            schema = arrow_schema(report, day=True)
            copy_rows(_session(), query, schema, file_in(folder / EARLIER, report))


def _session() -> psycopg.Connection[Any]:
    connection.ensure_connection()
    session: psycopg.Connection[Any] = connection.connection
    return session


def _table(report: Table) -> str:
    return REPORTS[report.name]._meta.db_table  # noqa: SLF001 - documented


def _columns(report: Table) -> str:
    return ", ".join(["day", *report.column_names])


# After Spark ---------------------------------------------------------------------------------------------------------
def read_results(folder: Path) -> dict[str, pa.Table]:
    """Read and check all results of a run, by report.

    Raises LakeError when a report is missing, has other columns than its table, or a null where none may be.
    """
    return {report.name: _read(file_in(folder / RESULTS, report), report) for report in REPORT_TABLES}


def _read(path: Path, report: Table) -> pa.Table:
    if not path.exists():
        raise LakeError(f"Spark did not finish {report.name}.")
    rows, schema = pq.read_table(path), arrow_schema(report, day=True)
    if not fits(rows.schema, schema):
        raise LakeError(f"Spark gave {report.name} other columns.")
    for column in schema:
        if not column.nullable and rows[column.name].null_count:
            raise LakeError(f"{report.name}: {column.name} is null in {rows[column.name].null_count} rows.")
    return rows.select(schema.names)


def load(results: Results, facts: Mapping[date, Day], run: ReportRun, *, now: datetime) -> None:
    """Replace all reports of these days in PostgreSQL, in one transaction.

    A mail is owed for each day that had no reports of real facts, if there are recipients.

    Raises LakeError when the run is made up and there are reports of real days.
    """
    days = sorted(facts)
    with transaction.atomic():
        # A mail that is being sent holds this lock until the row says so: otherwise the day would be owed again.
        former = PublishedDay.objects.select_for_update().filter(day__in=days, is_made_up=False).in_bulk()
        _remove(days, run)
        for report in REPORT_TABLES:
            _copy(report, results[report.name])
        PublishedDay.objects.bulk_create(_published(facts[day], run, former.get(day), now) for day in days)
        run.result_count = sum(rows.num_rows for rows in results.values())
        run.finding_count = DataQuality.objects.filter(day__in=days, is_ok=False).count()


def _published(facts: Day, run: ReportRun, former: PublishedDay | None, now: datetime) -> PublishedDay:
    """Return the row of a day. One that had reports of the same facts was not renewed by these."""
    is_mailed = bool(settings.REPORT_RECIPIENTS) and not run.is_made_up
    return PublishedDay(
        day=facts.day,
        run=run,
        event_count=facts.row_count,
        published_at=now,
        renewed_at=former.renewed_at if former and former.renewed_at <= former.published_at else now,
        mailed_at=former.mailed_at if former else None if is_mailed else now,
        facts_digest=facts.digest,
        code_version=code_version(),
        schema_version=SCHEMA_VERSION,
        is_made_up=run.is_made_up,
    )


def _remove(days: Sequence[date], run: ReportRun) -> None:
    """Remove the reports of these days, and all made-up reports."""
    if run.is_made_up and PublishedDay.objects.filter(is_made_up=False).exists():
        raise LakeError("There are reports of real days, which made-up ones never replace.")
    made_up = PublishedDay.objects.filter(is_made_up=True).values_list("day", flat=True)
    replaced = {*days, *made_up}
    for model in REPORTS.values():
        model._default_manager.filter(day__in=replaced).delete()  # noqa: SLF001
    PublishedDay.objects.filter(day__in=replaced).delete()


def _copy(report: Table, rows: pa.Table) -> None:
    statement = f"COPY {_table(report)} ({_columns(report)}) FROM STDIN (FORMAT csv)"
    with psycopg.Cursor(_session()) as cursor, cursor.copy(statement.encode()) as copy:
        for chunk in _csv(rows):
            copy.write(chunk)


def _csv(rows: pa.Table) -> Iterator[bytes]:
    for start in range(0, rows.num_rows, CHUNK_ROWS):
        out = io.BytesIO()
        pcsv.write_csv(rows.slice(start, CHUNK_ROWS), out, pcsv.WriteOptions(include_header=False))
        yield out.getvalue()
