"""Faults of runs: a failed run reports one line, publishes nothing, and keeps the earlier reports."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from django.conf import settings as settings_of_server
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from kit.processes.leader import REPORTS
from spark_reports.export.days import export_day
from spark_reports.export.queries import QUERIES
from spark_reports.jobs import tables
from spark_reports.jobs.plan import EARLIER, PLAN, RESULTS, Plan, path_of
from spark_reports.jobs.tables import REPORT_TABLES, SCHEMA_VERSION
from spark_reports.lake import Day, Lake, LakeError, arrow_schema, file_in, scratch_in
from spark_reports.models import ErrorRate, PublishedDay, ReportRun
from spark_reports.nights.nights import published_days
from spark_reports.running import runs
from spark_reports.running.loading import load, read_results
from spark_reports.running.runs import SURVIVAL, RunError, run_reports
from spark_reports.running.spark import Submission
from spark_reports.tests.history import midnight
from tests.rig import rows

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("closed_at_midnight")]
State = ReportRun.State
RATE = {
    "hour": None, "stage": "dispatch", "platform": "ios", "app_topic": "", "bridge": "waku",
    "outcome": "dead", "code": "gone",
    "is_failure": True, "events": 1, "total": 2, "rate": 0.5, "rate_low": 0.1, "rate_high": 0.9,
    "usual_rate": None, "change": None, "z_score": None, "usual_days": 0,
}  # fmt: skip


@pytest.fixture
def lake(lake_url):
    return Lake(lake_url)


def results_of(day: date, rates: Sequence[dict[str, Any]] = ()) -> dict[str, pa.Table]:
    """Return the results of a run as Spark gives them, with rows in one of them."""
    schemas = {report.name: arrow_schema(report, day=True) for report in REPORT_TABLES}
    nullable = pa.schema([column.with_nullable(True) for column in schemas["error_rates"]])
    rows = pa.Table.from_pylist([{"day": day, **rate} for rate in rates], nullable)
    return {name: schema.empty_table() for name, schema in schemas.items()} | {"error_rates": rows}


def write_results(folder: Path, results: dict[str, pa.Table]) -> None:
    (folder / RESULTS).mkdir()
    for report in REPORT_TABLES:
        if report.name in results:
            pq.write_table(results[report.name], file_in(folder / RESULTS, report))


def facts_of(day: date) -> dict[date, Day]:
    return {day: Day(day, "f00d", SCHEMA_VERSION, "", True, day, {"attempts": 7}, {"attempts": "f00d"})}


def publish(day: date, rates: Sequence[dict[str, Any]], *, is_made_up: bool = False) -> ReportRun:
    now = timezone.now()
    run = ReportRun.objects.create(from_day=day, to_day=day, started_at=now, seen_at=now, is_made_up=is_made_up)
    load(results_of(day, rates), facts_of(day), run, now=timezone.now())
    return run


@pytest.fixture
def spark_gives(monkeypatch):
    """Return a list to which each run adds its plan and the earlier error rates that Spark would get."""
    given: list[tuple[Plan, list[dict[str, Any]]]] = []

    def submit(submission: Submission) -> str:
        plan = Plan.from_json((submission.folder / PLAN).read_text())
        before = pq.read_table(file_in(submission.folder / EARLIER, tables.ERROR_RATES)).to_pylist()
        given.append((plan, before))
        write_results(submission.folder, results_of(plan.dates[0], [RATE]))
        submission.on_line("")
        return ""

    monkeypatch.setattr(runs, "submit", submit)
    monkeypatch.setattr(runs, "spark_home", Path)
    return given


# Publishing -----------------------------------------------------------------------------------------------------------
def test_results_reach_postgresql_and_name_their_facts_and_code(day):
    rates = [RATE, RATE | {"code": 'a "quoted", code', "z_score": 4.25}]
    run = publish(day, rates)

    assert list(ErrorRate.objects.order_by("pk").values(*RATE)) == rates
    published = PublishedDay.objects.get()
    assert (run.result_count, published.event_count) == (2, 7)
    version, jobs = published.code_version.split()
    assert (version, len(jobs)) == (settings_of_server.VERSION, 12)
    assert published.facts_digest == facts_of(day)[day].digest


def test_the_first_real_day_replaces_all_made_up_ones_and_is_replaced_by_none(day):
    for days in (1, 2):
        publish(day - timedelta(days=days), [RATE], is_made_up=True)
    publish(day, [RATE | {"events": 2}])
    for made_up in (day, day - timedelta(days=1)):
        with pytest.raises(LakeError, match="reports of real days"):
            publish(made_up, [RATE | {"events": 9}], is_made_up=True)

    assert list(PublishedDay.objects.values_list("day", "is_made_up")) == [(day, False)]
    assert list(ErrorRate.objects.values_list("day", "events")) == [(day, 2)]


def test_a_day_computed_again_replaces_the_day_and_no_other_and_a_failing_load_nothing(day):
    publish(day - timedelta(days=1), [RATE])
    publish(day, [RATE, RATE])
    publish(day, [RATE | {"events": 9}])
    with pytest.raises(psycopg.errors.CheckViolation):  # found by PostgreSQL only
        publish(day, [RATE | {"events": 7}, RATE | {"hour": -1}])

    found = ErrorRate.objects.order_by("day").values_list("day", "events")
    assert list(found) == [(day - timedelta(days=1), 1), (day, 9)]


def test_an_unfinished_report_other_columns_or_a_null_where_none_may_be_publish_nothing(day, tmp_path):
    whole = results_of(day, [RATE])
    for number, (results, words) in enumerate([
        ({name: table for name, table in whole.items() if name != "latency"}, "Spark did not finish latency"),
        (results_of(day, [RATE | {"total": None}]), "total is null in 1 rows"),
        (whole | {"error_rates": whole["error_rates"].drop_columns(["total"])}, "gave error_rates other columns"),
    ]):  # fmt: skip
        (folder := tmp_path / str(number)).mkdir()
        write_results(folder, results)
        with pytest.raises(LakeError, match=words):
            read_results(folder)


# Stale days -----------------------------------------------------------------------------------------------------------
def stale(day: date) -> list[int]:
    """Return for each stale day the number of days from it to this day."""
    found = published_days(day - timedelta(days=40), day).filter(is_stale=True).order_by("day")
    return [(day - each).days for each in found.values_list("day", flat=True)]


def test_reports_are_stale_once_a_day_that_they_rest_on_is_exported_again(lake, day):
    days = {n: day - timedelta(days=n) for n in (31, 30, 10, 0)}

    def stale_after(*published: int) -> list[int]:
        for n in published:
            publish(days[n], [RATE])
        return stale(day)

    assert stale_after(*days) == []
    export_day(days[30], lake, now=timezone.now())
    assert stale(day) == [30, 10, 0]
    assert stale_after(0) == [30, 10]  # before the reports of the renewed day itself
    assert stale_after(30) == [10, 0]
    assert stale_after(10, 0) == []

    publish(days[30], [RATE])  # of the same facts
    export_day(days[31], lake, now=timezone.now())
    assert stale(day) == [31, 30, 10], "no report looks back further than thirty days"


def test_reports_are_stale_once_a_day_that_was_missing_is_there(day):
    for n in (2, 0, 1):
        publish(day - timedelta(days=n), [RATE])
    assert stale(day) == [0]


def test_reports_of_a_restored_database_are_stale_if_the_lake_has_other_facts(lake, day, spark_gives):
    """The database has forgotten an export of the day before yesterday."""
    export_day(day - timedelta(days=2), lake, now=timezone.now())
    for n in (3, 2, 1):
        publish(day - timedelta(days=n), [RATE])
    run_reports(day, day)
    assert stale(day) == [2, 1]


# Before Spark ---------------------------------------------------------------------------------------------------------
def failing(first: date, last: date | None = None) -> str:
    with pytest.raises(RunError) as error:
        run_reports(first, last or first)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_day_that_is_not_over_is_refused(lake_url, day):
    assert "is not over" in failing(day + timedelta(days=1))
    assert not ReportRun.objects.exists()


@contextmanager
def another_run() -> Iterator[None]:
    with psycopg.connect(**connection.get_connection_params() | {"cursor_factory": None}) as other:
        other.execute("SELECT pg_advisory_lock(%s)", [REPORTS])
        yield
        other.execute("SELECT pg_advisory_unlock(%s)", [REPORTS])  # a closed connection is noticed a moment later


def test_runs_and_exports_never_overlap(lake, day):
    with another_run():
        assert failing(day) == "Another run or export is under way."
        with pytest.raises(CommandError, match="Another run or export is under way"):
            call_command("export_events", "--replace")
    assert not ReportRun.objects.exists()
    assert lake.day(day) is None

    call_command("export_events")
    assert lake.day(day) is not None


def test_the_next_run_closes_a_killed_one_and_removes_its_files(lake, day, no_java, settings, tmp_path):
    settings.DATA_DIR = tmp_path / "data"
    incoming = Path(lake.url, "incoming", "dead")
    for folder in (incoming, scratch_in(settings.DATA_DIR) / "blockmgr-7"):
        folder.mkdir(parents=True)
        (folder / "half").touch()
    now = timezone.now()
    killed = ReportRun.objects.create(from_day=day, to_day=day, started_at=now, seen_at=now)
    failing(day)

    killed.refresh_from_db()
    assert (killed.state, killed.error) == (State.FAILED, "Its process was killed.")
    assert not incoming.parent.exists()
    assert not scratch_in(settings.DATA_DIR).exists()


def test_a_missing_java_is_reported_in_one_line_and_old_reports_stay(lake_url, day, no_java):
    publish(day, [RATE])

    assert failing(day).startswith("Java 17 or 21 is missing")
    run = ReportRun.objects.order_by("pk").last()
    assert run is not None
    assert (run.state, run.step) == (State.FAILED, ReportRun.Step.COMPUTE)
    assert list(ErrorRate.objects.values_list("events", flat=True)) == [1]
    with pytest.raises(CommandError, match="Java 17 or 21 is missing"):
        call_command("run_reports")
    with pytest.raises(CommandError, match="Give either --day or --from"):
        call_command("run_reports", "--day", "2026-11-20", "--from", "2026-11-20")


def looked_back(plan: Plan, day: date) -> dict[str, tuple[int, ...]]:
    return {report: tuple(by_day[day.isoformat()]) for report, by_day in plan.history.items() if report != SURVIVAL}


def test_a_run_looks_back_to_the_reports_of_its_schema_and_a_missing_day_is_a_finding(lake_url, day, spark_gives):
    """Survival has no such finding, because each day has the whole history of its tokens."""
    for n in (9, 4, 3, 1):
        publish(day - timedelta(days=n), [RATE | {"events": n}])
    PublishedDay.objects.filter(day=day - timedelta(days=3)).update(schema_version=SCHEMA_VERSION - 1)
    run_reports(day, day)
    [(plan, before)] = spark_gives

    assert [(row["events"], row["day"]) for row in before] == [(n, day - timedelta(days=n)) for n in (4, 1)]
    expected = {"error_rates": (7, 2), "token_churn": (7, 2), "failure_signatures": (9, 3), "unknown_errors": (8, 0)}
    assert looked_back(plan, day) == expected
    expected_days, found = plan.history[SURVIVAL][day.isoformat()]
    assert expected_days == found > 7 * (tables.LIFETIME_WEEKS - 1)


def test_survival_without_all_events_says_so(lake_url, day, spark_gives, settings):
    settings.EVENT_RETENTION_DAYS = 30  # cohorts began before it
    run_reports(day, day)
    [(plan, _)] = spark_gives
    assert date.fromisoformat(plan.history_from[day.isoformat()]) == timezone.now().date() - timedelta(days=29)
    assert plan.history[SURVIVAL][day.isoformat()][1] == 29


@pytest.mark.parametrize(("is_made_up", "expected"), [(False, (3, 3)), (True, (0, 0))])
def test_the_days_since_the_first_real_reports_are_expected_as_history(
    lake_url, day, spark_gives, is_made_up, expected
):
    for n in (3, 2, 1):
        publish(day - timedelta(days=n), [RATE], is_made_up=is_made_up)
    run_reports(day, day)
    assert looked_back(spark_gives[0][0], day)["error_rates"] == expected


@pytest.mark.parametrize("command", ["run_reports", "export_events"])
def test_commands_report_in_one_line_that_the_lake_cannot_be_written(settings, tmp_path, command):
    (tmp_path / "file").touch()
    settings.REPORTS_LAKE = str(tmp_path / "file" / "lake")
    with pytest.raises(CommandError, match=r"^The lake failed: .*Not a directory") as failed:
        call_command(command)
    assert [run.error for run in ReportRun.objects.all()] == [str(failed.value)] * (command == "run_reports")


def test_altered_facts_are_reported_before_spark_starts_and_those_of_an_earlier_day_are_left_out(
    lake, day, spark_gives
):
    yesterday = day - timedelta(days=1)
    call_command("export_events", "--from", str(yesterday))
    for each, spared in ((day, yesterday), (yesterday, day)):
        path = Path(lake.url, path_of("unknown_errors", each))
        metadata = pq.read_schema(path).metadata
        pq.write_table(pq.read_table(path, partitioning=None).replace_schema_metadata(metadata), path, version="1.0")
        assert failing(each).endswith(f"was altered. Export it again: manage.py export_events --day {each} --replace")
        run_reports(spared, spared)
        call_command("export_events", "--day", str(each), "--replace")
    snapshots = [plan.snapshots for plan, _ in spark_gives]
    assert snapshots == [[str(yesterday)], [str(day)]]


def test_a_run_removes_what_is_beyond_the_retention_of_the_lake(lake, day, settings, spark_gives):
    settings.EVENT_RETENTION_DAYS = 60
    for n in (50, 35):
        export_day(day - timedelta(n), lake, now=timezone.now())
    settings.EVENT_RETENTION_DAYS = 2
    run_reports(day, day)

    assert [found.day for found in lake.days(date.min, day)] == [day - timedelta(days=35), day]


# Spark and PostgreSQL -------------------------------------------------------------------------------------------------
def test_a_failing_spark_names_its_cause_and_publishes_nothing(lake_url, day, settings, java):
    publish(day, [RATE])
    settings.SPARK_DRIVER_MEMORY = "nonsense"

    assert failing(day).startswith("Spark failed: ")
    run = ReportRun.objects.order_by("pk").last()
    assert run is not None
    assert run.log_excerpt
    assert ErrorRate.objects.count() == 1


@pytest.mark.parametrize("command", ["run_reports", "export_events"])
def test_a_database_that_goes_away_is_reported_in_one_line(lake, day, command, monkeypatch):
    rows.make_envelope(at=midnight(day))
    monkeypatch.setitem(QUERIES, "replies", lambda _day: "SELECT pg_terminate_backend(pg_backend_pid())")
    with pytest.raises(CommandError, match=r"The database failed \((OperationalError|AdminShutdown)\)"):
        call_command(command)
    connection.close()
    assert lake.day(day) is None
