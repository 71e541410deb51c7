"""Which requests can be answered now, and what their senders are told."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet

from measuring.batches import observe
from notifications.messages import Answer
from notifications.metrics import ANSWER_SECONDS
from notifications.models import Notification, NotificationRequest
from notifications.reports import load_reports

State = Notification.State


def settle(request_ids: Iterable[int], *, now: datetime) -> list[Answer]:
    """Fix the reports of requests whose notifications were all tried once, or whose reply is due, and return them.

    Each request is answered once: whoever changes its state takes the answer.
    """
    with transaction.atomic():
        requests = list(
            NotificationRequest.objects.select_for_update(skip_locked=True)
            .filter(pk__in=request_ids, state=NotificationRequest.State.WAITING)
            .filter(~Exists(_untried()) | Q(reply_due_at__lte=now))
            .order_by("pk")
        )
        ids = [request.pk for request in requests]
        _fix_reports(ids)
        reports = load_reports(ids)
        NotificationRequest.objects.filter(pk__in=ids).update(
            state=NotificationRequest.State.ANSWERED, answered_at=now, reply_to=None
        )
        observe(ANSWER_SECONDS, ((now - request.received_at).total_seconds() for request in requests))
    return [
        Answer(bytes(r.envelope_hash), bytes(r.reply_to or b""), bytes(r.message_id), tuple(reports[r.pk]))
        for r in requests
    ]


def _untried() -> QuerySet[Notification]:
    return Notification.objects.filter(
        Q(state=State.PENDING) | Q(state=State.IN_FLIGHT, attempt_count=1), request=OuterRef("pk")
    )


def _fix_reports(request_ids: Sequence[int]) -> None:
    """A dead token is told; whatever is delivered, still tried, or unknown counts as success."""
    unanswered = Notification.objects.filter(request__in=request_ids, report__isnull=True)
    unanswered.filter(state=State.DEAD_TOKEN).update(report=Notification.Reports.NOT_REGISTERED)
    unanswered.update(report=Notification.Reports.SUCCESS)


def overdue_request_ids(*, now: datetime, limit: int) -> list[int]:
    """Requests whose reply is late: a worker died, or nobody tried their notifications in time."""
    waiting = NotificationRequest.objects.filter(state=NotificationRequest.State.WAITING, reply_due_at__lte=now)
    return list(waiting.order_by("reply_due_at").values_list("pk", flat=True)[:limit])
