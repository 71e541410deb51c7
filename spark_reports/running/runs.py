"""Runs: export the missing days, compute in Spark, publish. Only one run is under way at a time.

PostgreSQL, which the console shows, takes all results of a run or none. The lake is published just before, one day
after the other. So a run that is killed in between may leave days in the lake that are newer than those shown. The next
run of these days replaces both. Exported days stay exported.
"""

import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from time import monotonic

import structlog
from django.conf import settings

from kit.db.clock import database_now
from kit.processes.leader import REPORTS, LeaderLock
from kit.processes.tasks import WORKER_STOP
from spark_reports.export.days import ExportError, closed_days, export_day, oldest_day_of_lake
from spark_reports.jobs import tables
from spark_reports.jobs.plan import LOOK_BACK_DAYS, LOOK_BACK_SNAPSHOTS, Plan
from spark_reports.lake import Kind, Lake, LakeError, Manifest, in_one_line
from spark_reports.models import PublishedDay, ReportRun
from spark_reports.nights.on_demand import KILLED, MAX_DAYS_PER_RUN
from spark_reports.running.classes import archive_of, replacing
from spark_reports.running.loading import load, publish_in_lake, read_results
from spark_reports.running.spark import (
    MANY_ROWS,
    SparkError,
    Submission,
    is_here,
    remove_scratch,
    scratch_in,
    spark_home,
    submit,
)

log = structlog.get_logger(__name__)
State, Step = ReportRun.State, ReportRun.Step

SURVIVAL = tables.TOKEN_LIFETIME.name
EXCERPT_LINES = 60
FAULTS = (ExportError, LakeError, SparkError, OSError)


class RunError(Exception):
    """The run failed, or did not begin. The text says why in one line."""


class Busy(RunError):  # noqa: N818 - names a state
    """Another run or export is under way, so the run did not begin."""


class WorkerStops(Exception):  # noqa: N818 - says what happened
    """The worker is stopped while Spark computes. The next worker makes the run again."""


# The error of a run by its exception. Of any other exception only the class is recorded, because its text may quote a
# row.
_ENDED_BY: dict[type[BaseException], str] = {
    WorkerStops: "Its worker was stopped, for example by an upgrade. The next worker makes the run again.",
    KeyboardInterrupt: "It was interrupted from the keyboard.",
    SystemExit: "The server was stopped.",
}


