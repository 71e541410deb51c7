"""Locking everything about one client, in the order of the others: nothing is added to what is being removed, and
nobody waits for somebody who waits for them.

Registrations come before routes as in registering, attempts before routes before notifications as in recording what the
gateway said, and requests before notifications as in answering. Envelopes come before all of these, as in processing
them: whoever removes some locks them first.
"""

from notifications.models import Attempt, Notification, NotificationRequest
from registrations.models import Registration, Route


def lock_all_about(key_hash: bytes) -> None:
    """Until the end of the transaction that this belongs into."""
    own = Notification.objects.filter(public_key_hash=key_hash)
    for rows in (
        Registration.objects.filter(public_key_hash=key_hash),
        Attempt.objects.filter(notification__public_key_hash=key_hash),
        Route.objects.filter(registration__public_key_hash=key_hash),
        NotificationRequest.objects.filter(pk__in=own.values("request")),
        own,
    ):
        list(rows.order_by("pk").select_for_update(of=("self",)).values_list("pk"))
