"""Admission: limits on waiting notifications, so that a flood of one sender refuses no requests of others.

    MAX_OPEN_NOTIFICATIONS ── for each gateway an equal part ─┬── UNPROVEN_SHARE of it, in equal parts: queues of
                                                              │   addresses that nothing was delivered to yet
                                                              └── the rest, in equal parts: queues of proven addresses

A full queue refuses new notifications with INTERNAL_ERROR, and affects no other queue. A sender that received the error
repeats its request. A sender that received success can rely on it. A halt on the queue changes none of this.

The leader counts (`Counts`) and writes the counts into the rows of the queues. Each process reads them every few
seconds, and adds what it stored itself since the count.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from time import monotonic
from typing import LiteralString, NamedTuple

from django.conf import settings

from kit.db.statements import fetch, write
from kit.processes.once import once
from notifications.messages import ChannelKey, QueueKey
from notifications.queues import queues
from notifications.queues.queues import QUEUED, Queues

# The part of MAX_OPEN_NOTIFICATIONS for addresses that nothing was delivered to yet.
UNPROVEN_SHARE = 0.1
READ_EVERY_SECONDS = 3.0
COUNTED_EVERY: LiteralString = "3 seconds"
# Rows of one queue that one step of the count reads. They come from the index alone and take some milliseconds.
COUNTED_AT_ONCE = 10_000


def limits_of(keys: Iterable[QueueKey]) -> Mapping[QueueKey, int]:
    """Return the limit of each of these queues. Their sum is at most MAX_OPEN_NOTIFICATIONS."""
    own = list(keys)
    gateways = len({key.gateway for key in own})
    alike = Counter((key.gateway, key.is_proven) for key in own)
    return {key: _limit(key, gateways, alike[key.gateway, key.is_proven]) for key in own}


def _limit(key: QueueKey, gateways: int, alike: int) -> int:
    """Return the limit of one of ``alike`` queues, of one of ``gateways`` gateways."""
    part = 1 - UNPROVEN_SHARE if key.is_proven else UNPROVEN_SHARE
    return max(1, int(settings.MAX_OPEN_NOTIFICATIONS / gateways * part / alike))


class Admission:
    """The decision whether a notification may be taken, by the leader's count and by what this process stored since."""

    def __init__(self) -> None:
        self._known = Queues()
        self._limits: Mapping[QueueKey, int] = {}
        self._waiting: Counter[QueueKey] = Counter()
        self._counted_at: dict[QueueKey, datetime | None] = {}
        self._read_at = float("-inf")

    def refresh(self) -> None:
        """Read the leader's counts, unless they were read a moment ago."""
        if monotonic() < self._read_at + READ_EVERY_SECONDS:
            return
        self._known = queues.load()
        self._limits = limits_of(self._known.rows)
        for key, row in self._known.rows.items():
            # Where the leader has not counted since, only the additions of this process are known.
            if self._counted_at.get(key) != row.counted_at or key not in self._waiting:
                self._waiting[key] = row.waiting_count
                self._counted_at[key] = row.counted_at
        self._read_at = monotonic()

    def is_full(self, gateway: str, app: ChannelKey, *, is_proven: bool) -> bool:
        """Return whether the queue of a notification is full."""
        key = self._known.key(gateway, app, is_proven=is_proven)
        limit = self._limits.get(key) or limits_of([*self._known.rows, key])[key]
        return self._waiting[key] >= limit

    def add(self, gateway: str, app: ChannelKey, *, is_proven: bool) -> None:
        """Count one more waiting notification."""
        self._waiting[self._known.key(gateway, app, is_proven=is_proven)] += 1


@once
def own_admission() -> Admission:
    """Return the admission of this process."""
    return Admission()


# Counting -------------------------------------------------------------------------------------------------------------

# Queues whose count is older than COUNTED_EVERY.
UNCOUNTED: LiteralString = f"""
    SELECT id FROM notifications_queue
    WHERE counted_at IS NULL OR counted_at <= %(now)s - interval '{COUNTED_EVERY}'
"""
_COUNT_WAITING: LiteralString = f"""
    SELECT queue.id, part.number, part.last_at
    FROM unnest(%(ids)b::integer[], %(after)b::timestamptz[]) AS queue (id, after)
    CROSS JOIN LATERAL (
        SELECT count(*) AS number, max(next_attempt_at) AS last_at FROM (
            SELECT next_attempt_at FROM notifications_opennotification
            WHERE queue_id = queue.id AND {QUEUED}
                AND next_attempt_at > coalesce(queue.after, %(nothing_before)s - interval '1 microsecond')
            ORDER BY next_attempt_at LIMIT %(limit)s
        ) AS read
    ) AS part
"""
_WRITE_COUNTS = """
    UPDATE notifications_queue AS queue SET waiting_count = item.number, counted_at = %(now)s
    FROM unnest(%(ids)b::integer[], %(numbers)b::bigint[]) AS item (id, number)
    WHERE queue.id = item.id AND queue.id = ANY (ARRAY(
        SELECT id FROM notifications_queue WHERE id = ANY (%(ids)b::integer[]) FOR NO KEY UPDATE SKIP LOCKED
    ))
"""


class Part(NamedTuple):
    """The progress of the count of one queue."""

    number: int = 0
    after: datetime | None = None


class Counts:
    """The count of the waiting notifications in each queue.

    Each step reads at most `COUNTED_AT_ONCE` rows of each queue, so that ten million rows delay nothing. Rows that are
    due at the very moment at which a step ended are left out rather than counted twice. They are one batch at most.
    """

    def __init__(self) -> None:
        self._parts: dict[int, Part] = {}

    def step(self, *, now: datetime, nothing_before: datetime) -> dict[int, Part]:
        """Continue the old counts, write those that are complete, and return the progress of the others, for `keep`.

        No waiting row has been due since before ``nothing_before``.
        """
        ids = sorted(pk for (pk,) in fetch(UNCOUNTED, {"now": now}))
        parts = [self._parts.get(pk, Part()) for pk in ids]
        limit = COUNTED_AT_ONCE
        asked = {"ids": ids, "after": [part.after for part in parts], "limit": limit, "nothing_before": nothing_before}
        rows = fetch(_COUNT_WAITING, asked) if ids else []
        before = dict(zip(ids, parts, strict=True))
        found = {pk: (before[pk].number + number, number, last_at) for pk, number, last_at in rows}
        complete = {pk: total for pk, (total, number, _) in sorted(found.items()) if number < limit}
        if complete:
            write(_WRITE_COUNTS, {"ids": list(complete), "numbers": list(complete.values()), "now": now})
        return {pk: Part(total, last_at) for pk, (total, _, last_at) in found.items() if pk not in complete}

    def keep(self, parts: Mapping[int, Part]) -> None:
        """Continue from here, because the step is committed."""
        self._parts = dict(parts)
