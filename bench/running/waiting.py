"""Checks for remaining work, by conditions that have an index. Imported once Django is set up.

Reading whole tables repeatedly would count as PostgreSQL's work for the benchmark, and grow with the tables.
"""

from notifications.models import Notification
from waku_bridge.models import InboundEnvelope, OutboundReply


def is_delivery_over() -> bool:
    """Return whether no notification waits or is in flight."""
    state = Notification.State
    waiting = Notification.objects.filter(state__in=[state.PENDING, state.RETRYING, state.AMBIGUOUS])
    return not waiting.exists() and not Notification.objects.filter(state=state.IN_FLIGHT).exists()


def is_waku_over() -> bool:
    """Return whether every envelope is decided, delivery is over, and every reply was published."""
    envelopes = [InboundEnvelope.objects.filter(state=state) for state in ("received", "postponed")]
    is_any_left = any(rows.exists() for rows in envelopes) or OutboundReply.objects.filter(state="pending").exists()
    return is_delivery_over() and not is_any_left
