"""Capacity of queues: how many pushes may wait in each, and how many a process has under way.

Admission: limits on waiting notifications, so that a flood of one sender refuses no requests of others.

    MAX_OPEN_NOTIFICATIONS ── for each gateway an equal part ─┬── UNPROVEN_SHARE of it, in equal parts: queues of
                                                              │   addresses that nothing was delivered to yet
                                                              └── the rest, in equal parts: queues of proven addresses

A full queue refuses new notifications with INTERNAL_ERROR, and affects no other queue. A sender that received the error
repeats its request. A sender that received success can rely on it. A halt on the queue changes none of this.

The leader counts (`Counts`) and writes the counts into the rows of the queues. Each process reads them every few
seconds, and adds what it stored itself since the count.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from math import inf
from time import monotonic
from typing import LiteralString, NamedTuple

from django.conf import settings

from kit.batches.looking import since
from kit.db.base import fetch, write
from kit.http import MAX_CONNECTIONS
from kit.processes import once
from notifications.messages import AppKey, QueueKey
from notifications.queues import queues
from notifications.queues.ending import WAITS
from notifications.queues.halts import Reach
from notifications.queues.queues import Queues

# The part of MAX_OPEN_NOTIFICATIONS for addresses that nothing was delivered to yet.
UNPROVEN_SHARE = 0.1
READ_EVERY_SECONDS = 3.0
COUNTED_EVERY: LiteralString = "3 seconds"
# Rows of one queue that one step of the count reads, in some milliseconds.
COUNTED_AT_ONCE = 10_000


def limits_of(keys: Iterable[QueueKey]) -> Mapping[QueueKey, int]:
    """Return the limit of each of these queues. Their sum is at most MAX_OPEN_NOTIFICATIONS."""
    own = list(keys)
    gateways = len({key.gateway for key in own})
    alike = Counter((key.gateway, key.is_proven) for key in own)
    part = {True: 1 - UNPROVEN_SHARE, False: UNPROVEN_SHARE}
    maximum = settings.MAX_OPEN_NOTIFICATIONS / max(gateways, 1)
    return {key: max(1, int(maximum * part[key.is_proven] / alike[key.gateway, key.is_proven])) for key in own}


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

    def is_full(self, gateway: str, app: AppKey, *, is_proven: bool) -> bool:
        """Return whether the queue of a notification is full."""
        key = self._known.key(gateway, app, is_proven=is_proven)
        limit = self._limits.get(key) or limits_of([*self._known.rows, key])[key]
        return self._waiting[key] >= limit

    def add(self, gateway: str, app: AppKey, *, is_proven: bool) -> None:
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
        SELECT count(*) AS number, max(due_at) AS last_at FROM (
            SELECT due_at FROM notifications_opennotification
            WHERE queue_id = queue.id AND {WAITS}
                AND due_at > coalesce(queue.after, {since("Due")} - interval '1 microsecond')
            ORDER BY due_at LIMIT %(limit)s
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

    def step(self, *, now: datetime) -> dict[int, Part]:
        """Continue the old counts, write those that are complete, and return the progress of the others, for `keep`."""
        ids = sorted(pk for (pk,) in fetch(UNCOUNTED, {"now": now}))
        parts = [self._parts.get(pk, Part()) for pk in ids]
        limit = COUNTED_AT_ONCE
        asked = {"ids": ids, "after": [part.after for part in parts], "limit": limit}
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


# Concurrency limits ---------------------------------------------------------------------------------------------------

# Quick answers that raise a limit by one. With fewer, a backlog would fill the limit before the gateway's speed is
# known.
ANSWERS_TO_GROW = 24
# An answer is quick within QUICK_SECONDS, or within QUICK_TIMES the time of the quickest answer.
QUICK_SECONDS = 0.25
QUICK_TIMES = 4
# Pushes of a queue under way before any answer: at 50 ms each that is 640 a second. A backlog gets half of them. With
# eight, addresses that always time out kept a backlog waiting for minutes.
FIRST_LIMIT = 32


@dataclass(frozen=True, slots=True)
class Slot:
    """One push in the limit of its queue. ``is_backlog`` says that the push has waited there."""

    queue_id: int
    is_backlog: bool = False


class ConcurrencyLimits:
    """The number of pushes that a process has under way in each queue.

    A gateway that hangs then takes only the pushes of its own queues. The limit is one of a process and not of the
    fleet, because a hanging queue uses up the connections of a process, as many as our recipe gives the gateway.

    A limit starts small, as TCP starts slowly. It grows by one for every `ANSWERS_TO_GROW` quick answers that come
    while more pushes wait than the limit allows. A quick answer takes not much longer than the quickest one: when more
    pushes at once only make answers slower, a larger limit brings nothing. Pushes under way when a process dies are
    sent again, so no more should be under way than are of use.

    No queue takes more than half of the connections that the others leave, but for one push. So busy queues have equal
    parts, of which one is left for the next queue, and queues that hang never take the last connection.

    The backlog of a queue takes at most half of its limit. The other half is for fresh pushes, which are claimed when
    they are accepted, so that a backlog does not delay them.
    """

    def __init__(self, first: int = FIRST_LIMIT, *, connections: int = MAX_CONNECTIONS) -> None:
        self.reach = Reach()
        self._first = first
        self._connections = connections
        self._taken: Counter[int] = Counter()
        self._taken_by_all = 0
        self._backlog: Counter[int] = Counter()  # of those, pushes that had waited in the queue
        self._answers: Counter[int] = Counter()  # quick ones that came while the queue was crowded
        self._quickest: dict[int, float] = {}  # of a queue while it was crowded, in seconds
        self._new: list[Slot] = []  # taken by a batch that is not committed yet
        self._crowded: set[int] = set()  # queues in which some push found no capacity
        self._completed: deque[tuple[Slot, float]] = deque()  # the event loop appends, batches remove

    def enter(self, slot: Slot) -> bool:
        """Take capacity for one push, and return whether there was any."""
        if not self.has_capacity(slot):
            self._crowded.add(slot.queue_id)
            return False
        self._taken[slot.queue_id] += 1
        self._taken_by_all += 1
        self._backlog[slot.queue_id] += slot.is_backlog
        self._new.append(slot)
        return True

    def has_capacity(self, slot: Slot) -> bool:
        """Return whether there is capacity for one more push."""
        self._free_completed()
        limit = self._limit(slot.queue_id)
        is_half_free = not slot.is_backlog or self._backlog[slot.queue_id] < _half(limit)
        return self._taken[slot.queue_id] < limit and is_half_free

    def keep(self) -> None:
        """Keep the capacity that this batch took, because it is committed and the pushes are sent."""
        self._new.clear()

    def give_back(self) -> None:
        """Release the capacity that this batch took, because it was rolled back."""
        for slot in self._new:
            self._leave(slot)
        self._new.clear()

    def complete(self, slot: Slot, seconds: float = inf) -> None:
        """Release the capacity of a push that is over. Any thread may call this.

        ``seconds`` is the time that the gateway took to deliver it. It is infinite when the push was not delivered,
        because that says nothing about the gateway's speed.
        """
        self._completed.append((slot, seconds))

    def backlog_budget(self, queue_id: int) -> int:
        """Return how many waiting pushes of a queue may be sent now."""
        self._free_completed()
        limit = self._limit(queue_id)
        return max(0, min(limit - self._taken[queue_id], _half(limit) - self._backlog[queue_id]))

    def find_full(self, queue_ids: Iterable[int]) -> frozenset[int]:
        """Return those of these queues without capacity for a fresh push. They count as crowded from now on."""
        full = frozenset(queue_id for queue_id in queue_ids if not self.has_capacity(Slot(queue_id)))
        self._crowded |= full
        return full

    def are_crowded(self, queue_ids: frozenset[int]) -> bool:
        """Return whether one of these queues still has more due than its limit allows."""
        return not self._crowded.isdisjoint(queue_ids)

    def note_crowded(self, queue_ids: Collection[int]) -> None:
        """Note which queues have more due than their limits allow. Only these count as crowded from now on."""
        self._crowded = set(queue_ids)

    def has_capacity_again(self) -> bool:
        """Return whether a crowded queue has capacity again."""
        return any(self.backlog_budget(queue_id) for queue_id in self._crowded)

    def _free_completed(self) -> None:
        while self._completed:
            slot, seconds = self._completed.popleft()
            self._leave(slot)
            if slot.queue_id in self._crowded and seconds < inf:
                self._answers[slot.queue_id] += self._is_quick(slot.queue_id, seconds)

    def _is_quick(self, queue_id: int, seconds: float) -> bool:
        quickest = self._quickest[queue_id] = min(seconds, self._quickest.get(queue_id, inf))
        return seconds <= max(QUICK_SECONDS, QUICK_TIMES * quickest)

    def _leave(self, slot: Slot) -> None:
        self._taken[slot.queue_id] -= 1
        self._taken_by_all -= 1
        self._backlog[slot.queue_id] -= slot.is_backlog

    def _limit(self, queue_id: int) -> int:
        left_by_others = self._connections - (self._taken_by_all - self._taken[queue_id])
        return min(self._first + self._answers[queue_id] // ANSWERS_TO_GROW, max(1, left_by_others // 2))


def _half(limit: int) -> int:
    """Return the part of a limit that a backlog may take. The half of an odd limit is rounded up."""
    return (limit + 1) // 2
