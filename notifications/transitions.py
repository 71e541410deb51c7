"""The only way in which a stored notification changes its state.

Every change is an update guarded by the states it may start from (`TRANSITIONS`), so that the second of two changes
nothing, whatever it read before.
"""

from typing import Any

from django.db.models import QuerySet

from kit.metrics.batches import count
from notifications.metrics import FINISHED
from notifications.models import TRANSITIONS, Notification

State = Notification.State
OPEN = list(TRANSITIONS)
# The states of notifications that wait for an attempt. `notification_due`, the partial index of the queue, has the
# same.
DUE = [State.PENDING, State.RETRYING, State.AMBIGUOUS]
SOURCES = {to: [state for state in OPEN if to in TRANSITIONS[state]] for to in State}
# What was meant for the device, and when to send again: both are removed at the end.
OVER: dict[str, Any] = {
    "lease_until": None,
    "next_attempt_at": None,
    "chat_id": None,
    "message": None,
    "wake": None,
}


def move(notifications: QuerySet[Notification], to: Notification.State, **changes: Any) -> int:
    """Bring those of ``notifications`` that may go there into state ``to``, and return how many did."""
    moved = notifications.filter(state__in=SOURCES[to]).update(state=to, **changes)
    if moved and to.is_terminal:
        count(FINISHED, {(to,): moved})
    return moved
