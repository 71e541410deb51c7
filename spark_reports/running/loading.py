"""Publication of a run's results in the lake and in PostgreSQL.

All results are read and checked before any is published. The lake is changed first, each day at once by its manifest.
PostgreSQL follows, in one transaction for all reports of all days. A repetition has the same result.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.csv as pcsv
from django.conf import settings
from django.db import connection, transaction
from django.db.models import F

from spark_reports.jobs.tables import REPORT_TABLES, SCHEMA_VERSION, Table
from spark_reports.lake import Kind, Lake, LakeError, Manifest, folder_of
from spark_reports.models import REPORTS, DataQuality, PublishedDay, ReportRun
from spark_reports.running.lineage import code_version

CHUNK_ROWS = 50_000


@dataclass(frozen=True, slots=True)
class Result:
    """One report of one day, checked, in the folder of the run. ``parts`` maps the path of each file to its rows."""

    report: Table
    day: date
    parts: Mapping[str, pa.Table]

    @property
    def row_count(self) -> int:
        return sum(rows.num_rows for rows in self.parts.values())


def read_results(lake: Lake, output: str, days: Sequence[date]) -> list[Result]:
    """Read and check all results of a run.

    Raises LakeError when a report is missing or has other columns than its table.
    """
    for report in REPORT_TABLES:
        if not lake.exists(f"{output}/{report.name}/_SUCCESS"):
            raise LakeError(f"Spark did not finish {report.name}.")
    return [_read(lake, output, report, day) for report in REPORT_TABLES for day in days]


def _read(lake: Lake, output: str, report: Table, day: date) -> Result:
    paths = lake.parquet_files(f"{output}/{report.name}/day={day}")
    return Result(report, day, {path: lake.read_table(report, path) for path in paths})


def publish_in_lake(
    lake: Lake, results: Sequence[Result], facts: Mapping[date, Manifest], run_name: str, *, now: datetime
) -> None:
    """Publish the results as the reports of their days in the lake. ``facts`` are the manifests of the facts read."""
    for day in sorted({result.day for result in results}):
        files = {
            result.report.name: [
                _into_place(lake, result, path, f"{run_name}-{number}") for number, path in enumerate(result.parts)
            ]
            for result in results
            if result.day == day
        }
        manifest = Manifest(
            day.isoformat(),
            SCHEMA_VERSION,
            now.isoformat(),
            key_id="",
            facts_digest=facts[day].digest,
            code_version=code_version(),
            tables=files,
        )
        lake.publish(Kind.REPORTS, day, manifest)


def _into_place(lake: Lake, result: Result, path: str, name: str) -> Any:
    target = f"{folder_of(Kind.REPORTS, result.report, result.day)}/{name}.parquet"
    lake.move(path, target)
    return lake.describe(target, result.parts[path].num_rows)


def load(results: Sequence[Result], facts: Mapping[date, Manifest], run: ReportRun, *, now: datetime) -> None:
    """Replace all reports of these days in PostgreSQL, in one transaction.

    A mail is owed for each day that had no reports of real facts, if there are recipients.

    Raises LakeError when the run is made up and there are reports of real days.
    """
    days = sorted(facts)
    with transaction.atomic():
        renewed, mailed = _renewed(days), _mailed(days)
        _remove(days, run)
        session: psycopg.Connection[Any] = connection.connection
        for result in results:
            _copy(session, result)
        PublishedDay.objects.bulk_create(
            _published(
                *(day, facts[day], run, now),
                renewed_at=renewed.get(day, now),
                mailed_at=mailed.get(day, now if run.is_made_up or not settings.REPORT_RECIPIENTS else None),
            )
            for day in days
        )
        run.result_count = sum(result.row_count for result in results)
        run.finding_count = DataQuality.objects.filter(day__in=days, is_ok=False).count()


def _renewed(days: Sequence[date]) -> dict[date, datetime]:
    """Return the ``renewed_at`` of the days whose former reports were made of the same facts."""
    same = PublishedDay.objects.filter(day__in=days, is_made_up=False, renewed_at__lte=F("published_at"))
    return dict(same.values_list("day", "renewed_at"))


def _mailed(days: Sequence[date]) -> dict[date, datetime | None]:
    """Return ``mailed_at`` of the days that have reports of real facts."""
    return dict(PublishedDay.objects.filter(day__in=days, is_made_up=False).values_list("day", "mailed_at"))


def _remove(days: Sequence[date], run: ReportRun) -> None:
    """Remove the reports of these days, and all made-up reports."""
    if run.is_made_up and PublishedDay.objects.filter(is_made_up=False).exists():
        raise LakeError("There are reports of real days, which made-up ones never replace.")
    made_up = PublishedDay.objects.filter(is_made_up=True).values_list("day", flat=True)
    replaced = {*days, *made_up}
    for model in REPORTS.values():
        model._default_manager.filter(day__in=replaced).delete()  # noqa: SLF001
    PublishedDay.objects.filter(day__in=replaced).delete()


def _published(day: date, facts: Manifest, run: ReportRun, now: datetime, **times: datetime | None) -> PublishedDay:
    return PublishedDay(
        day=day,
        run=run,
        event_count=facts.row_count,
        published_at=now,
        facts_digest=facts.digest,
        code_version=code_version(),
        is_made_up=run.is_made_up,
        **times,
    )


def _copy(session: psycopg.Connection[Any], result: Result) -> None:
    table = REPORTS[result.report.name]._meta.db_table  # noqa: SLF001
    columns = ", ".join(["day", *result.report.column_names])
    statement = f"COPY {table} ({columns}) FROM STDIN (FORMAT csv)"
    for rows in result.parts.values():
        with psycopg.Cursor(session) as cursor, cursor.copy(statement) as copy:
            for start in range(0, rows.num_rows, CHUNK_ROWS):
                copy.write(_csv(rows.slice(start, CHUNK_ROWS), result.day))


def _csv(rows: pa.Table, day: date) -> bytes:
    days = pa.array([day] * rows.num_rows, pa.date32())
    out = io.BytesIO()
    pcsv.write_csv(rows.add_column(0, "day", days), out, pcsv.WriteOptions(include_header=False))
    return out.getvalue()
