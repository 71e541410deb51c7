"""Locks on all rows about one client, taken in the order in which all other code takes them.

So no transaction adds to the rows that are being removed, and no two transactions wait for each other. Registrations
come before routes, as in registering. Attempts come before routes, and these before notifications, as in recording the
gateway's answers. Requests come before notifications, as in answering. Envelopes come before all of these, as in
processing: code that removes envelopes locks them first.
"""

from notifications.models import EndedAttempt, Notification, OpenNotification, OpenRequest
from registrations.models import Registration, Route


def lock_all_about(key_hash: bytes) -> None:
    """Lock all rows about a key hash until the end of the caller's transaction."""
    own = Notification.objects.filter(public_key_hash=key_hash)
    for rows in (
        Registration.objects.filter(public_key_hash=key_hash),
        EndedAttempt.objects.filter(notification__public_key_hash=key_hash),
        Route.objects.filter(registration__public_key_hash=key_hash),
        OpenRequest.objects.filter(pk__in=own.values("request")),
        OpenNotification.objects.filter(public_key_hash=key_hash),
    ):
        list(rows.order_by("pk").select_for_update(of=("self",)).values_list("pk"))
