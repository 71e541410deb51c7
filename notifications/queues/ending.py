"""The statement that ends notifications: it moves their rows to the history, without the content for the device."""

from collections.abc import Collection
from datetime import datetime
from typing import Literal, LiteralString

from kit.db.base import fetch
from kit.db.clock import day_of
from kit.telemetry import count
from notifications.metrics import FINISHED
from notifications.models import NOTIFICATION, Notification

WAITS: LiteralString = f"state <> '{Notification.State.IN_FLIGHT}'"


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
    key: ending(f"{key} = ANY (%(keys)b::bigint[]) AND {WAITS}", "%(to)s") for key in ("id", "route_id")
}


def end(keys: Collection[int], to: Notification.State, *, now: datetime, by: Literal["id", "route_id"] = "id") -> int:
    """End those of the notifications with these ids, or routes, that wait, and return how many. What a worker is
    sending is left to that worker.
    """
    ended = len(fetch(_END[by], {"keys": list(keys), "to": to, "now": now, "today": day_of(now)})) if keys else 0
    if ended:
        count(FINISHED, {(to,): ended})
    return ended
