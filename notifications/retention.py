"""Forgetting requests, with their notifications and attempts."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from django.db.models import Exists, OuterRef, Q

from notifications.delivery import DUE
from notifications.models import Notification, NotificationRequest
from registrations.retention import delete_in_chunks


def purge(*, now: datetime, keep: timedelta) -> Iterator[int]:
    """Remove answered requests older than ``keep``, but none that has a notification still under way."""
    under_way = Q(state__in=[*DUE, Notification.State.IN_FLIGHT])
    over = NotificationRequest.objects.filter(
        ~Exists(Notification.objects.filter(under_way, request=OuterRef("pk"))),
        state=NotificationRequest.State.ANSWERED,
        received_at__lt=now - keep,
    )
    return delete_in_chunks(over.order_by("received_at"))
