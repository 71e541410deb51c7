"""The state of the nightly reports, for the console, for `/readyz` and for alarms."""

from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum

from django.conf import settings

from kit.display import counted
from kit.processes.status import StatusCache
from spark_reports.models import Anomaly, DataQuality, PublishedDay, ReportRun
from spark_reports.nights.nights import next_night, overdue_days, owed_days

NO_RUN = 'no run was started. Is there a worker for the queue "reports", and beat?'


class State(StrEnum):
    OFF = "off"  # no nightly reports: by the settings, or because the worker lacks PySpark, PyArrow or Java
    WAITING = "waiting"  # the first night is still to come
    PRESENT = "present"
    MISSING = "missing"  # an alarm: the reports of a night are overdue


@dataclass(frozen=True, slots=True)
class Status:
    """The state of the reports, with ``words`` in one line.

    ``newest_day`` is the newest day with reports. ``anomalies`` and ``findings`` count those of that day.
    """

    state: State
    words: str
    newest_day: date | None = None
    anomalies: int = 0
    findings: int = 0

    @property
    def is_alarm(self) -> bool:
        return self.state == State.MISSING


# The task `watch_reports` saves it every five minutes.
SAVED = StatusCache("reports", Status, ttl_seconds=900)
# The parts that the worker for reports lacks, in one line. It saves them itself, because it may be on another machine.
LACK = StatusCache("reports_lack", str, ttl_seconds=900)


def status(now: datetime) -> Status:
    """Judge the nightly reports from the rows in the database."""
    real = PublishedDay.objects.filter(is_made_up=False)
    newest = real.order_by("-day").values_list("day", flat=True).first()
    anomalies = Anomaly.objects.filter(day=newest).count() if newest else 0
    findings = DataQuality.objects.filter(day=newest, is_ok=False).count() if newest else 0
    state, words = _state(newest, now)
    return Status(state, words, newest, anomalies, findings)


def _state(newest: date | None, now: datetime) -> tuple[State, str]:
    if not settings.REPORTS_NIGHTLY:
        return State.OFF, "Nightly reports are switched off (REPORTS_NIGHTLY)."
    if overdue := overdue_days(now):
        return State.MISSING, f"The reports of {overdue[-1]} are missing: {_why(overdue[-1])}"
    if newest:
        return State.PRESENT, f"The reports of {newest} are here.{_stale(newest, now)}"
    if lack := LACK.read():
        return State.OFF, lack
    return State.WAITING, f"The first reports come after {next_night(now):%Y-%m-%d %H:%M} UTC."


def _stale(newest: date, now: datetime) -> str:
    """Return a sentence about the stale days, or an empty text. No day before the newest one is missing here."""
    number = len([day for day in owed_days(now) if day <= newest])
    return f" Those of {counted(number, 'day')} are stale, and are made again." if number else ""


def _why(day: date) -> str:
    runs = ReportRun.objects.filter(from_day__lte=day, to_day__gte=day, is_made_up=False)
    run = runs.order_by("-started_at").first()
    if run is None:
        return NO_RUN
    if run.state == ReportRun.State.RUNNING:
        return f"run {run.pk} is still under way ({run.step}), last seen {run.seen_at:%H:%M} UTC."
    return run.error or f"run {run.pk} ended as {run.state}."
