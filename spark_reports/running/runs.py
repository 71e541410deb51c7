"""Runs: export the missing days, compute in Spark, publish. Only one run is under way at a time.

PostgreSQL takes all results of a run or none. Exported days stay exported.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from time import monotonic

import structlog
from django.conf import settings
from django.db.models import F

from kit.db.clock import database_now
from kit.processes.leader import REPORTS, LeaderLock
from kit.processes.tasks import WORKER_STOP
from spark_reports.export.days import ExportError, Progress, closed_days, export_day, oldest_day_of_lake, silent
from spark_reports.jobs import tables
from spark_reports.jobs.plan import LOOK_BACK_DAYS, LOOK_BACK_SNAPSHOTS, PLAN, Plan
from spark_reports.lake import Day, Lake, LakeError, in_one_line, scratch_in
from spark_reports.models import PublishedDay, ReportRun
from spark_reports.nights.nights import LOOK_BACK
from spark_reports.nights.on_demand import KILLED, MAX_DAYS_PER_RUN
from spark_reports.running.loading import earlier_days, load, read_results, write_earlier
from spark_reports.running.spark import SparkError, Submission, archive_of, empty, is_here, spark_home, submit

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


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a run's facts.

    ``bring`` writes the facts of a day into the lake, as `export_day` does. Made-up facts have a lake of their own.
    ``progress`` gets a line for each step.
    """

    lake: str
    bring: Callable[..., Day]
    progress: Progress = silent
    is_made_up: bool = False


# The verified facts of a run, by day.
Facts = Mapping[date, Day]


def run_reports(first: date, last: date, *, progress: Progress = silent, replace: bool = False) -> list[ReportRun]:
    """Make the reports of a range of closed days, oldest first, in runs of MAX_DAYS_PER_RUN days.

    ``replace`` exports days again that are in the lake already. Raises Busy while another run is under way, and
    RunError when a run fails. The runs before it are published then.
    """
    try:
        days = closed_days(first, last, now=database_now())
    except ExportError as error:
        raise RunError(str(error)) from error
    bring = partial(export_day, replace=replace)
    return run_days(Source(settings.REPORTS_LAKE, bring, progress), days)


def run_days(source: Source, days: Sequence[date]) -> list[ReportRun]:
    """Make the reports of closed days from the facts of a source, as `run_reports` does from the database."""
    with alone():
        _close_abandoned()
        parts = [days[start : start + MAX_DAYS_PER_RUN] for start in range(0, len(days), MAX_DAYS_PER_RUN)]
        return [_run(source, part) for part in parts]


