"""Export of a day: all its tables from one snapshot, complete or not at all."""

from datetime import UTC, date, datetime, timedelta

import structlog
from django.conf import settings

from spark_reports.export.pseudonyms import Period, key_for
from spark_reports.export.sessions import Export, OnRows
from spark_reports.jobs.tables import SCHEMA_VERSION
from spark_reports.lake import Kind, Lake, LakeError, Manifest
from spark_reports.models import PublishedDay
from spark_reports.nights.closing import last_closed_day
from spark_reports.nights.seeds import destroy_seeds, seed_for

# Reports look back a month. Ten days more are kept, so that reports of the last days can be made again.
LEAST_DAYS_OF_LAKE = 40
log = structlog.get_logger(__name__)


class ExportError(Exception):
    """A day cannot be exported. The text says why in one line."""


def closed_days(first: date, last: date, *, now: datetime) -> list[date]:
    """Return the days of a range. Raises ExportError when one of them is not closed."""
    if first > last:
        raise ExportError(f"{first} is after {last}.")
    if last > last_closed_day(now):
        raise ExportError(f"{last} is not over: the last closed day (UTC) is {last_closed_day(now)}.")
    return [first + timedelta(days=n) for n in range((last - first).days + 1)]


def export_day(day: date, lake: Lake, *, now: datetime, on_rows: OnRows, replace: bool = False) -> Manifest:
    """Write the facts of a closed day into the lake, and return their manifest.

    A day that is in the lake already stays as it is, unless ``replace`` is true. Reports of replaced facts are stale.
    Raises ExportError if replacing would lose rows that retention has removed from the database, and for a day that is
    older than the lake keeps.
    """
    known = None if replace else lake.manifest(Kind.FACTS, day)
    if known is not None and known.schema_version == SCHEMA_VERSION:
        return known
    if day < oldest_day_of_lake(now):
        raise ExportError(f"{day} would not stay in the lake: it is older than EVENT_RETENTION_DAYS.")
    if day < oldest_complete_day(now) and lake.has(Kind.FACTS, day):
        raise ExportError(f"{day} cannot be exported again: parts of it are no longer in the database (retention).")
    destroy_seeds(now)
    period = Period(settings.REPORTS_PSEUDONYM_PERIOD)
    key = key_for(day, settings.FIELD_ENCRYPTION_KEYS[0], seed_for(period.label(day), period.last_day(day)), period)
    lake.tidy(Kind.FACTS, day, _readable_manifest(lake, day))
    files = Export(day, lake, key, on_rows).run()
    is_complete = day >= oldest_complete_day(now)
    since = _kept_since(settings.EVENT_RETENTION_DAYS, now)
    manifest = Manifest(
        day.isoformat(), SCHEMA_VERSION, now.isoformat(), key.id, is_complete, since.isoformat(), tables=files
    )
    PublishedDay.objects.filter(day=day).update(renewed_at=now)
    lake.publish(Kind.FACTS, day, manifest)
    log.info("day_exported", day=day.isoformat(), key_id=key.id, rows=manifest.row_count)
    return manifest


def _readable_manifest(lake: Lake, day: date) -> Manifest | None:
    try:
        return lake.manifest(Kind.FACTS, day)
    except LakeError:  # a damaged manifest lists no files to keep, and this export replaces it
        return None


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
