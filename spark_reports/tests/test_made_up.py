"""Made-up reports of a demonstration: those of the real jobs, complete, marked, and apart from real ones."""

import json
import lzma
import os
from datetime import date, timedelta
from itertools import compress
from typing import Any
from uuid import UUID

import pytest
from django.conf import LazySettings
from django.utils import timezone
from pyspark.sql import SparkSession

from embedded.demo.reports import STORED, publish_stored
from notifications.models import Attempt, Notification
from registrations.models import RegistrationEvent
from spark_reports.export import queries
from spark_reports.export.days import export_day
from spark_reports.jobs.nightly import Nightly
from spark_reports.lake import Day, Lake
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
from spark_reports.nights.nights import last_closed_day
from spark_reports.running import runs
from spark_reports.running.runs import Source, run_days
from spark_reports.running.spark import Submission
from spark_reports.tests.history import History, midnight
from tests.rig import reports
from waku_bridge.models import InboundEnvelope, OutboundReply

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("closed_at_midnight")]
REAL = (Attempt, Notification, RegistrationEvent, InboundEnvelope, OutboundReply)
LAST_DAY, DAYS = date(2026, 11, 22), 14
# Columns of the heaviest actors that depend on random keys.
UNSTABLE = {"actor", "attempts", "refused"}


@pytest.fixture
def embedded(settings: LazySettings) -> None:
    settings.EMBEDDED = {"DATABASE_URL": settings.DATABASE_URL}


def make_history(days: list[date]) -> None:
    """Make days of a small fleet, and a day before. The last one is unlike the others."""
    history, phones = History(seed=1), list[UUID]()
    for day in (days[0] - timedelta(days=1), *days):
        phones += history.register(midnight(day) + timedelta(hours=1), 12)
        history.add_day(day, tries=(2, 3) if day == days[-1] else (1, 1, 1, 1, 2))
        history.kill(midnight(day) + timedelta(hours=20), phones[:4])
        del phones[:4]
    history.add_unknown_error(midnight(days[-1]) + timedelta(hours=3), 23)


def next_night(day: date, lake: Lake, **_options: Any) -> Day:
    return export_day(day, lake, now=midnight(day) + timedelta(hours=26))


def published() -> dict[str, Any]:
    """Return the reports that are in the database, in the form in which they are stored."""
    days = PublishedDay.objects.order_by("day").values_list("day", "event_count")
    reports = {}
    for model in Report.__subclasses__():
        columns = [field.name for field in model._meta.fields if not field.primary_key]
        found = model._default_manager.order_by(*columns).values_list(*columns)
        reports[model.__name__] = {"columns": columns, "rows": [list(map(plain, row)) for row in found]}
    return {"events": {str(day): events for day, events in days}, "reports": reports}


def plain(value: Any) -> Any:
    if isinstance(value, date):
        return value.isoformat()
    return float(f"{value:.3g}") if isinstance(value, float) else value


def stable(report: dict[str, Any]) -> list[Any]:
    """Return the values of a report that do not depend on random keys."""
    is_stable = [name not in UNSTABLE or "rank" not in report["columns"] for name in report["columns"]]
    return [value for row in report["rows"] for value in compress(row, is_stable)]


@pytest.fixture
def computed_here(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute in the session of the tests, as a Spark of its own takes half a minute to start and to compile."""

    def submit(submission: Submission) -> str:
        Nightly(spark, submission.lake, submission.folder).run()
        return ""

    monkeypatch.setattr(runs, "submit", submit)


def test_the_stored_reports_are_those_that_the_jobs_make_of_made_up_days(
    computed_here: None, lake_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With STORE_REPORTS, as `make demo-reports` sets it, they are stored."""
    monkeypatch.setattr(queries, "CLOSED_AFTER", timedelta(days=36_500))  # or else old days have no unknown errors
    days = [LAST_DAY - timedelta(days=number) for number in reversed(range(DAYS))]
    make_history(days)
    run_days(Source(lake_url, next_night, is_made_up=True), days)
    computed = published()
    if os.environ.get("STORE_REPORTS"):
        STORED.write_bytes(lzma.compress(json.dumps(computed, separators=(",", ":")).encode()))
    stored = json.loads(lzma.decompress(STORED.read_bytes()))
    assert computed["events"] == stored["events"]
    for name, report in computed["reports"].items():
        assert report["columns"] == stored["reports"][name]["columns"]
        expected = stable(stored["reports"][name])
        assert stable(report) == [
            pytest.approx(each, rel=0.01) if isinstance(each, float) else each for each in expected
        ]


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


def test_a_server_that_ever_had_reports_gets_no_made_up_ones(embedded: None) -> None:
    reports.publish(date(2026, 11, 20))
    publish_stored()
    assert not ReportRun.objects.filter(is_made_up=True).exists()
