"""Concurrency limits: the number of pushes that a process has under way in each queue.

A gateway that hangs then takes only the pushes of its own queues. The limit is one of a process and not of the fleet,
because a hanging queue uses up the connections of a process, as many as our recipe gives the gateway workers.

A limit starts small, as TCP starts slowly. It grows by one for every `ANSWERS_TO_GROW` quick answers that come while
more pushes wait than the limit allows. A quick answer takes not much longer than the quickest one: when more pushes at
once only make answers slower, a larger limit brings nothing. Pushes under way when a process dies are sent again, so no
more should be under way than are of use.

No queue takes more than half of the connections that the others leave, but for one push. So busy queues have equal
parts, of which one is left for the next queue, and queues that hang never take the last connection.

The backlog of a queue takes at most half of its limit. The other half is for fresh pushes, which are claimed when they
are accepted, so that a backlog does not delay them.
"""

import os
import socket
from collections import Counter, deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf
from threading import Thread

from kit.http.connections import MAX_CONNECTIONS
from notifications.gateways.registry import CUT_OFF
from notifications.models import Halt

# Quick answers that raise a limit by one. With fewer, a backlog would fill the limit before the gateway's speed is
# known.
ANSWERS_TO_GROW = 24
# An answer is quick within QUICK_SECONDS, or within QUICK_TIMES the time of the quickest answer.
QUICK_SECONDS = 0.25
QUICK_TIMES = 4
# Pushes of a queue under way before any answer: at 50 ms each that is 640 a second. A backlog gets half of them. With
# eight, addresses that always time out kept a backlog waiting for minutes.
FIRST_LIMIT = 32
# A gateway is halted when a process has tried for this long and no process had contact.
TRIED_FOR = timedelta(seconds=5)
# Pause between two tries of a process that is cut off. It is a second longer than the pause between two probes of a
# halt, so that every other process may take the next probe.
TRY_PAUSE = timedelta(seconds=6)


class Reach:
    """The gateways that this process cannot reach, each with the time since when and the time of the next try.

    What one process sees halts nothing but itself: it leaves its pushes to the others, and tries one in each pause. The
    others then have contact, or nobody has.
    """

    def __init__(self) -> None:
        self._since: dict[str, datetime] = {}
        self._next_try_at: dict[str, datetime] = {}

    def __bool__(self) -> bool:
        return bool(self._since)

    def note_reached(self, gateways: Iterable[str]) -> None:
        """Note that these gateways were reached."""
        for gateway in gateways:
            self._since.pop(gateway, None)

    def note_unreached(self, gateway: str, *, now: datetime) -> datetime:
        """Note that a push did not reach its gateway, and return since when none did."""
        since = self._since.setdefault(gateway, now)
        self.note_try(gateway, now=now)
        return since

    def note_alone(self, gateway: str, *, now: datetime) -> None:
        """Note that others had contact since then, so that contact counts from now on. Operators see it."""
        self._since[gateway] = now
        name = f"process {os.getpid()} on {socket.gethostname()}"
        # In a thread, because a host without a way to the gateway may have none to Redis, and no batch waits for it.
        Thread(target=CUT_OFF.save, args=[name, gateway], daemon=True).start()

    def note_try(self, gateway: str, *, now: datetime) -> None:
        """Note that a push is sent to find out whether the gateway can be reached again."""
        self._next_try_at[gateway] = now + TRY_PAUSE

    def halts(self) -> list[Halt]:
        """Return what this process does not send, as halts without a row."""
        kind = Halt.Kind.UNREACHABLE
        return [Halt(kind=kind, gateway=each, next_probe_at=self._next_try_at[each]) for each in self._since]


@dataclass(frozen=True, slots=True)
class Slot:
    """One push in the limit of its queue. ``is_backlog`` says that the push has waited there."""

    queue_id: int
    is_backlog: bool = False


class ConcurrencyLimits:
    """The counters of the pushes under way in each queue: at most ``first`` in one that has not grown."""

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
