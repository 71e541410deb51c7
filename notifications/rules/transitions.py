"""The only code that changes the state of a stored notification.

Every change is an update guarded by the states that it may start from (`TRANSITIONS`). So the second of two changes
does nothing, whatever its session read before. The change that ends a notification moves its row to the day
(`kit.db.partitions`). A session that waits for the lock of that row meets a conflict (SQLSTATE 40001), and starts
again.
"""

from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from kit.db.partitions import UNDER_WAY, day_of
from kit.metrics.batches import count
from notifications.metrics import FINISHED
from notifications.models import TRANSITIONS, Notification

State = Notification.State
OPEN = list(TRANSITIONS)
# The states of notifications that wait for an attempt. `notification_due`, the partial index of the queue, has the
# same.
DUE = [State.PENDING, State.RETRYING, State.AMBIGUOUS]
SOURCES = {to: [state for state in OPEN if to in TRANSITIONS[state]] for to in State}
# The content for the device, and when to send again. Both are removed at the end, as `queues.OVER` does in SQL.
_CONTENT = ("lease_until", "next_attempt_at", "chat_id", "message", "wake")


def move(notifications: QuerySet[Notification], to: Notification.State, **changes: Any) -> int:
    """Change those of ``notifications`` to state ``to`` that may go there, and return how many changed."""
    return notifications.filter(state__in=SOURCES[to], ended_on=UNDER_WAY).update(state=to, **changes)


def end(notifications: QuerySet[Notification], to: Notification.State, *, now: datetime) -> int:
    """End those of ``notifications`` that may end in state ``to``, and return how many ended."""
    ended = move(notifications, to, finished_at=now, ended_on=day_of(now), **dict.fromkeys(_CONTENT))
    if ended:
        count(FINISHED, {(to,): ended})
    return ended
