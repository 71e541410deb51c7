"""The changes of a stored notification's state, and the statement that ends one.

Every change is guarded by the states that it may start from (`TRANSITIONS`). So the second of two changes does nothing,
whatever its session read before. The statement that ends a notification moves its row to the history, without the
content for the device.
"""

from collections.abc import Collection
from datetime import datetime
from typing import Any, Literal, LiteralString

from django.db.models import QuerySet

from kit.db.partitions import day_of
from kit.db.statements import fetch
from kit.metrics import count
from notifications.metrics import FINISHED
from notifications.models import NOTIFICATION, TRANSITIONS, Notification, OpenNotification

State = Notification.State
OPEN = list(TRANSITIONS)
# The states of notifications that wait for an attempt. `notification_due`, the partial index of the queue, has the
# same.
DUE = [State.PENDING, State.RETRYING, State.AMBIGUOUS]
SOURCES = {to: [state for state in OPEN if to in TRANSITIONS[state]] for to in State}


def ending(
    where: LiteralString,
    state: LiteralString,
    *,
    first: LiteralString = "",
    returning: LiteralString = "state",
) -> LiteralString:
    """Return the statement that ends the open notifications ``n`` for which a condition holds.

    ``state`` is an expression, and ``first`` is another part of its WITH. It needs ``now`` and ``today``.
    """
    return f"""
        WITH {first} over AS (DELETE FROM notifications_opennotification AS n WHERE {where} RETURNING *)
        INSERT INTO notifications_endednotification ({NOTIFICATION}, state, finished_at, ended_on)
        SELECT {NOTIFICATION}, {state}, %(now)s, %(today)s FROM over AS n
        RETURNING {returning}
    """


_END: dict[str, LiteralString] = {
    key: ending(f"{key} = ANY (%(keys)b::bigint[]) AND state = ANY (%(sources)b::text[])", "%(to)s")
    for key in ("id", "route_id")
}


def move(notifications: QuerySet[OpenNotification], to: Notification.State, **changes: Any) -> int:
    """Change those of ``notifications`` to state ``to`` that may go there, and return how many changed."""
    return notifications.filter(state__in=SOURCES[to]).update(state=to, **changes)


def end(keys: Collection[int], to: Notification.State, *, now: datetime, by: Literal["id", "route_id"] = "id") -> int:
    """End those of the notifications with these ids, or routes, that may end in state ``to``. Return how many ended."""
    values = {"keys": list(keys), "sources": SOURCES[to], "to": to, "now": now, "today": day_of(now)}
    ended = len(fetch(_END[by], values)) if keys else 0
    if ended:
        count(FINISHED, {(to,): ended})
    return ended