class Progress:
    """Callbacks of a run that report its progress. The command overrides them to draw it."""

    def step(self, run: ReportRun) -> None:
        """Report that the run began another step."""

    def rows(self, day: date, table: str, number: int) -> None:
        """Report that another ``number`` of rows of a table was exported."""

    def report(self, line: str) -> None:
        """Report that Spark finished a report."""


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a run's facts.

    ``bring`` writes the facts of a day into the lake, as `export_day` does. Made-up facts have a lake of their own.
    """

    lake: str
    bring: Callable[..., Manifest]
    is_made_up: bool = False


# The verified facts of a run, by day.
Facts = Mapping[date, Manifest]


def run_reports(first: date, last: date, *, progress: Progress, replace: bool = False) -> list[ReportRun]:
    """Make the reports of a range of closed days, oldest first, in runs of MAX_DAYS_PER_RUN days.

    ``replace`` exports days again that are in the lake already. Raises Busy while another run is under way, and
    RunError when a run fails. The runs before it are published then.
    """
    try:
        days = closed_days(first, last, now=database_now())
    except ExportError as error:
        raise RunError(str(error)) from error
    source = Source(settings.REPORTS_LAKE, partial(export_day, replace=replace))
    return run_days(source, days, progress=progress)


def run_days(source: Source, days: Sequence[date], *, progress: Progress) -> list[ReportRun]:
    """Make the reports of closed days from the facts of a source, as `run_reports` does from the database."""
    with alone():
        _close_abandoned()
        parts = [days[start : start + MAX_DAYS_PER_RUN] for start in range(0, len(days), MAX_DAYS_PER_RUN)]
        return [_run(source, part, progress) for part in parts]


@contextmanager
def alone() -> Iterator[None]:
    """Hold the lock under which one process at a time writes into the lake.

    Two writers would remove files of each other, because publishing a day removes the files that its manifest does not
    list. Files that are written under the lock are readable for this account only. PostgreSQL releases the lock when
    the connection ends.

    Raises Busy.
    """
    lock = LeaderLock(REPORTS)
    if not lock.take():
        raise Busy("Another run or export is under way.")
    umask = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(umask)
        lock.release()


def _close_abandoned() -> None:
    """Mark unfinished runs as killed. No run is under way, because this process holds the lock."""
    ReportRun.objects.filter(state=State.RUNNING).update(state=State.FAILED, finished_at=database_now(), error=KILLED)


def _run(source: Source, days: Sequence[date], progress: Progress) -> ReportRun:
    now = database_now()
    run = ReportRun.objects.create(
        from_day=days[0], to_day=days[-1], started_at=now, seen_at=now, is_made_up=source.is_made_up
    )
    try:
        facts = _carry_out(source, run, days, progress)
    except FAULTS as error:
        reason = in_one_line(error)
        _finish(run, State.FAILED, error=reason, log_excerpt=getattr(error, "log", ""))
        raise RunError(reason) from error
    except BaseException as error:
        _finish(run, State.FAILED, error=_ENDED_BY.get(type(error), type(error).__name__))
        raise
    if not source.is_made_up:
        _forget_old_days()
        _keep_classes(facts)
    return run


def _carry_out(source: Source, run: ReportRun, days: Sequence[date], progress: Progress) -> Facts:
    lake = Lake(source.lake)
    name = f"{run.pk}-{secrets.token_hex(4)}"
    output = f"incoming/{name}"
    lake.remove_folder("incoming")  # left by a killed run, as is the scratch folder: no other run is under way
    remove_scratch(scratch_in(settings.DATA_DIR))
    try:
        with _step(run, Step.EXPORT, progress):
            facts = _export(source, run, lake, days, progress)
        with _step(run, Step.COMPUTE, progress):
            run.log_excerpt = _excerpt(_compute(run, lake, facts, output, progress))
        with _step(run, Step.PUBLISH, progress):
            results = read_results(lake, output, days)
            publish_in_lake(lake, results, facts, name, now=database_now())
            load(results, facts, run, now=database_now())
    finally:
        lake.remove_folder(output)
    _finish(run, State.SUCCEEDED, step=Step.DONE)
    return facts


@contextmanager
def _step(run: ReportRun, step: ReportRun.Step, progress: Progress) -> Iterator[None]:
    started = monotonic()
    run.step = step
    run.seen_at = database_now()
    run.save()
    progress.step(run)
    yield
    setattr(run, f"{step}_seconds", round(monotonic() - started, 3))


def _export(source: Source, run: ReportRun, lake: Lake, days: Sequence[date], progress: Progress) -> Facts:
    facts = {}
    for day in days:
        facts[day] = source.bring(day, lake, now=database_now(), on_rows=partial(progress.rows, day))
        lake.verify(Kind.FACTS, day, facts[day])
        _beat(run)
    run.event_count = _row_count(facts)
    return facts


def _row_count(facts: Facts) -> int:
    return sum(manifest.row_count for manifest in facts.values())


def _compute(run: ReportRun, lake: Lake, facts: Facts, output: str, progress: Progress) -> str:
    def on_line(line: str) -> None:
        _beat(run)
        _end_with_worker()
        if line:
            progress.report(line)

    return submit(_submission(lake, facts, output, on_line))


def _end_with_worker() -> None:
    """End the run, and Spark, if the worker is stopped. This is checked at least every BEAT_SECONDS."""
    if WORKER_STOP.is_set():
        raise WorkerStops


def _submission(lake: Lake, facts: Facts, output: str, on_line: Callable[[str], None]) -> Submission:
    return Submission(
        master=settings.SPARK_MASTER,
        driver_memory=settings.SPARK_DRIVER_MEMORY,
        lake=lake.url,
        plan=make_plan(lake, facts, output).to_json(),
        scratch=scratch_in(settings.DATA_DIR),
        rows=_row_count(facts),
        on_line=on_line,
        classes=_classes(),
    )


def _classes() -> Path | None:
    return archive_of(spark_home() / "jars", settings.DATA_DIR) if is_here(settings.SPARK_MASTER) else None


def _forget_old_days() -> None:
    """Remove days from the lake that are older than its retention. A failure is only logged: the run is published."""
    try:
        Lake(settings.REPORTS_LAKE).forget_before(oldest_day_of_lake(database_now()))
    except FAULTS as error:
        log.warning("old_days_not_removed", error=in_one_line(error))


def _keep_classes(facts: Facts) -> None:
    """Compute a night of few rows once more, to write the archive of classes for later runs.

    The archive is written by a Java process of its own, so that its failure does not affect the run.
    """
    archive = _classes()
    if archive is None or archive.exists() or _row_count(facts) >= MANY_ROWS:
        return
    lake = Lake(settings.REPORTS_LAKE)
    try:
        with replacing(archive) as draft:
            submission = _submission(lake, facts, "incoming/classes", lambda _line: _end_with_worker())
            submit(replace(submission, new_classes=draft))
    except FAULTS as error:
        log.warning("classes_not_archived", error=in_one_line(error))
    finally:
        lake.remove_folder("incoming/classes")


def make_plan(lake: Lake, manifests: Facts, output: str) -> Plan:
    """Return the plan of a run. Raises LakeError when a file of an earlier day that the run reads is broken."""
    first = min(manifests)
    facts: dict[str, dict[str, Sequence[str]]] = {table.name: {} for table in tables.EVENT_TABLES}
    facts |= _earlier_files(lake, Kind.FACTS, first, LOOK_BACK_SNAPSHOTS)
    for day, manifest in manifests.items():
        for name, paths in manifest.paths.items():
            facts[name][day.isoformat()] = paths
    reports = _earlier_files(lake, Kind.REPORTS, first, LOOK_BACK_DAYS)
    looked_back = _looked_back(lake, list(manifests), facts | reports)
    return Plan(
        days=[day.isoformat() for day in manifests],
        facts=facts,
        reports=reports,
        rows=_expected_rows(manifests),
        history=looked_back | {SURVIVAL: _survival_days(manifests)},
        history_from={day.isoformat(): manifest.events_since or manifest.day for day, manifest in manifests.items()},
        incomplete_days=[day.isoformat() for day in manifests if not manifests[day].is_complete],
        output=output,
    )


def _looked_back(
    lake: Lake, days: Sequence[date], read: Mapping[str, Mapping[str, Sequence[str]]]
) -> dict[str, dict[str, tuple[int, int]]]:
    """Return by table and day how many of the days that it looks back to are expected, and how many are in the lake.

    Days before the first day with reports are not expected. That day is taken from the lake and from PostgreSQL, which
    still has it when the lake is lost.
    """
    real = PublishedDay.objects.filter(is_made_up=False)
    published = real.order_by("day").values_list("day", flat=True).first()
    oldest = min([day for day in (lake.first_day(Kind.REPORTS), published) if day] + list(days))
    history: dict[str, dict[str, tuple[int, int]]] = {}
    for table, look_back in (LOOK_BACK_DAYS | LOOK_BACK_SNAPSHOTS).items():
        known = {date.fromisoformat(day) for day in read[table]} | set(days)
        history[table] = {
            day.isoformat(): (
                min(look_back, (day - oldest).days),
                sum(day - timedelta(n) in known for n in range(1, look_back + 1)),
            )
            for day in days
        }
    return history


def _survival_days(manifests: Facts) -> dict[str, tuple[int, int]]:
    """Return by day how many days of events the survival of its cohorts needs, and how many of them are complete."""
    found = {}
    for day, manifest in manifests.items():
        oldest = day - timedelta(days=day.weekday() + 7 * (tables.LIFETIME_WEEKS - 1))
        whole = max(oldest, date.fromisoformat(manifest.events_since or manifest.day))
        found[day.isoformat()] = ((day - oldest).days + 1, max(0, (day - whole).days + 1))
    return found


def _expected_rows(manifests: Facts) -> dict[str, dict[str, int]]:
    """Return the row counts of the run's own days. The runs of earlier days have checked theirs."""
    return {
        table.name: {day.isoformat(): manifest.rows[table.name] for day, manifest in manifests.items()}
        for table in tables.EVENT_TABLES
    }


