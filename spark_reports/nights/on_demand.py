"""Runs on demand. A request of an operator is a row until its run is over, so that it survives queue and worker."""

from datetime import date, datetime

import structlog
from django.db import transaction

from spark_reports.models import ReportRun, RequestedRun

log = structlog.get_logger(__name__)
# The error of a run whose process ended without recording one.
KILLED = "Its process was killed."
MAX_KILLED = 2  # the next run records that a run was killed, so a request has three runs at most
# A longer range is computed in several runs.
MAX_DAYS_PER_RUN = 14


def ask(first: date, last: date, *, replace: bool, now: datetime) -> bool:
    """Request the reports of a range of days.

    Return False if the same range is requested already and not over.
    """
    with transaction.atomic():
        _, is_new = RequestedRun.objects.get_or_create(
            from_day=first, to_day=last, defaults={"replace": replace, "asked_at": now}
        )
    return is_new


def next_request() -> RequestedRun | None:
    """Return the oldest request.

    A request is dropped once MAX_KILLED of its runs are recorded as killed, because requests come before all nights.
    """
    for request in RequestedRun.objects.order_by("asked_at"):
        if _killed_runs(request) < MAX_KILLED:
            return request
        request.delete()
        log.error("request_given_up", from_day=str(request.from_day), to_day=str(request.to_day))
    return None


def _killed_runs(request: RequestedRun) -> int:
    """Count the killed runs of a request, which may have several runs for a long range."""
    runs = ReportRun.objects.filter(from_day__gte=request.from_day, to_day__lte=request.to_day, error=KILLED)
    return runs.filter(started_at__gte=request.asked_at).count()
