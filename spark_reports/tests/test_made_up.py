"""Made-up reports of a demonstration: those of the real jobs, complete, marked, and apart from real ones."""

import json
import lzma
import os
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.utils import timezone

from embedded.demo.reports import STORED, publish_stored
from embedded.made_up_facts import write_day
from notifications.models import Attempt, Notification
from registrations.models import RegistrationEvent
from spark_reports.jobs.tables import EVENT_TABLES, LIFETIME_WEEKS
from spark_reports.lake import Kind, Lake, Manifest
from spark_reports.models import (
    Anomaly,
    DataQuality,
    ErrorRate,
    FailureSignature,
    PublishedDay,
    Report,
    ReportRun,
    TokenChurn,
    TokenLifetime,
)
from spark_reports.nights.closing import last_closed_day
from spark_reports.running.runs import Progress, Source, run_days
from tests.rig import reports
from waku_bridge.models import InboundEnvelope, OutboundReply

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("closed_at_midnight")]
REAL = (Attempt, Notification, RegistrationEvent, InboundEnvelope, OutboundReply)
LAST_DAY, DAYS, EVENTS = date(2026, 11, 22), 14, 3000


@pytest.fixture
def embedded(settings: LazySettings) -> None:
    settings.EMBEDDED = {"DATABASE_URL": settings.DATABASE_URL}


def made_up(day: date, lake: Lake, *, now: datetime, on_rows: Any) -> Manifest:
    since = day - timedelta(weeks=LIFETIME_WEEKS)
    return write_day(lake, day, EVENTS, since=since, is_unusual=day == LAST_DAY)


def published() -> dict[str, Any]:
    """Return the reports that are in the database, in the form in which they are stored."""
    days = list(PublishedDay.objects.order_by("day").values_list("day", "event_count"))
    reports = {}
    for model in Report.__subclasses__():
        columns = [field.name for field in model._meta.fields if not field.primary_key]
        found = model._default_manager.order_by(*columns).values_list(*columns)
        reports[model.__name__] = {"columns": columns, "rows": [list(map(plain, row)) for row in found]}
    return {"last_day": str(days[-1][0]), "events": [events for _, events in days], "reports": reports}


def plain(value: Any) -> Any:
    if isinstance(value, date):
        return value.isoformat()
    return float(f"{value:.3g}") if isinstance(value, float) else value


def test_the_stored_reports_are_those_that_the_jobs_make_of_made_up_facts(
    spark_conf: Path, lake_url: str, settings: LazySettings, tmp_path: Path
) -> None:
    """With STORE_REPORTS, as `make demo-reports` sets it, they are stored."""
    settings.DATA_DIR = tmp_path
    days = [LAST_DAY - timedelta(days=number) for number in reversed(range(DAYS))]
    run_days(Source(lake_url, made_up, is_made_up=True), days, progress=Progress())
    computed = published()
    if os.environ.get("STORE_REPORTS"):
        STORED.write_bytes(lzma.compress(json.dumps(computed, separators=(",", ":")).encode()))
    stored = json.loads(lzma.decompress(STORED.read_bytes()))
    for name, report in computed["reports"].items():
        assert report["columns"] == stored["reports"][name]["columns"]
        assert len(report["rows"]) == len(stored["reports"][name]["rows"])
        for row, expected in zip(report["rows"], stored["reports"][name]["rows"], strict=True):
            assert row == [pytest.approx(each, rel=0.01) if isinstance(each, float) else each for each in expected]
    assert computed == stored | {"reports": computed["reports"]}


def test_two_weeks_are_made_up_once_and_real_tables_stay_unchanged(embedded: None) -> None:
    publish_stored()
    publish_stored()

    last = last_closed_day(timezone.now())
    days = [last - timedelta(days=n) for n in reversed(range(DAYS))]
    run = ReportRun.objects.get()
    assert (run.state, run.error, run.is_made_up, run.from_day, run.to_day) == ("succeeded", "", True, days[0], last)
    assert list(PublishedDay.objects.order_by("day").values_list("day", "is_made_up")) == [(day, True) for day in days]
    assert DataQuality.objects.exists()
    assert not DataQuality.objects.filter(is_ok=False).exists()
    assert not TokenChurn.objects.exclude(unexplained=0).exists()
    for report in (ErrorRate, TokenChurn, TokenLifetime):
        assert report.objects.values("day").distinct().count() == DAYS
    assert Anomaly.objects.filter(day=last, stage="dispatch", platform="ios").exists()
    assert FailureSignature.objects.filter(day=last, is_new=True, source="unknown", first_seen_on=last).exists()
    assert not [model for model in REAL if model._default_manager.exists()]


def test_made_up_facts_are_a_whole_day_each_and_begin_as_the_day_before_ended(lake_url: str) -> None:
    lake, ends = Lake(lake_url), list[tuple[int, ...]]()
    for days_ago in (2, 1, 0):
        day = LAST_DAY - timedelta(days_ago)
        manifest = made_up(day, lake, now=timezone.now(), on_rows=None)
        lake.verify(Kind.FACTS, day, manifest)
        assert all(manifest.rows[table.name] for table in EVENT_TABLES)
        [file] = manifest.tables["active_tokens"]
        stocks = [(row["at_start"], row["at_end"]) for batch in lake.batches(file.path) for row in batch.to_pylist()]
        starts, ended = zip(*stocks, strict=True)
        assert not ends or ends[-1] == starts
        ends.append(ended)


def test_a_server_that_ever_had_reports_gets_no_made_up_ones(embedded: None) -> None:
    reports.publish(date(2026, 11, 20))
    publish_stored()
    assert not ReportRun.objects.filter(is_made_up=True).exists()


def test_a_database_of_an_operator_gets_no_made_up_reports(settings: LazySettings) -> None:
    settings.EMBEDDED = {}
    publish_stored()
    assert not ReportRun.objects.exists()
