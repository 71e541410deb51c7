"""Retention: the days of old requests, notifications and attempts are dropped, and old keys of requests deleted."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import chain
from typing import LiteralString

from kit.db.base import fetch
from kit.db.clock import DAY, RECENT
from kit.db.partitions import SET_SIZE, WRITTEN_ONCE, DayTable, remove

REQUESTS = DayTable("notifications_answeredrequest", "ended_on", storage=WRITTEN_ONCE)
NOTIFICATIONS = DayTable("notifications_endednotification", "ended_on", storage=WRITTEN_ONCE)
ATTEMPTS = DayTable("notifications_endedattempt", "started_at")
DECIDED = DayTable("notifications_decidedatonce", "decided_on", storage=WRITTEN_ONCE)
REFUSED = DayTable("notifications_refusedrequest", "received_at", storage=WRITTEN_ONCE)
BY_DAY = (REQUESTS, NOTIFICATIONS, ATTEMPTS, DECIDED, REFUSED)

# Ids are given out in the order of time, and each partition has an index of them.
_OLDEST: LiteralString = "SELECT created_at FROM notifications_notification ORDER BY id LIMIT 1"
_OLDEST_ENDED: LiteralString = "SELECT created_at FROM notifications_endednotification ORDER BY id LIMIT 1"


def _purge_old(table: LiteralString, column: LiteralString) -> LiteralString:
    """Return the statement that deletes the old rows of a table, by the time in this column."""
    return f"""
        WITH gone AS (
            DELETE FROM {table} WHERE ctid = ANY (ARRAY(
                SELECT ctid FROM {table} WHERE {column} < %(before)s LIMIT {SET_SIZE}
            )) RETURNING 1
        )
        SELECT count(*) FROM gone
    """


_PURGE_DIGESTS = _purge_old("notifications_requestdigest", "received_at")
_PURGES = (
    _purge_old("notifications_halt", "ended_at"),
    _purge_old("notifications_beyondlimit", "begin_at"),
    _purge_old("notifications_refusedhour", "begin_at"),
)


def purge(*, now: datetime, keep: timedelta) -> Iterator[int]:
    """Drop the days that ended ``keep`` ago, and create the coming ones. Yield the rows that each step removed, if
    known.

    Rows under way belong to no day. A request is kept for as long as a notification of it, and what refused requests
    leave for `RECENT`.
    """
    for table in BY_DAY:
        table.make_ahead(now=now)
    before = now - keep
    for old in _PURGES:
        yield from remove(old, before=before)
    yield from chain.from_iterable(table.drop_before(before) for table in (ATTEMPTS, NOTIFICATIONS, DECIDED))
    yield from REFUSED.drop_before(now - RECENT)
    without_any = min([before, *_oldest(_OLDEST_ENDED)])
    if REQUESTS.has_before(without_any):  # once a day: `_OLDEST` also reads the dead rows that an old snapshot keeps
        yield from REQUESTS.drop_before(min([without_any, *_oldest(_OLDEST)]))


def _oldest(sql: LiteralString) -> list[datetime]:
    """Return a time a day before the oldest notification, because the order of ids differs from the clock by
    seconds.
    """
    return [created_at - DAY for (created_at,) in fetch(sql)]


def purge_digests(*, now: datetime, keep: timedelta) -> Iterator[int]:
    """Delete the digests of requests older than ``keep``. Yield how many each step deleted."""
    return remove(_PURGE_DIGESTS, before=now - keep)
