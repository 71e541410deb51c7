"""Runs that operators ask for. A request is a row until its run is over, so that it survives queue and worker."""

from datetime import date, datetime

from django.db import transaction

from spark_reports.models import RequestedRun


def ask(first: date, last: date, *, replace: bool, now: datetime) -> bool:
    """Have a range of days made again; False when somebody asked for the same before and it is not over."""
    with transaction.atomic():
        _, is_new = RequestedRun.objects.get_or_create(
            from_day=first, to_day=last, defaults={"replace": replace, "asked_at": now}
        )
    return is_new


def next_request() -> RequestedRun | None:
    return RequestedRun.objects.order_by("asked_at").first()
