"""The scheduled task that makes owed and requested reports.

A worker for reports alone makes one run after the other. The next worker finds the work of a killed one in the
database.
"""

from datetime import datetime

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


@shared_task(base=MessageTask, autoretry_for=())  # the schedule runs it again in five minutes
def make_reports() -> None:
    """Make reports until none is owed or requested, or none can be made now."""
    status.LACK.save(missing())
    with timeouts(REPORTS):
        while not WORKER_STOP.is_set() and (work := _next_work(database_now())):
            if not _make(work):
                return


def _next_work(now: datetime) -> RequestedRun | None:
    """Return the oldest request of an operator, or else one for a night, which is not stored."""
    if request := next_request():
        return request
    day = nights.next_day(now) if settings.REPORTS_NIGHTLY else None
    return RequestedRun(from_day=day, to_day=day, replace=False) if day else None


def _make(work: RequestedRun) -> bool:
    """Make the reports of ``work``. Return False if no more reports can be made now.

    A failure is stored with its run, and `status` shows it. A request ends with its run, also with a failed one.
    Otherwise it would come before all nights for ever.
    """
    if lack := missing():
        _note_lack(work, lack)
    else:
        from spark_reports.running.runs import (  # noqa: PLC0415 - needs PyArrow, which may not be installed
            Busy,
            RunError,
            WorkerStops,
            run_reports,
        )

        try:
            run_reports(work.from_day, work.to_day, replace=work.replace)
        except (Busy, WorkerStops):
            return False
        except RunError as error:
            log.info("reports_wait", day=str(work.to_day), error=str(error))
        except Exception:
            _close(work)
            raise
    _close(work)
    return True


def _close(work: RequestedRun) -> None:
    if work.pk:
        work.delete()


def _note_lack(work: RequestedRun, error: str) -> None:
    """Record one failed run for all owed nights, because a part that the machine lacks is missing for every day."""
    now = database_now()
    last = work.to_day if work.pk else max(nights.owed_days(now), default=work.to_day)
    moments = {"started_at": now, "seen_at": now, "finished_at": now}
    ReportRun.objects.create(from_day=work.from_day, to_day=last, state=ReportRun.State.FAILED, error=error, **moments)
    log.error("reports_failed", from_day=str(work.from_day), to_day=str(last), error=error)