@contextmanager
def alone() -> Iterator[None]:
    """Hold the lock under which one process at a time writes into the lake.

    Two writers would leave days that do not count, with files of both. Files that are written under the lock are
    readable for this account only. PostgreSQL releases the lock when the connection ends.

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


def _run(source: Source, days: Sequence[date]) -> ReportRun:
    now = database_now()
    run = ReportRun.objects.create(
        from_day=days[0], to_day=days[-1], started_at=now, seen_at=now, is_made_up=source.is_made_up
    )
    try:
        with empty(scratch_in(settings.DATA_DIR)) as folder:
            _carry_out(source, run, days, folder)
    except FAULTS as error:
        reason = in_one_line(error)
        _finish(run, State.FAILED, error=reason, log_excerpt=getattr(error, "log", ""))
        raise RunError(reason) from error
    except BaseException as error:
        _finish(run, State.FAILED, error=_ENDED_BY.get(type(error), type(error).__name__))
        raise
    if not source.is_made_up:
        _forget_old_days()
    return run


def _carry_out(source: Source, run: ReportRun, days: Sequence[date], folder: Path) -> None:
    lake = Lake(source.lake)
    with _step(run, Step.EXPORT):
        facts = _export(source, run, lake, days)
        run.event_count = sum(day.row_count for day in facts.values())
    with _step(run, Step.COMPUTE):
        before = earlier_days(days[0], is_made_up=source.is_made_up)
        write_earlier(folder, days[0], before)
        recorded = list(lake.days(days[0] - LOOK_BACK, days[-1]))
        if not source.is_made_up:
            _renew(recorded)
        (folder / PLAN).write_text(make_plan(lake, facts, before, recorded).to_json(), encoding="utf-8")
        run.log_excerpt = _excerpt(_compute(source, run, folder))
    with _step(run, Step.PUBLISH):
        load(read_results(folder), facts, run, now=database_now())
    _finish(run, State.SUCCEEDED, step=Step.DONE)


@contextmanager
def _step(run: ReportRun, step: ReportRun.Step) -> Iterator[None]:
    started = monotonic()
    run.step = step
    run.seen_at = database_now()
    run.save()
    yield
    setattr(run, f"{step}_seconds", round(monotonic() - started, 3))


def _export(source: Source, run: ReportRun, lake: Lake, days: Sequence[date]) -> Facts:
    facts = {}
    for day in days:
        facts[day] = source.bring(day, lake, now=database_now(), progress=source.progress)
        lake.verify(facts[day])
        _beat(run)
    return facts


def _compute(source: Source, run: ReportRun, folder: Path) -> str:
    def on_line(line: str) -> None:
        _beat(run)
        _end_with_worker()
        if line:
            source.progress(f"{run.from_day} to {run.to_day}: computed {line}")

    classes = archive_of(spark_home() / "jars", settings.DATA_DIR) if is_here(settings.SPARK_MASTER) else None
    memory = settings.SPARK_DRIVER_MEMORY
    return submit(Submission(settings.SPARK_MASTER, memory, source.lake, folder, run.event_count, on_line, classes))


def _end_with_worker() -> None:
    """End the run, and Spark, if the worker is stopped. This is checked at least every BEAT_SECONDS."""
    if WORKER_STOP.is_set():
        raise WorkerStops


def _forget_old_days() -> None:
    """Remove days from the lake that are older than its retention. A failure is only logged: the run is published."""
    try:
        Lake(settings.REPORTS_LAKE).forget_before(oldest_day_of_lake(database_now()))
    except FAULTS as error:
        log.warning("old_days_not_removed", error=in_one_line(error))


def _renew(recorded: Sequence[Day]) -> None:
    """Mark the days whose facts in the lake are others than those of their reports.

    The database knows of each export, unless it was restored to an earlier time than the lake.
    """
    for day in recorded:
        same = PublishedDay.objects.filter(day=day.day, is_made_up=False, renewed_at__lte=F("published_at"))
        same.exclude(facts_digest__in=("", day.digest)).update(renewed_at=database_now())


def make_plan(lake: Lake, facts: Facts, before: Sequence[date], recorded: Sequence[Day]) -> Plan:
    """Return the plan of a run.

    ``before`` are the earlier days with reports that it looks back to, and ``recorded`` those that are in the lake.
    """
    first, names = min(facts), [day.isoformat() for day in facts]
    snapshots = [day for day in recorded if day.day < first and _has_counters(lake, day, first)]
    known = dict.fromkeys(LOOK_BACK_DAYS, before) | {tables.UNKNOWN_ERRORS.name: [day.day for day in snapshots]}
    return Plan(
        days=names,
        snapshots=[*(day.day.isoformat() for day in snapshots), *names],
        rows={table.name: {str(day): facts[day].rows[table.name] for day in facts} for table in tables.EVENT_TABLES},
        history=_looked_back(list(facts), known) | {SURVIVAL: _survival_days(facts)},
        history_from={str(day): str(facts[day].events_since) for day in facts},
        incomplete_days=[str(day) for day in facts if not facts[day].is_complete],
    )


def _has_counters(lake: Lake, earlier: Day, first: date) -> bool:
    """Return whether a run looks back to the counters of an earlier day, and they are as they were exported.

    Those of another schema are left out, because a comparison with them would be wrong.
    """
    if earlier.day < first - timedelta(LOOK_BACK_SNAPSHOTS[tables.UNKNOWN_ERRORS.name]):
        return False
    try:
        lake.verify(earlier, tables.UNKNOWN_ERRORS)
    except LakeError as error:
        log.warning("day_left_out", error=str(error))
        return False
    return True


def _looked_back(days: Sequence[date], known: Mapping[str, Sequence[date]]) -> dict[str, dict[str, tuple[int, int]]]:
    """Return by table and day how many of the days that it looks back to are expected, and how many are there.

    Days before the first day with reports are not expected.
    """
    real = PublishedDay.objects.filter(is_made_up=False)
    oldest = min([*real.order_by("day").values_list("day", flat=True)[:1], *days])
    history: dict[str, dict[str, tuple[int, int]]] = {}
    for table, look_back in (LOOK_BACK_DAYS | LOOK_BACK_SNAPSHOTS).items():
        there = {*known[table], *days}
        history[table] = {
            day.isoformat(): (
                min(look_back, (day - oldest).days),
                sum(day - timedelta(n) in there for n in range(1, look_back + 1)),
            )
            for day in days
        }
    return history


def _survival_days(facts: Facts) -> dict[str, tuple[int, int]]:
    """Return by day how many days of events the survival of its cohorts needs, and how many of them are complete."""
    found = {}
    for day, exported in facts.items():
        oldest = day - timedelta(days=day.weekday() + 7 * (tables.LIFETIME_WEEKS - 1))
        whole = max(oldest, exported.events_since)
        found[day.isoformat()] = ((day - oldest).days + 1, max(0, (day - whole).days + 1))
    return found


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
