"""The scheduled task that makes owed and requested reports.

A worker for reports alone makes one run after the other. The next worker finds the work of a killed one in the
database.
"""

from dataclasses import dataclass
from datetime import date, datetime

import structlog
from celery import shared_task
from django.conf import settings

from kit.db.base import REPORTS, timeouts
from kit.db.clock import database_now
from kit.processes.tasks import WORKER_STOP, MessageTask
from spark_reports.models import ReportRun, RequestedRun
from spark_reports.nights import nights, status
from spark_reports.nights.on_demand import next_request
from spark_reports.running.parts import missing

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Work:
    """The days to report.

    ``request`` is set if an operator requested them.
    """

    first: date
    last: date
    replace: bool = False
    request: RequestedRun | None = None


@shared_task(base=MessageTask, autoretry_for=())  # the schedule runs it again in five minutes
def make_reports() -> None:
    """Make reports until none is owed or requested, or none can be made now."""
    status.LACK.save(missing())
    with timeouts(REPORTS):
        while not WORKER_STOP.is_set() and (work := _next_work(database_now())):
            if not _make(work):
                return


def _next_work(now: datetime) -> _Work | None:
    if request := next_request():
        return _Work(request.from_day, request.to_day, request.replace, request)
    day = nights.next_day(now) if settings.REPORTS_NIGHTLY else None
    return _Work(day, day) if day else None


def _make(work: _Work) -> bool:
    """Make the reports of ``work``. Return False if no more reports can be made now.

    A failure is stored with its run, and `status` shows it. A request ends with its run, also with a failed one.
    Otherwise it would come before all nights for ever.
    """
    if lack := missing():
        _note_lack(work, lack)
    else:
        from spark_reports.running.runs import (  # noqa: PLC0415 - needs PyArrow, which may not be installed
            Busy,
            Progress,
            RunError,
            WorkerStops,
            run_reports,
        )

        try:
            run_reports(work.first, work.last, progress=Progress(), replace=work.replace)
        except (Busy, WorkerStops):
            return False
        except RunError as error:
            log.info("reports_wait", day=str(work.last), error=str(error))
        except Exception:
            _close(work)
            raise
    _close(work)
    return True


def _close(work: _Work) -> None:
    if work.request:
        work.request.delete()


def _note_lack(work: _Work, error: str) -> None:
    """Record one failed run for all owed nights, because a part that the machine lacks is missing for every day."""
    now = database_now()
    last = work.last if work.request else max(nights.owed_days(now), default=work.last)
    moments = {"started_at": now, "seen_at": now, "finished_at": now}
    ReportRun.objects.create(from_day=work.first, to_day=last, state=ReportRun.State.FAILED, error=error, **moments)
    log.error("reports_failed", from_day=str(work.first), to_day=str(last), error=error)
