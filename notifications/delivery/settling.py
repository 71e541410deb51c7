"""Which requests can be answered now, and what their senders are told."""

from collections.abc import Iterable
from datetime import datetime

from django.db import transaction

from measuring.batches import observe
from notifications.delivery.rows import fix_reports, lock_answerable
from notifications.messages import Answer
from notifications.metrics import ANSWER_SECONDS
from notifications.models import NotificationRequest
from notifications.reports import load_reports


def settle(request_ids: Iterable[int], *, now: datetime) -> list[Answer]:
    """Fix the reports of requests whose notifications were all tried once, or whose reply is due, and return them.

    Each request is answered once: whoever changes its state takes the answer.
    """
    with transaction.atomic(savepoint=False):
        requests = lock_answerable(request_ids, now=now)
        if not requests:
            return []
        ids = [request.id for request in requests]
        fix_reports(ids)
        reports = load_reports(ids)
        NotificationRequest.objects.filter(pk__in=ids).update(
            state=NotificationRequest.State.ANSWERED, answered_at=now, reply_to=None
        )
        observe(ANSWER_SECONDS, ((now - request.received_at).total_seconds() for request in requests))
    return [Answer(r.envelope_hash, r.reply_to or b"", r.message_id, tuple(reports[r.id])) for r in requests]


def overdue_request_ids(*, now: datetime, limit: int) -> list[int]:
    """Requests whose reply is late: a worker died, or nobody tried their notifications in time."""
    waiting = NotificationRequest.objects.filter(state=NotificationRequest.State.WAITING, reply_due_at__lte=now)
    return list(waiting.order_by("reply_due_at").values_list("pk", flat=True)[:limit])
