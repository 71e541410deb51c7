"""Faults of runs: a failed run reports one line, publishes nothing, and keeps the earlier reports."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

import psutil
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from django.conf import LazySettings
from django.conf import settings as settings_of_server
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from kit.processes.leader import REPORTS
from spark_reports.export.days import export_day
from spark_reports.jobs import tables
from spark_reports.jobs.plan import Plan
from spark_reports.jobs.sources import read
from spark_reports.jobs.tables import REPORT_TABLES, SCHEMA_VERSION
from spark_reports.lake import File, Kind, Lake, LakeError, Manifest, arrow_schema
from spark_reports.models import ErrorRate, PublishedDay, ReportRun
from spark_reports.nights.nights import published_days
from spark_reports.running import runs
from spark_reports.running.loading import load, publish_in_lake, read_results
from spark_reports.running.runs import SURVIVAL, Progress, RunError, make_plan, run_reports
from spark_reports.running.spark import Submission, scratch_in
from spark_reports.tests.history import History, midnight
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
def lake(lake_url: str) -> Lake:
    return Lake(lake_url)


def manifest_of(lake: Lake, kind: Kind, day: date) -> Manifest:
    manifest = lake.manifest(kind, day)
    assert manifest is not None
    return manifest


def write_results(lake: Lake, output: str, day: date, rates: list[dict[str, Any]]) -> None:
    """Write results as Spark does: one folder per report, with rows in one of them."""
    for report in REPORT_TABLES:
        with lake.writing(f"{output}/{report.name}/_SUCCESS"):
            pass
    rows = pa.Table.from_pylist(rates, pa.schema([f.with_nullable(True) for f in arrow_schema(tables.ERROR_RATES)]))
    with lake.writing(f"{output}/error_rates/day={day}/part-0.parquet") as out:
        pq.write_table(rows, out)


def publish(
    lake: Lake, day: date, rates: list[dict[str, Any]], name: str = "1-a", *, is_made_up: bool = False
) -> ReportRun:
    write_results(lake, f"incoming/{name}", day, rates)
    now = timezone.now()
    run = ReportRun.objects.create(from_day=day, to_day=day, started_at=now, seen_at=now, is_made_up=is_made_up)
    results = read_results(lake, f"incoming/{name}", [day])
    facts = {day: Manifest(day.isoformat(), SCHEMA_VERSION, "", "", tables={"attempts": [File("", 7, 1, "f00d")]})}
    publish_in_lake(lake, results, facts, name, now=timezone.now())
    load(results, facts, run, now=timezone.now())
    return run


# Publishing -----------------------------------------------------------------------------------------------------------
def test_results_reach_postgresql_and_the_lake(lake: Lake, day: date) -> None:
    run = publish(lake, day, [RATE, RATE | {"code": 'a "quoted", code', "z_score": 4.25}])

    assert list(ErrorRate.objects.order_by("pk").values(*RATE)) == [
        RATE,
        RATE | {"code": 'a "quoted", code', "z_score": 4.25},
    ]
    assert (run.result_count, PublishedDay.objects.get().event_count) == (2, 7)
    manifest = manifest_of(lake, Kind.REPORTS, day)
    lake.verify(Kind.REPORTS, day, manifest)


def test_reports_name_the_facts_and_the_code_that_they_were_made_of(lake: Lake, day: date) -> None:
    publish(lake, day, [RATE])
    manifest, published = manifest_of(lake, Kind.REPORTS, day), PublishedDay.objects.get()

    version, jobs = manifest.code_version.split()
    assert (version, len(jobs), len(manifest.facts_digest)) == (settings_of_server.VERSION, 12, 64)
    assert (published.facts_digest, published.code_version) == (manifest.facts_digest, manifest.code_version)


def test_files_are_on_the_disk_before_a_manifest_names_them(
    lake: Lake, day: date, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    export_day(day, lake, now=midnight(day + timedelta(days=2)), on_rows=lambda _table, _rows: None)
    publish(lake, day, [RATE])

    for kind in Kind:
        named = Path(lake.url, "manifests", kind, f"{day}.json")
        files = [Path(lake.url, path) for paths in manifest_of(lake, kind, day).paths.values() for path in paths]
        assert files
        for path in [path for file in files for path in (file, file.parent, file.parents[1])]:
            assert synced.index(path.stat().st_ino) < synced.index(named.stat().st_ino), path
        assert named.parent.stat().st_ino in synced[synced.index(named.stat().st_ino) :]


def test_facts_that_differ_in_one_file_have_another_digest() -> None:
    first, second = File("a", 1, 1, "aa"), File("b", 1, 1, "bb")

    def digest(*files: File) -> str:
        return Manifest("2026-11-20", SCHEMA_VERSION, "", "", tables={"attempts": files}).digest

    assert digest(first, second) == digest(second, first) != digest(first)


# Made up --------------------------------------------------------------------------------------------------------------
def test_the_first_real_day_replaces_all_made_up_ones(lake: Lake, day: date) -> None:
    for days in (1, 2):
        publish(lake, day - timedelta(days=days), [RATE], is_made_up=True)
    publish(lake, day, [RATE | {"events": 2}])

    assert list(PublishedDay.objects.values_list("day", "is_made_up")) == [(day, False)]
    assert list(ErrorRate.objects.values_list("day", "events")) == [(day, 2)]


def test_a_made_up_day_never_replaces_a_real_one(lake: Lake, day: date) -> None:
    publish(lake, day, [RATE])
    for made_up in (day, day - timedelta(days=1)):
        with pytest.raises(LakeError, match="reports of real days"):
            publish(lake, made_up, [RATE | {"events": 9}], "2-b", is_made_up=True)

    assert list(PublishedDay.objects.values_list("day", "is_made_up")) == [(day, False)]
    assert list(ErrorRate.objects.values_list("events", flat=True)) == [1]


# The next day ---------------------------------------------------------------------------------------------------------
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


def test_a_null_in_a_required_column_publishes_nothing(lake: Lake, day: date) -> None:
    write_results(lake, "incoming/1-a", day, [RATE | {"total": None}])

    with pytest.raises(LakeError, match="total is null in 1 rows"):
        read_results(lake, "incoming/1-a", [day])


def test_a_failing_load_leaves_the_old_rows(lake: Lake, day: date) -> None:
    publish(lake, day, [RATE])
    with pytest.raises(psycopg.errors.CheckViolation):  # found by PostgreSQL only
        publish(lake, day, [RATE | {"events": 9}, RATE | {"hour": -1}], "2-b")

    assert list(ErrorRate.objects.values_list("events", flat=True)) == [1]


# Stale days -----------------------------------------------------------------------------------------------------------
def stale(day: date) -> list[int]:
    """Return for each stale day the number of days from it to this day."""
    found = published_days(day - timedelta(days=40), day).filter(is_stale=True).order_by("day")
    return [(day - each).days for each in found.values_list("day", flat=True)]


def test_reports_are_stale_once_a_day_that_they_rest_on_is_exported_again(lake: Lake, day: date) -> None:
    days = {n: day - timedelta(days=n) for n in (31, 30, 10, 0)}
    for each in days.values():
        publish(lake, each, [RATE])
    assert stale(day) == []

    export_day(days[30], lake, now=timezone.now(), on_rows=lambda _table, _rows: None, replace=True)
    assert stale(day) == [30, 10, 0]
    publish(lake, days[0], [RATE])  # before the reports of the renewed day itself
    assert stale(day) == [30, 10]
    publish(lake, days[30], [RATE])
    assert stale(day) == [10, 0]
    publish(lake, days[10], [RATE])
    publish(lake, days[0], [RATE])
    assert stale(day) == []

    publish(lake, days[30], [RATE])  # of the same facts
    export_day(days[31], lake, now=timezone.now(), on_rows=lambda _table, _rows: None)
    assert stale(day) == [31, 30, 10], "no report looks back further than thirty days"


def test_reports_are_stale_once_a_day_that_was_missing_is_there(lake: Lake, day: date) -> None:
    for n in (2, 0, 1):
        publish(lake, day - timedelta(days=n), [RATE])
    assert stale(day) == [0]


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
        )  # PostgreSQL detects a closed connection a moment later


def test_two_runs_never_overlap(lake_url: str, day: date) -> None:
    with another_run():
        assert failing(day) == "Another run or export is under way."
    assert not ReportRun.objects.exists()


def test_an_export_command_is_refused_while_a_run_goes_on(lake: Lake, day: date) -> None:
    """Publishing a day removes the files of other writers, so the files of the run would be lost."""
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


def test_a_missing_java_is_reported_in_one_line_and_old_reports_stay(lake: Lake, day: date, no_java: None) -> None:
    publish(lake, day, [RATE])

    assert failing(day).startswith("Java 17 or 21 is missing")
    run = ReportRun.objects.order_by("pk").last()
    assert run is not None
    assert (run.state, run.step) == (State.FAILED, ReportRun.Step.COMPUTE)
    assert list(ErrorRate.objects.values_list("events", flat=True)) == [1]


def test_the_next_run_removes_the_lake_files_of_a_killed_one(lake: Lake, day: date, no_java: None) -> None:
    with lake.writing("incoming/7-dead/error_rates/part-0.parquet") as out:
        out.write(b"half a file")
    failing(day)

    assert not list((Path(lake.url) / "incoming").glob("7-dead/**/*"))


@pytest.fixture
def no_lake(settings: LazySettings, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings.REPORTS_LAKE = str(tmp_path / "file" / "lake")


def plan_of(lake: Lake, day: date) -> Plan:
    """Return the plan of a run of this day, whose facts a failed run exports."""
    failing(day)
    manifest = manifest_of(lake, Kind.FACTS, day)
    return make_plan(lake, {day: manifest}, "incoming/x")


def test_a_missing_day_is_a_finding_of_every_figure_that_looked_back_to_it(
    lake: Lake, day: date, no_java: None
) -> None:
    """Survival has no such finding, because each day has the whole history of its tokens."""
    for days in (9, 4, 3, 1):
        publish(lake, day - timedelta(days=days), [RATE])
    history = plan_of(lake, day).history

    assert {report: tuple(by_day[day.isoformat()]) for report, by_day in history.items() if report != SURVIVAL} == {
        "error_rates": (7, 3),
        "token_churn": (7, 3),
        "failure_signatures": (9, 4),
        "unknown_errors": (8, 0),
    }
    expected, found = history[SURVIVAL][day.isoformat()]
    assert expected == found > 7 * (tables.LIFETIME_WEEKS - 1)


@pytest.mark.parametrize(
    ("published", "is_made_up", "expected"),
    [
        pytest.param((), False, 0, id="before the first reports"),
        pytest.param((3, 2, 1), False, 3, id="in PostgreSQL alone, after the lake was lost"),
        pytest.param((3,), True, 0, id="made up, in a lake of their own"),
    ],
)
def test_the_days_since_the_first_real_reports_are_expected_as_history(
    lake: Lake, day: date, no_java: None, published: tuple[int, ...], is_made_up: bool, expected: int
) -> None:
    for days in published:
        publish(lake, day - timedelta(days=days), [RATE], is_made_up=is_made_up)
    shutil.rmtree(lake.url, ignore_errors=True)
    history = plan_of(lake, day).history
    found = {tuple(by_day[day.isoformat()]) for report, by_day in history.items() if report != SURVIVAL}
    assert found == {(expected, 0)}


def test_survival_of_cohorts_from_before_retention_is_a_finding(
    lake: Lake, day: date, no_java: None, settings: LazySettings
) -> None:
    settings.EVENT_RETENTION_DAYS = 30
    plan = plan_of(lake, day)
    assert date.fromisoformat(plan.history_from[day.isoformat()]) == timezone.now().date() - timedelta(days=29)
    assert plan.history[SURVIVAL][day.isoformat()][1] == 29


def test_a_lake_that_cannot_be_written_is_reported_in_one_line(no_lake: None, day: date) -> None:
    message = failing(day)
    assert message.startswith("The lake failed: ")
    assert ReportRun.objects.get().error == message


@pytest.mark.parametrize("command", ["run_reports", "export_events"])
def test_commands_report_in_one_line_that_the_lake_cannot_be_written(no_lake: None, command: str) -> None:
    with pytest.raises(CommandError, match=r"^The lake failed: .*Not a directory"):
        call_command(command)


def test_a_damaged_export_is_reported_before_spark_starts(lake: Lake, day: date, no_java: None) -> None:
    rows.make_envelope(at=timezone.now() - timedelta(days=1, hours=timezone.now().hour))
    failing(day)
    cut_off(lake, Kind.FACTS, day, "envelopes")

    assert "is cut off" in failing(day)


def cut_off(lake: Lake, kind: Kind, day: date, table: str) -> None:
    manifest = manifest_of(lake, kind, day)
    path = Path(lake.url) / manifest.tables[table][0].path
    path.write_bytes(path.read_bytes()[:-9])


def test_a_damaged_file_of_an_earlier_day_is_reported_before_spark_starts(lake: Lake, day: date, no_java: None) -> None:
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
    plan = plan_of(lake, day)
    assert (len(plan.reports["error_rates"]), len(plan.facts["unknown_errors"])) == (1, 2)

    age(lake, Kind.REPORTS, yesterday)
    age(lake, Kind.FACTS, yesterday)
    plan = plan_of(lake, day)
    assert (len(plan.reports["error_rates"]), list(plan.facts["unknown_errors"])) == (0, [day.isoformat()])


def test_an_export_of_an_older_schema_is_made_again(lake: Lake, day: date, no_java: None) -> None:
    failing(day)
    age(lake, Kind.FACTS, day)
    old = manifest_of(lake, Kind.FACTS, day)
    with pytest.raises(LakeError, match=f"written with schema 0, and this server reads {tables.SCHEMA_VERSION}"):
        lake.verify(Kind.FACTS, day, old)

    assert failing(day).startswith("Java")
    assert lake.manifest(Kind.FACTS, day) != old


def test_a_file_listed_twice_is_refused(lake: Lake, day: date, no_java: None) -> None:
    rows.make_envelope(at=timezone.now() - timedelta(days=1, hours=timezone.now().hour))
    failing(day)
    manifest = manifest_of(lake, Kind.FACTS, day)
    doubled = {name: [*files, *files] for name, files in manifest.tables.items()}
    lake.publish(Kind.FACTS, day, replace(manifest, tables=doubled))

    assert "lists the same rows twice" in failing(day)


# Retention of the lake ------------------------------------------------------------------------------------------------
def test_days_beyond_the_retention_of_the_lake_are_removed_with_all_their_files(lake: Lake, day: date) -> None:
    old, kept = day - timedelta(days=40), day - timedelta(days=39)
    for each in (old, kept):
        export_day(each, lake, now=timezone.now(), on_rows=lambda _table, _rows: None)
        publish(lake, each, [RATE])
    with lake.writing(f"facts/table=attempts/day={old - timedelta(days=1)}/half.parquet") as out:
        out.write(b"of an export that was killed")

    lake.forget_before(kept)

    paths = [str(path) for path in Path(lake.url).rglob("*") if "incoming" not in path.parts]
    assert not [path for path in paths if str(old) in path or str(old - timedelta(days=1)) in path]
    for kind in Kind:
        manifest = manifest_of(lake, kind, kept)
        lake.verify(kind, kept, manifest)


def test_a_run_removes_what_is_beyond_the_retention_of_the_lake(
    lake: Lake, day: date, settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.EVENT_RETENTION_DAYS = 2
    for days in (50, 35):
        publish(lake, day - timedelta(days=days), [RATE])
    monkeypatch.setattr(runs, "submit", lambda submission: write_all(lake, submission, day))
    monkeypatch.setattr(runs, "_keep_classes", lambda *_: None)
    run_reports(day, day, progress=Progress())

    assert [found for found, _ in lake.days(Kind.REPORTS, date.min, day)] == [day - timedelta(days=35), day]


def write_all(lake: Lake, submission: Submission, day: date) -> str:
    """Write the results of all days, as Spark would."""
    write_results(lake, json.loads(submission.plan)["output"], day, [RATE])
    return ""


# Added columns --------------------------------------------------------------------------------------------------------
def test_a_lake_from_before_a_column_was_added_is_read_and_the_column_is_null(
    lake: Lake, day: date, spark: Any
) -> None:
    """The test removes `queued_us`, which is optional, from the attempts of an export."""
    rows.make_attempt(rows.make_notification(at=midnight(day)), started_at=midnight(day))
    manifest = without_column(lake, day, "queued_us")
    lake.verify(Kind.FACTS, day, manifest)

    plan = make_plan(lake, {day: manifest}, "incoming/x")
    [row] = read(spark, lake.url, plan.facts["attempts"], tables.ATTEMPTS).collect()

    assert (row.number, row.queued_us) == (1, None)


def test_a_file_without_a_required_column_is_refused(lake: Lake, day: date) -> None:
    manifest = without_column(lake, day, "outcome")
    with pytest.raises(LakeError, match="other columns than attempts"):
        lake.verify(Kind.FACTS, day, manifest)


def without_column(lake: Lake, day: date, name: str) -> Manifest:
    manifest = export_day(day, lake, now=timezone.now(), on_rows=lambda _table, _rows: None)
    [file] = manifest.tables["attempts"]
    path = Path(lake.url) / file.path
    rows = pq.read_table(path, partitioning=None).drop_columns([name])
    pq.write_table(rows, path)
    files = dict(manifest.tables) | {"attempts": [lake.describe(file.path, rows.num_rows)]}
    lake.publish(Kind.FACTS, day, replace(manifest, tables=files))
    return manifest_of(lake, Kind.FACTS, day)


def test_columns_and_fields_of_a_later_version_are_not_read(lake: Lake, day: date) -> None:
    manifest = export_day(day, lake, now=timezone.now(), on_rows=lambda _table, _rows: None)
    [file] = manifest.tables["attempts"]
    path = Path(lake.url) / file.path
    rows = pq.read_table(path, partitioning=None)
    pq.write_table(rows.append_column("of_tomorrow", pa.array([], pa.string())), path)
    files = dict(manifest.tables) | {"attempts": [lake.describe(file.path, 0)]}
    later = json.loads(replace(manifest, tables=files).to_json()) | {"of_tomorrow": 1}

    read = Manifest.from_json(json.dumps(later))

    lake.verify(Kind.FACTS, day, read)
    assert lake.read_table(tables.ATTEMPTS, file.path).column_names == tables.ATTEMPTS.column_names


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


SUBMIT = """
import sys
from pathlib import Path
from spark_reports.running.spark import Submission, submit
lake, plan, scratch = sys.argv[1:]
submit(Submission("local[2]", "1g", lake, Path(plan).read_text(), Path(scratch), 1000, lambda line: None))
"""


def test_temporary_files_of_a_killed_run_are_private_and_removed_by_the_next(
    lake: Lake,
    day: date,
    settings: LazySettings,
    spark_conf: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """After SIGKILL, Spark's shuffle files remain, with pseudonyms in them. All of them are in one folder."""
    settings.DATA_DIR, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    History(seed=5).add_day(day)
    manifest = export_day(day, lake, now=timezone.now(), on_rows=lambda _table, _rows: None)
    (tmp_path / "plan").write_text(make_plan(lake, {day: manifest}, "incoming/killed").to_json())
    scratch = scratch_in(settings.DATA_DIR)
    command = [sys.executable, "-c", SUBMIT, lake.url, str(tmp_path / "plan"), str(scratch)]
    with subprocess.Popen(command, env=os.environ | {"TMPDIR": str(elsewhere)}) as worker:
        wait_until_shuffled(worker, scratch)
        below = psutil.Process(worker.pid).children(recursive=True)
        lines = list(command_lines(below))
        worker.kill()
    psutil.wait_procs(below, timeout=20)

    assert any(f"-Djava.io.tmpdir={scratch}" in line for line in lines)
    assert list(scratch.glob("blockmgr-*/*/*"))
    assert not list(elsewhere.iterdir())
    assert scratch.stat().st_mode & 0o777 == 0o700
    request.getfixturevalue("no_java")
    assert failing(day).startswith("Java")
    assert not scratch.exists()


def command_lines(processes: Iterable[psutil.Process]) -> Iterator[str]:
    """Yield the command line of each living process."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # raised for a zombie, too
            yield " ".join(process.cmdline())


def wait_until_shuffled(worker: "subprocess.Popen[bytes]", scratch: Path) -> None:
    deadline = time.monotonic() + 120
    while not list(scratch.glob("blockmgr-*/*/*")):
        assert worker.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_command_reports_a_missing_java_and_wrong_options(lake_url: str, no_java: None) -> None:
    with pytest.raises(CommandError, match="Java 17 or 21 is missing"):
        call_command("run_reports")
    with pytest.raises(CommandError, match="Give either --day or --from"):
        call_command("run_reports", "--day", "2026-11-20", "--from", "2026-11-20")


@pytest.mark.parametrize("of_the_day", [True, False])
@pytest.mark.parametrize("command", ["run_reports", "export_events"])
def test_a_database_that_goes_away_is_reported_in_one_line(
    lake: Lake, day: date, command: str, of_the_day: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL ends a session when the export begins to read: the session of the day, or one that reads a part."""

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
