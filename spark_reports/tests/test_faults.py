"""Faults of runs: a failed run reports one line, publishes nothing, and keeps the earlier reports."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
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
def test_results_reach_postgresql_and_the_lake_and_name_their_facts_and_code(lake, day):
    rates = [RATE, RATE | {"code": 'a "quoted", code', "z_score": 4.25}]
    run = publish(lake, day, rates)

    assert list(ErrorRate.objects.order_by("pk").values(*RATE)) == rates
    manifest, published = manifest_of(lake, Kind.REPORTS, day), PublishedDay.objects.get()
    assert (run.result_count, published.event_count) == (2, 7)
    lake.verify(Kind.REPORTS, day, manifest)
    version, jobs = manifest.code_version.split()
    assert (version, len(jobs), len(manifest.facts_digest)) == (settings_of_server.VERSION, 12, 64)
    assert (published.facts_digest, published.code_version) == (manifest.facts_digest, manifest.code_version)


def test_files_are_on_the_disk_before_a_manifest_names_them(lake, day, monkeypatch):
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


def test_facts_that_differ_in_one_file_have_another_digest():
    first, second = File("a", 1, 1, "aa"), File("b", 1, 1, "bb")

    def digest(*files: File) -> str:
        return Manifest("2026-11-20", SCHEMA_VERSION, "", "", tables={"attempts": files}).digest

    assert digest(first, second) == digest(second, first) != digest(first)


# Made up --------------------------------------------------------------------------------------------------------------
def test_the_first_real_day_replaces_all_made_up_ones_and_is_replaced_by_none(lake, day):
    for days in (1, 2):
        publish(lake, day - timedelta(days=days), [RATE], is_made_up=True)
    publish(lake, day, [RATE | {"events": 2}])
    for made_up in (day, day - timedelta(days=1)):
        with pytest.raises(LakeError, match="reports of real days"):
            publish(lake, made_up, [RATE | {"events": 9}], "2-b", is_made_up=True)

    assert list(PublishedDay.objects.values_list("day", "is_made_up")) == [(day, False)]
    assert list(ErrorRate.objects.values_list("day", "events")) == [(day, 2)]


# The next day ---------------------------------------------------------------------------------------------------------
def test_a_day_computed_again_replaces_the_day_and_no_other_and_a_failing_load_nothing(lake, day):
    publish(lake, day - timedelta(days=1), [RATE], "1-a")
    publish(lake, day, [RATE, RATE], "2-b")
    publish(lake, day, [RATE | {"events": 9}], "3-c")
    assert len(list(Path(lake.url).glob(f"reports/*/day={day}/*"))) == 1
    with pytest.raises(psycopg.errors.CheckViolation):  # found by PostgreSQL only
        publish(lake, day, [RATE | {"events": 7}, RATE | {"hour": -1}], "4-d")

    found = ErrorRate.objects.order_by("day").values_list("day", "events")
    assert list(found) == [(day - timedelta(days=1), 1), (day, 9)]


@pytest.mark.parametrize(
    ("rate", "missing", "words"),
    [
        (RATE, "latency/_SUCCESS", "Spark did not finish latency"),
        (RATE | {"total": None}, "", "total is null in 1 rows"),
    ],
    ids=["unfinished", "null"],
)
def test_an_unfinished_report_or_a_null_in_a_required_column_publishes_nothing(lake, day, rate, missing, words):
    write_results(lake, "incoming/1-a", day, [rate])
    if missing:
        (Path(lake.url) / "incoming/1-a" / missing).unlink()

    with pytest.raises(LakeError, match=words):
        read_results(lake, "incoming/1-a", [day])


# Stale days -----------------------------------------------------------------------------------------------------------
def stale(day: date) -> list[int]:
    """Return for each stale day the number of days from it to this day."""
    found = published_days(day - timedelta(days=40), day).filter(is_stale=True).order_by("day")
    return [(day - each).days for each in found.values_list("day", flat=True)]


def test_reports_are_stale_once_a_day_that_they_rest_on_is_exported_again(lake, day):
    days = {n: day - timedelta(days=n) for n in (31, 30, 10, 0)}

    def stale_after(*published: int) -> list[int]:
        for n in published:
            publish(lake, days[n], [RATE])
        return stale(day)

    assert stale_after(*days) == []
    export_day(days[30], lake, now=timezone.now(), on_rows=lambda _table, _rows: None, replace=True)
    assert stale(day) == [30, 10, 0]
    assert stale_after(0) == [30, 10]  # before the reports of the renewed day itself
    assert stale_after(30) == [10, 0]
    assert stale_after(10, 0) == []

    publish(lake, days[30], [RATE])  # of the same facts
    export_day(days[31], lake, now=timezone.now(), on_rows=lambda _table, _rows: None)
    assert stale(day) == [31, 30, 10], "no report looks back further than thirty days"


def test_reports_are_stale_once_a_day_that_was_missing_is_there(lake, day):
    for n in (2, 0, 1):
        publish(lake, day - timedelta(days=n), [RATE])
    assert stale(day) == [0]


# Before Spark ---------------------------------------------------------------------------------------------------------
def failing(first: date, last: date | None = None) -> str:
    with pytest.raises(RunError) as error:
        run_reports(first, last or first, progress=Progress())
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
    """Publishing a day removes the files of other writers, so the files of the run would be lost."""
    with another_run():
        assert failing(day) == "Another run or export is under way."
        with pytest.raises(CommandError, match="Another run or export is under way"):
            call_command("export_events", "--replace")
    assert not ReportRun.objects.exists()
    assert lake.manifest(Kind.FACTS, day) is None

    call_command("export_events")
    assert lake.manifest(Kind.FACTS, day) is not None


def test_the_next_run_closes_a_killed_one_and_removes_its_files(lake, day, no_java, settings, tmp_path):
    settings.DATA_DIR = tmp_path / "data"
    shuffled = scratch_in(settings.DATA_DIR) / "blockmgr-7" / "0a" / "shuffle_0_0_0.data"
    shuffled.parent.mkdir(parents=True)
    shuffled.touch()
    with lake.writing("incoming/7-dead/error_rates/part-0.parquet") as out:
        out.write(b"half a file")
    now = timezone.now()
    killed = ReportRun.objects.create(from_day=day, to_day=day, started_at=now, seen_at=now)
    failing(day)

    killed.refresh_from_db()
    assert (killed.state, killed.error) == (State.FAILED, "Its process was killed.")
    assert not list((Path(lake.url) / "incoming").glob("7-dead/**/*"))
    assert not scratch_in(settings.DATA_DIR).exists()


def test_a_missing_java_is_reported_in_one_line_and_old_reports_stay(lake, day, no_java):
    publish(lake, day, [RATE])

    assert failing(day).startswith("Java 17 or 21 is missing")
    run = ReportRun.objects.order_by("pk").last()
    assert run is not None
    assert (run.state, run.step) == (State.FAILED, ReportRun.Step.COMPUTE)
    assert list(ErrorRate.objects.values_list("events", flat=True)) == [1]
    with pytest.raises(CommandError, match="Java 17 or 21 is missing"):
        call_command("run_reports")
    with pytest.raises(CommandError, match="Give either --day or --from"):
        call_command("run_reports", "--day", "2026-11-20", "--from", "2026-11-20")


def plan_of(lake: Lake, day: date) -> Plan:
    """Return the plan of a run of this day, whose facts a failed run exports."""
    failing(day)
    manifest = manifest_of(lake, Kind.FACTS, day)
    return make_plan(lake, {day: manifest}, "incoming/x")


def test_a_missing_day_is_a_finding_of_every_figure_that_looked_back_to_it(lake, day, no_java, settings):
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

    settings.EVENT_RETENTION_DAYS = 30  # cohorts began before it
    shutil.rmtree(lake.url)
    plan = plan_of(lake, day)
    assert date.fromisoformat(plan.history_from[day.isoformat()]) == timezone.now().date() - timedelta(days=29)
    assert plan.history[SURVIVAL][day.isoformat()][1] == 29


@pytest.mark.parametrize(
    ("published", "is_made_up", "expected"),
    [
        pytest.param((), False, 0, id="before the first reports"),
        pytest.param((3, 2, 1), False, 3, id="in PostgreSQL alone, after the lake was lost"),
        pytest.param((3,), True, 0, id="made up, in a lake of their own"),
    ],
)
def test_the_days_since_the_first_real_reports_are_expected_as_history(
    lake, day, no_java, published, is_made_up, expected
):
    for days in published:
        publish(lake, day - timedelta(days=days), [RATE], is_made_up=is_made_up)
    shutil.rmtree(lake.url, ignore_errors=True)
    history = plan_of(lake, day).history
    found = {tuple(by_day[day.isoformat()]) for report, by_day in history.items() if report != SURVIVAL}
    assert found == {(expected, 0)}


@pytest.mark.parametrize("command", ["run_reports", "export_events"])
def test_commands_report_in_one_line_that_the_lake_cannot_be_written(settings, tmp_path, command):
    (tmp_path / "file").touch()
    settings.REPORTS_LAKE = str(tmp_path / "file" / "lake")
    with pytest.raises(CommandError, match=r"^The lake failed: .*Not a directory") as failed:
        call_command(command)
    assert [run.error for run in ReportRun.objects.all()] == [str(failed.value)] * (command == "run_reports")


def test_a_damaged_export_is_reported_before_spark_starts(lake, day, no_java):
    rows.make_envelope(at=midnight(day))
    failing(day)
    manifest = manifest_of(lake, Kind.FACTS, day)
    doubled = {name: [*files, *files] for name, files in manifest.tables.items()}
    lake.publish(Kind.FACTS, day, replace(manifest, tables=doubled))
    assert "lists the same rows twice" in failing(day)

    lake.publish(Kind.FACTS, day, manifest)
    cut_off(lake, Kind.FACTS, day, "envelopes")
    assert "is cut off" in failing(day)


def cut_off(lake: Lake, kind: Kind, day: date, table: str) -> None:
    manifest = manifest_of(lake, kind, day)
    path = Path(lake.url) / manifest.tables[table][0].path
    path.write_bytes(path.read_bytes()[:-9])


def test_a_damaged_file_of_an_earlier_day_is_reported_before_spark_starts(lake, day, no_java):
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


def test_earlier_days_of_an_older_schema_are_not_compared_with_and_made_again_themselves(lake, day, no_java):
    yesterday = day - timedelta(days=1)
    publish(lake, yesterday, [RATE])
    failing(yesterday)
    plan = plan_of(lake, day)
    assert (len(plan.reports["error_rates"]), len(plan.facts["unknown_errors"])) == (1, 2)

    for kind in Kind:
        age(lake, kind, yesterday)
    plan = plan_of(lake, day)
    assert (len(plan.reports["error_rates"]), list(plan.facts["unknown_errors"])) == (0, [day.isoformat()])

    old = manifest_of(lake, Kind.FACTS, yesterday)
    with pytest.raises(LakeError, match=f"written with schema 0, and this server reads {tables.SCHEMA_VERSION}"):
        lake.verify(Kind.FACTS, yesterday, old)
    assert failing(yesterday).startswith("Java")
    assert lake.manifest(Kind.FACTS, yesterday) != old


# Retention of the lake ------------------------------------------------------------------------------------------------
def test_days_beyond_the_retention_of_the_lake_are_removed_with_all_their_files(lake, day):
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


def test_a_run_removes_what_is_beyond_the_retention_of_the_lake(lake, day, settings, monkeypatch):
    def submit(submission: Submission) -> str:
        submission.on_line("")
        write_results(lake, json.loads(submission.plan)["output"], day, [RATE])
        return ""

    settings.EVENT_RETENTION_DAYS = 2
    for days in (50, 35):
        publish(lake, day - timedelta(days=days), [RATE])
    monkeypatch.setattr(runs, "submit", submit)
    monkeypatch.setattr(runs, "_keep_classes", lambda *_: None)
    run_reports(day, day, progress=Progress())

    assert [found for found, _ in lake.days(Kind.REPORTS, date.min, day)] == [day - timedelta(days=35), day]


# Added columns --------------------------------------------------------------------------------------------------------
def test_a_lake_from_before_a_column_was_added_is_read_and_the_column_is_null(lake, day, spark):
    """The test removes `queued_us`, which is optional, from the attempts of an export."""
    rows.make_attempt(rows.make_notification(at=midnight(day)), started_at=midnight(day))
    manifest = with_attempts(lake, day, lambda attempts: attempts.drop_columns(["queued_us"]))
    lake.verify(Kind.FACTS, day, manifest)

    plan = make_plan(lake, {day: manifest}, "incoming/x")
    [row] = read(spark, lake.url, plan.facts["attempts"], tables.ATTEMPTS).collect()

    assert (row.number, row.queued_us) == (1, None)


def test_a_file_without_a_required_column_is_refused(lake, day):
    manifest = with_attempts(lake, day, lambda attempts: attempts.drop_columns(["outcome"]))
    with pytest.raises(LakeError, match="other columns than attempts"):
        lake.verify(Kind.FACTS, day, manifest)


def with_attempts(lake: Lake, day: date, change: Callable[[pa.Table], pa.Table]) -> Manifest:
    """Export a day, and change its attempts as if another version had written them."""
    manifest = export_day(day, lake, now=timezone.now(), on_rows=lambda _table, _rows: None)
    [file] = manifest.tables["attempts"]
    changed = change(pq.read_table(Path(lake.url) / file.path, partitioning=None))
    pq.write_table(changed, Path(lake.url) / file.path)
    files = dict(manifest.tables) | {"attempts": [lake.describe(file.path, changed.num_rows)]}
    lake.publish(Kind.FACTS, day, replace(manifest, tables=files))
    return manifest_of(lake, Kind.FACTS, day)


def test_columns_and_fields_of_a_later_version_are_not_read(lake, day):
    with_more = with_attempts(lake, day, lambda rows: rows.append_column("of_tomorrow", pa.array([], pa.string())))
    read = Manifest.from_json(json.dumps(json.loads(with_more.to_json()) | {"of_tomorrow": 1}))

    lake.verify(Kind.FACTS, day, read)
    [file] = read.tables["attempts"]
    assert lake.read_table(tables.ATTEMPTS, file.path).column_names == tables.ATTEMPTS.column_names


# Spark itself ---------------------------------------------------------------------------------------------------------
def test_a_failing_spark_names_its_cause_and_publishes_nothing(lake, day, settings, java):
    publish(lake, day, [RATE])
    settings.SPARK_DRIVER_MEMORY = "nonsense"

    assert failing(day).startswith("Spark failed: ")
    run = ReportRun.objects.order_by("pk").last()
    assert run is not None
    assert run.log_excerpt
    assert ErrorRate.objects.count() == 1


@pytest.mark.parametrize(("command", "of_the_day"), [("run_reports", True), ("export_events", False)])
def test_a_database_that_goes_away_is_reported_in_one_line(lake, day, command, of_the_day, monkeypatch):
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