def _earlier_files(
    lake: Lake, kind: Kind, first: date, look_back_days: Mapping[str, int]
) -> dict[str, dict[str, Sequence[str]]]:
    """Return files of earlier days by table and day, each verified with its manifest.

    Days of an older schema are left out, because a comparison with them would be wrong. They can be made again.
    """
    files: dict[str, dict[str, Sequence[str]]] = {name: {} for name in look_back_days}
    oldest = first - timedelta(max(look_back_days.values()))
    for day, manifest in lake.days(kind, oldest, first - timedelta(1)):
        if manifest.schema_version == tables.SCHEMA_VERSION:
            read = [name for name, days in look_back_days.items() if day >= first - timedelta(days)]
            lake.verify(kind, day, manifest, only=read)
            for name in read:
                files[name][day.isoformat()] = manifest.paths[name]
    return files


def _beat(run: ReportRun) -> None:
    run.seen_at = database_now()
    run.save(update_fields=["seen_at"])


def _excerpt(text: str) -> str:
    return "\n".join(text.splitlines()[-EXCERPT_LINES:])


def _finish(run: ReportRun, state: ReportRun.State, **facts: str) -> None:
    run.state = state
    run.finished_at = database_now()
    for name, value in facts.items():
        setattr(run, name, _excerpt(value))
    run.save()
    facts_of_run = {"run_id": run.pk, "from_day": str(run.from_day), "to_day": str(run.to_day)}
    if state == State.SUCCEEDED:
        log.info("reports_published", **facts_of_run, events=run.event_count, findings=run.finding_count)
    else:
        log.error("reports_failed", **facts_of_run, error=run.error)
