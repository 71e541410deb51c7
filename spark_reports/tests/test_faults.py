"""What can go wrong with a run: it says so in one line, publishes nothing, and leaves what was good."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from django.conf import LazySettings
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from kit.processes.leader import REPORTS
from spark_reports.export import last_closed_day
from spark_reports.jobs import tables
from spark_reports.jobs.tables import REPORT_TABLES
from spark_reports.lake import Kind, Lake, LakeError, arrow_schema
from spark_reports.models import ErrorRate, PublishedDay, ReportRun
from spark_reports.running.loading import load, publish_in_lake, read_results
from spark_reports.running.runs import SURVIVAL, Progress, RunError, make_plan, run_reports
from tests import factories

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("closed_at_midnight")]
State = ReportRun.State
RATE = {
    "hour": None, "stage": "dispatch", "platform": "ios", "app_topic": "", "bridge": "waku",
    "outcome": "dead", "code": "gone",
    "is_failure": True, "events": 1, "total": 2, "rate": 0.5, "rate_low": 0.1, "rate_high": 0.9,
    "usual_rate": None, "change": None, "z_score": None, "usual_days": 0,
}  # fmt: skip


@pytest.fixture
def day() -> date:
    return last_closed_day(timezone.now())


@pytest.fixture
def lake(lake_url: str) -> Lake:
    return Lake(lake_url)


def write_results(lake: Lake, output: str, day: date, rates: list[dict[str, Any]]) -> None:
    """Write what Spark leaves behind: one folder per report, with rows in one of them."""
    for report in REPORT_TABLES:
        with lake.writing(f"{output}/{report.name}/_SUCCESS"):
            pass
    rows = pa.Table.from_pylist(rates, pa.schema([f.with_nullable(True) for f in arrow_schema(tables.ERROR_RATES)]))
    with lake.writing(f"{output}/error_rates/day={day}/part-0.parquet") as out:
        pq.write_table(rows, out)


def publish(lake: Lake, day: date, rates: list[dict[str, Any]], name: str = "1-a") -> ReportRun:
    write_results(lake, f"incoming/{name}", day, rates)
    run = ReportRun.objects.create(from_day=day, to_day=day, started_at=timezone.now(), seen_at=timezone.now())
    results = read_results(lake, f"incoming/{name}", [day])
    publish_in_lake(lake, results, name, now=timezone.now())
    load(results, {day: 7}, run, now=timezone.now())
    return run


# Publishing -----------------------------------------------------------------------------------------------------------
def test_results_reach_postgresql_and_the_lake(lake: Lake, day: date) -> None:
    run = publish(lake, day, [RATE, RATE | {"code": 'a "quoted", code', "z_score": 4.25}])

    assert list(ErrorRate.objects.order_by("pk").values(*RATE)) == [
        RATE,
        RATE | {"code": 'a "quoted", code', "z_score": 4.25},
    ]
    assert (run.result_count, PublishedDay.objects.get().event_count) == (2, 7)
    manifest = lake.manifest(Kind.REPORTS, day)
    assert manifest is not None
    lake.verify(Kind.REPORTS, day, manifest)


def test_a_day_computed_again_replaces_the_day_and_no_other(lake: Lake, day: date) -> None:
    publish(lake, day - timedelta(days=1), [RATE], "1-a")
    publish(lake, day, [RATE, RATE], "2-b")
    publish(lake, day, [RATE | {"events": 9}], "3-c")

    assert list(ErrorRate.objects.order_by("day").values_list("day", "events")) == [
        (day - timedelta(days=1), 1),
        (day, 9),
    ]
    assert len(list(Path(lake.url).glob(f"reports/*/day={day}/*"))) == 1


def test_an_unfinished_report_publishes_nothing(lake: Lake, day: date) -> None:
    write_results(lake, "incoming/1-a", day, [RATE])
    (Path(lake.url) / "incoming/1-a/latency/_SUCCESS").unlink()

    with pytest.raises(LakeError, match="Spark did not finish latency"):
        read_results(lake, "incoming/1-a", [day])


def test_a_null_where_none_may_be_publishes_nothing(lake: Lake, day: date) -> None:
    write_results(lake, "incoming/1-a", day, [RATE | {"total": None}])

    with pytest.raises(LakeError, match="total is null in 1 rows"):
        read_results(lake, "incoming/1-a", [day])


def test_a_failing_load_leaves_the_old_rows(lake: Lake, day: date) -> None:
    publish(lake, day, [RATE])
    with pytest.raises(psycopg.errors.CheckViolation):  # found by PostgreSQL only
        publish(lake, day, [RATE | {"events": 9}, RATE | {"hour": -1}], "2-b")

    assert list(ErrorRate.objects.values_list("events", flat=True)) == [1]


# Before Spark ---------------------------------------------------------------------------------------------------------
def failing(first: date, last: date | None = None) -> str:
    with pytest.raises(RunError) as error:
        run_reports(first, last or first, progress=Progress())
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_day_that_is_not_over_is_refused(lake_url: str, day: date) -> None:
    assert "is not over" in failing(day + timedelta(days=1))
    assert not ReportRun.objects.exists()


@contextmanager
def another_run() -> Iterator[None]:
    with psycopg.connect(**connection.get_connection_params() | {"cursor_factory": None}) as other:
        other.execute("SELECT pg_advisory_lock(%s)", [REPORTS])
        yield
        other.execute(
            "SELECT pg_advisory_unlock(%s)", [REPORTS]
        )  # PostgreSQL notices a closed connection a moment later


def test_two_runs_never_overlap(lake_url: str, day: date) -> None:
    with another_run():
        assert failing(day) == "Another run or export is under way."
    assert not ReportRun.objects.exists()


def test_an_export_by_hand_is_refused_while_a_run_goes_on(lake: Lake, day: date) -> None:
    """Publishing a day removes the files of others: those that a run reads, or writes, must stay."""
    with another_run(), pytest.raises(CommandError, match="Another run or export is under way"):
        call_command("export_events", "--replace")
    assert lake.manifest(Kind.FACTS, day) is None

    call_command("export_events")
    assert lake.manifest(Kind.FACTS, day) is not None


def test_a_run_whose_process_was_killed_is_closed_by_the_next(lake_url: str, day: date, no_java: None) -> None:
    now = timezone.now()
    killed = ReportRun.objects.create(from_day=day, to_day=day, started_at=now, seen_at=now)
    failing(day)

    killed.refresh_from_db()
    assert (killed.state, killed.error) == (State.FAILED, "Its process was killed.")


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))


def test_no_java_is_said_in_one_line_and_old_reports_stay(lake: Lake, day: date, no_java: None) -> None:
    publish(lake, day, [RATE])

    assert failing(day).startswith("Java 17 or 21 is missing")
    run = ReportRun.objects.order_by("pk").last()
    assert run is not None
    assert (run.state, run.step) == (State.FAILED, ReportRun.Step.COMPUTE)
    assert list(ErrorRate.objects.values_list("events", flat=True)) == [1]


def test_what_a_killed_run_left_in_the_lake_goes_with_the_next(lake: Lake, day: date, no_java: None) -> None:
    with lake.writing("incoming/7-dead/error_rates/part-0.parquet") as out:
        out.write(b"half a file")
    failing(day)

    assert not list((Path(lake.url) / "incoming").glob("7-dead/**/*"))


@pytest.fixture
def no_lake(settings: LazySettings, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings.REPORTS_LAKE = str(tmp_path / "file" / "lake")


def test_a_missing_day_is_a_finding_of_every_figure_that_looked_back_to_it(
    lake: Lake, day: date, no_java: None
) -> None:
    """Survival is none of them: each day has the whole history of its tokens."""
    for days in (9, 4, 3, 1):
        publish(lake, day - timedelta(days=days), [RATE])
    failing(day)
    manifest = lake.manifest(Kind.FACTS, day)
    assert manifest is not None

    history = make_plan(lake, {day: manifest}, "incoming/x").history

    assert {report: tuple(by_day[day.isoformat()]) for report, by_day in history.items() if report != SURVIVAL} == {
        "error_rates": (7, 3),
        "token_churn": (7, 3),
        "failure_signatures": (9, 4),
    }
    expected, found = history[SURVIVAL][day.isoformat()]
    assert expected == found > 7 * (tables.LIFETIME_WEEKS - 1)


def test_nothing_is_expected_of_the_days_before_the_first(lake: Lake, day: date, no_java: None) -> None:
    failing(day)
    manifest = lake.manifest(Kind.FACTS, day)
    assert manifest is not None
    history = make_plan(lake, {day: manifest}, "incoming/x").history
    assert {tuple(history[name][day.isoformat()]) for name in ("error_rates", "failure_signatures")} == {(0, 0)}


def test_survival_of_cohorts_from_before_retention_is_a_finding(
    lake: Lake, day: date, no_java: None, settings: LazySettings
) -> None:
    settings.EVENT_RETENTION_DAYS = 30
    failing(day)
    manifest = lake.manifest(Kind.FACTS, day)
    assert manifest is not None
    plan = make_plan(lake, {day: manifest}, "incoming/x")
    assert date.fromisoformat(plan.history_from[day.isoformat()]) == timezone.now().date() - timedelta(days=29)
    assert plan.history[SURVIVAL][day.isoformat()][1] == 29


def test_a_lake_that_takes_nothing_is_told_in_one_line(no_lake: None, day: date) -> None:
    message = failing(day)
    assert message.startswith("The lake failed: ")
    assert ReportRun.objects.get().error == message


@pytest.mark.parametrize("command", ["run_reports", "export_events"])
def test_commands_tell_in_one_line_that_the_lake_takes_nothing(no_lake: None, command: str) -> None:
    with pytest.raises(CommandError, match=r"^The lake failed: .*Not a directory"):
        call_command(command)


def test_a_damaged_export_is_said_before_spark_starts(lake: Lake, day: date, no_java: None) -> None:
    factories.make_envelope(at=timezone.now() - timedelta(days=1, hours=timezone.now().hour))
    failing(day)
    cut_off(lake, Kind.FACTS, day, "envelopes")

    assert "is cut off" in failing(day)


def cut_off(lake: Lake, kind: Kind, day: date, table: str) -> None:
    manifest = lake.manifest(kind, day)
    assert manifest is not None
    path = Path(lake.url) / manifest.tables[table][0].path
    path.write_bytes(path.read_bytes()[:-9])


def test_a_damaged_file_of_an_earlier_day_is_said_before_spark_starts(lake: Lake, day: date, no_java: None) -> None:
    yesterday = day - timedelta(days=1)
    publish(lake, yesterday, [RATE])
    cut_off(lake, Kind.REPORTS, yesterday, "error_rates")
    assert failing(day).endswith(f"is cut off or grown. Compute it again: manage.py run_reports --day {yesterday}")

    publish(lake, yesterday, [RATE])
    failing(yesterday)
    cut_off(lake, Kind.FACTS, yesterday, "envelopes")  # not read again
    assert failing(day).startswith("Java")
    cut_off(lake, Kind.FACTS, yesterday, "unknown_errors")
    assert f"export_events --day {yesterday} --replace" in failing(day)


def age(lake: Lake, kind: Kind, day: date) -> None:
    """Change a manifest as if an older version had written it."""
    path = Path(lake.url) / "manifests" / kind / f"{day}.json"
    path.write_text(path.read_text().replace(f'"schema_version": {tables.SCHEMA_VERSION}', '"schema_version": 0'))


def test_earlier_days_of_an_older_schema_are_not_compared_with(lake: Lake, day: date, no_java: None) -> None:
    yesterday = day - timedelta(days=1)
    publish(lake, yesterday, [RATE])
    failing(yesterday)
    failing(day)
    manifest = lake.manifest(Kind.FACTS, day)
    assert manifest is not None
    plan = make_plan(lake, {day: manifest}, "incoming/x")
    assert (len(plan.reports["error_rates"]), len(plan.facts["unknown_errors"])) == (1, 2)

    age(lake, Kind.REPORTS, yesterday)
    age(lake, Kind.FACTS, yesterday)
    plan = make_plan(lake, {day: manifest}, "incoming/x")
    assert (len(plan.reports["error_rates"]), list(plan.facts["unknown_errors"])) == (0, [day.isoformat()])


def test_an_export_of_an_older_schema_is_made_again(lake: Lake, day: date, no_java: None) -> None:
    failing(day)
    age(lake, Kind.FACTS, day)
    old = lake.manifest(Kind.FACTS, day)
    assert old is not None
    with pytest.raises(LakeError, match=f"written with schema 0, and this server reads {tables.SCHEMA_VERSION}"):
        lake.verify(Kind.FACTS, day, old)

    assert failing(day).startswith("Java")
    assert lake.manifest(Kind.FACTS, day) != old


def test_a_file_listed_twice_is_refused(lake: Lake, day: date, no_java: None) -> None:
    factories.make_envelope(at=timezone.now() - timedelta(days=1, hours=timezone.now().hour))
    failing(day)
    manifest = lake.manifest(Kind.FACTS, day)
    assert manifest is not None
    doubled = {name: [*files, *files] for name, files in manifest.tables.items()}
    lake.publish(Kind.FACTS, day, replace(manifest, tables=doubled))

    assert "lists the same rows twice" in failing(day)


# Spark itself ---------------------------------------------------------------------------------------------------------
def test_a_failing_spark_names_its_cause_and_publishes_nothing(
    lake: Lake, day: date, settings: LazySettings, spark_conf: Path
) -> None:
    publish(lake, day, [RATE])
    settings.SPARK_MASTER = "spark://127.0.0.1:1"  # nobody listens there
    (spark_conf / "spark-defaults.conf").write_text("spark.deploy.nonsense 1\nspark.driver.memory nonsense\n")
    settings.SPARK_DRIVER_MEMORY = "nonsense"

    message = failing(day)
    assert message.startswith("Spark failed: ")
    run = ReportRun.objects.order_by("pk").last()
    assert run is not None
    assert run.log_excerpt
    assert ErrorRate.objects.count() == 1


def test_the_command_says_what_is_wrong(lake_url: str, no_java: None) -> None:
    with pytest.raises(CommandError, match="Java 17 or 21 is missing"):
        call_command("run_reports")
    with pytest.raises(CommandError, match="Give either --day or --from"):
        call_command("run_reports", "--day", "2026-11-20", "--from", "2026-11-20")


@pytest.mark.parametrize("of_the_day", [True, False])
@pytest.mark.parametrize("command", ["run_reports", "export_events"])
def test_a_database_that_goes_away_is_told_in_one_line(
    lake: Lake, day: date, command: str, of_the_day: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session is ended from outside when the export begins to read: that of the day, or one that reads a part."""

    def end_session(*_args: object, **_options: object) -> None:
        if of_the_day is not (current_thread() is main_thread()):
            return
        with psycopg.connect(**connection.get_connection_params()) as other:
            other.execute("SELECT pg_terminate_backend(%s)", [connection.connection.info.backend_pid])

    monkeypatch.setattr("spark_reports.export.sessions._hand_over", end_session)
    with pytest.raises(CommandError, match=r"The database failed \((OperationalError|AdminShutdown)\)"):
        call_command(command)
    connection.close()
    assert lake.manifest(Kind.FACTS, day) is None
