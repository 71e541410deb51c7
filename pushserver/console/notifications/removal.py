"""Removal of requests and notifications, for the erasure of a user and the traces of a canary."""

from collections.abc import Collection, Iterable

from notifications.acceptance.storing import digest_of
from notifications.models import (
    AnsweredRequest,
    EndedAttempt,
    EndedNotification,
    Notification,
    OpenNotification,
    OpenRequest,
    RefusedRequest,
    RequestDigest,
)


def forget_keys(keys: Iterable[tuple[str, bytes]]) -> None:
    """Forget these requests, each given by bridge and key, so that they may come again."""
    digests = [digest_of(bridge, key) for bridge, key in keys]
    for known in (RequestDigest, RefusedRequest):
        known.objects.filter(digest__in=digests).delete()


def remove_notifications(notification_ids: Collection[int]) -> None:
    """Remove notifications with their attempts. The caller has locked the open ones."""
    EndedAttempt.objects.filter(notification__in=notification_ids).delete()
    for notifications in (OpenNotification, EndedNotification):
        notifications.objects.filter(pk__in=notification_ids).delete()


def remove_requests(request_ids: Collection[int]) -> None:
    """Remove requests with their notifications and attempts. The caller has locked the open ones."""
    remove_notifications(set(Notification.objects.filter(request__in=request_ids).values_list("pk", flat=True)))
    for requests in (OpenRequest, AnsweredRequest):
        requests.objects.filter(pk__in=request_ids).delete()
