"""Beat's part in the reports: making what is owed or asked for, noticing what is missing, and mailing what is new.

Runs are made by a worker of their own, one after the other. Their tasks are acknowledged at once, because the broker
would hand out again what takes hours: what a killed worker leaves undone is found in the database by the next one.
"""

from dataclasses import dataclass
from datetime import date, datetime
from smtplib import SMTPException
from threading import Event
from typing import Any

import structlog
from celery import shared_task, signals
from django.conf import settings
from django.utils import timezone

from spark_reports import nights, status
from spark_reports.by_hand import next_request
from spark_reports.mail import send_summary
from spark_reports.models import ReportRun, RequestedRun
from spark_reports.parts import missing
from waku_bridge.tasks import MessageTask

log = structlog.get_logger(__name__)
_stopping = Event()


@signals.worker_shutting_down.connect
def stop_runs(**_kwargs: Any) -> None:
    _stopping.set()


@dataclass(frozen=True, slots=True)
class _Work:
    """Days to make reports of; ``request`` when somebody asked for them."""

    first: date
    last: date
    replace: bool = False
    request: RequestedRun | None = None


@shared_task(base=MessageTask, autoretry_for=(), acks_late=False)  # the next one comes in five minutes
def make_reports() -> None:
    while not _stopping.is_set() and (work := _next_work(timezone.now())):
        if not _make(work):
            return


def _next_work(now: datetime) -> _Work | None:
    if request := next_request():
        return _Work(request.from_day, request.to_day, request.replace, request)
    day = nights.next_day(now) if settings.REPORTS_NIGHTLY else None
    return _Work(day, day) if day else None


def _make(work: _Work) -> bool:
    """False when nothing more can be made now. A failure is kept with its run and told by `status`; a request is over
    with it, whatever it was, or it would come before all nights for ever.
    """
    if lack := missing():
        _note_failure(work, lack)
    else:
        from spark_reports.runs import (  # noqa: PLC0415 - needs what may not be installed
            Busy,
            RunError,
            WorkerStops,
            run_reports,
        )

        try:
            run_reports(work.first, work.last, progress=_until_stopped(), replace=work.replace)
        except (Busy, WorkerStops):
            return False
        except RunError as error:
            log.info("reports_wait", day=str(work.last), error=str(error))
        except Exception:
            _close(work)
            raise
        else:
            _announce(work)
    _close(work)
    return True


def _close(work: _Work) -> None:
    if work.request:
        work.request.delete()


def _until_stopped() -> Any:
    from spark_reports.runs import Progress, WorkerStops  # noqa: PLC0415 - as above

    class UntilStopped(Progress):
        def beat(self) -> None:
            if _stopping.is_set():
                raise WorkerStops

    return UntilStopped()


def _note_failure(work: _Work, error: str) -> None:
    now = timezone.now()
    moments = {"started_at": now, "seen_at": now, "finished_at": now}
    ReportRun.objects.create(
        from_day=work.first, to_day=work.last, state=ReportRun.State.FAILED, error=error, **moments
    )
    log.error("reports_failed", from_day=str(work.first), to_day=str(work.last), error=error)


def _announce(work: _Work) -> None:
    """A night is mailed once; what is made again by hand is not."""
    if settings.REPORT_RECIPIENTS and not work.request:
        mail_summary.delay(work.last.isoformat())


@shared_task(base=MessageTask, autoretry_for=(OSError, SMTPException), retry_backoff=60, retry_backoff_max=600)
def mail_summary(day: str) -> None:
    send_summary(date.fromisoformat(day))


@shared_task(base=MessageTask, autoretry_for=())  # the next one comes in five minutes
def watch_reports() -> None:
    found = status.status(timezone.now())
    status.pin(found)
    if found.is_alarm:
        log.warning("reports_missing", reason=found.words)
