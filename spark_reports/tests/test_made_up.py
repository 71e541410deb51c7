"""Made-up reports of a demonstration: complete, marked, apart from real ones, and made again after a killed process."""

from datetime import date, timedelta
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.core.management import CommandError, call_command
from django.utils import timezone

from embedded.demo import reports as demo
from embedded.management.commands.demo import Command as Demo
from notifications.models import Attempt, Notification
from registrations.models import RegistrationEvent
from spark_reports.jobs.tables import EVENT_TABLES
from spark_reports.lake import Kind, Lake
from spark_reports.models import (
    Anomaly,
    DataQuality,
    ErrorRate,
    FailureSignature,
    PublishedDay,
    ReportRun,
    TokenChurn,
    TokenLifetime,
)
from spark_reports.nights.closing import last_closed_day
from spark_reports.running import parts, runs
from spark_reports.running.spark import Submission
from spark_reports.tests import rows
from waku_bridge.models import InboundEnvelope, OutboundReply

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("closed_at_midnight")]
REAL = (Attempt, Notification, RegistrationEvent, InboundEnvelope, OutboundReply)


@pytest.fixture
def data_dir(lake_url: str, tmp_path: Path, settings: LazySettings) -> Path:
    settings.DATA_DIR = tmp_path / "data"
    settings.DATA_DIR.mkdir()
    return settings.DATA_DIR


@pytest.fixture
def embedded(settings: LazySettings) -> None:
    settings.EMBEDDED = {"DATABASE_URL": settings.DATABASE_URL}


@pytest.fixture
def days() -> list[date]:
    last = last_closed_day(timezone.now())
    return [last - timedelta(days=n) for n in reversed(range(demo.DAYS))]


def test_two_weeks_are_made_up_and_computed_once_and_real_tables_stay_unchanged(
    data_dir: Path, spark_conf: Path, embedded: None, days: list[date], lake_url: str
) -> None:
    call_command("demo_reports")
    call_command("demo_reports")

    run = ReportRun.objects.get()
    assert (run.state, run.error, run.is_made_up, run.finding_count) == ("succeeded", "", True, 0)
    assert list(PublishedDay.objects.order_by("day").values_list("day", "is_made_up")) == [(day, True) for day in days]
    assert not DataQuality.objects.filter(is_ok=False).exists()
    assert not TokenChurn.objects.exclude(unexplained=0).exists()
    for report in (ErrorRate, TokenChurn, TokenLifetime):
        assert report.objects.values("day").distinct().count() == demo.DAYS
    assert Anomaly.objects.filter(day=days[-1], stage="dispatch", platform="ios").exists()
    assert FailureSignature.objects.filter(day=days[-1], is_new=True, source="unknown").exists()
    assert not [model for model in REAL if model._default_manager.exists()]
    assert list(data_dir.iterdir()) == []
    assert not Path(lake_url).exists()


def test_made_up_facts_are_a_whole_day_each_and_begin_as_the_day_before_ended(lake_url: str, days: list[date]) -> None:
    lake, fleet = Lake(lake_url), demo.Fleet(days)
    ends: list[int] = []
    for day in days[:3]:
        manifest = fleet.bring(day, lake, now=timezone.now(), on_rows=None)
        lake.verify(Kind.FACTS, day, manifest)
        assert all(manifest.rows[table.name] for table in EVENT_TABLES)
        [file] = manifest.tables["active_tokens"]
        stocks = [(row["at_start"], row["at_end"]) for batch in lake.batches(file.path) for row in batch.to_pylist()]
        assert not ends or ends == [start for start, _ in stocks]
        ends = [end for _, end in stocks]


def test_a_process_that_is_stopped_or_killed_leaves_no_report_and_the_next_begins_again(
    data_dir: Path, java: None, embedded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(_submission: Submission) -> str:
        raise SystemExit(0)

    (data_dir / "made-up-lake").mkdir()
    (data_dir / "made-up-lake" / "of-a-killed-one").touch()
    monkeypatch.setattr(runs, "submit", stopped)
    with pytest.raises(SystemExit):
        demo.make_reports()

    run = ReportRun.objects.get()
    assert (run.state, run.error, run.is_made_up) == ("failed", "The server was stopped.", True)
    assert not PublishedDay.objects.exists()
    assert list(data_dir.iterdir()) == []


def test_a_server_that_ever_had_reports_gets_no_made_up_ones(data_dir: Path, embedded: None) -> None:
    rows.publish(date(2026, 11, 20))
    call_command("demo_reports")
    assert not ReportRun.objects.filter(is_made_up=True).exists()


def test_a_database_of_an_operator_gets_no_made_up_reports(settings: LazySettings) -> None:
    settings.EMBEDDED = {}
    with pytest.raises(CommandError, match="embedded database of a demonstration only"):
        call_command("demo_reports")
    assert Demo().afterwards() == []


def test_a_demonstration_makes_up_reports_once_it_is_ready(settings: LazySettings) -> None:
    settings.EMBEDDED = {"DATABASE_URL": "postgresql://embedded"}
    [process] = Demo().afterwards()
    assert process.command[-1] == "demo_reports"


def test_without_pyspark_the_log_says_the_one_command(
    embedded: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(parts, "PACKAGES", {"no_such_package": "PySpark"})
    call_command("demo_reports")
    assert "`make install-reports` brings them" in capsys.readouterr().out
