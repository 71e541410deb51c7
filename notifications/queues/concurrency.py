"""Concurrency limits: how many pushes of each queue a process has under way, so that one that hangs does not take all.

The limit is one of a process and not of the fleet, because a hanging queue uses up the connections of a process. It is
small at first, and grows by one for every few quick answers that come while more waits than it has room for, as TCP
starts slowly. An answer is quick when it takes not much longer than the quickest one: where more pushes at once only
make answers slower, a larger limit brings nothing. But what is under way when a process dies is sent again, so that no
more than is of use should be under way.

All queues together take less than a process has connections. When several hang, each other queue still has the limit
that it began with.

What waited in a queue takes at most half of its limit. The other half is for fresh pushes, which are claimed as they
are accepted, so that a backlog does not make them late.
"""

from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass
from math import inf

# So many answers make a limit larger by one: with fewer, a backlog fills it before anything is known of the gateway.
ANSWERS_TO_GROW = 24
# An answer within this, or within some times the time of the quickest, is a quick one.
QUICK_SECONDS = 0.25
QUICK_TIMES = 4
# Pushes of all queues of a process, beyond which none takes more than it may at first: three quarters of its
# connections (`MAX_CONNECTIONS`), which are as many as the gateway has workers by our recipe.
MAX_OF_ALL = 192


@dataclass(frozen=True, slots=True)
class Slot:
    """The place that one push takes in the limit of its queue. ``is_backlog`` says that it has waited there."""

    queue_id: int
    is_backlog: bool = False


class ConcurrencyLimits:
    """A counter of the pushes under way in each queue: at most ``maximum``, and ``first`` in a new one."""

    def __init__(self, maximum: int, *, first: int | None = None) -> None:
        self._maximum = maximum
        self._first = maximum if first is None else first
        self._taken: Counter[int] = Counter()
        self._taken_by_all = 0
        self._backlog: Counter[int] = Counter()  # of those, what waited in the queue before
        self._answers: Counter[int] = Counter()  # quick ones that came while the queue was crowded
        self._quickest: dict[int, float] = {}  # of a queue while it was crowded, in seconds
        self._new: list[Slot] = []  # taken by a batch that is not committed yet
        self._crowded: set[int] = set()  # something found no room in them
        self._completed: deque[tuple[Slot, float]] = deque()  # the loop appends, batches take away

    def enter(self, slot: Slot) -> bool:
        """Take room for one push, and return whether there was any."""
        self._free_completed()
        if not self._has_capacity(slot):
            self._crowded.add(slot.queue_id)
            return False
        self._taken[slot.queue_id] += 1
        self._taken_by_all += 1
        self._backlog[slot.queue_id] += slot.is_backlog
        self._new.append(slot)
        return True

    def keep(self) -> None:
        """Keep the room that this batch took, because it is committed and the pushes are sent."""
        self._new.clear()

    def give_back(self) -> None:
        """Give back the room that this batch took: nothing of it was written."""
        for slot in self._new:
            self._leave(slot)
        self._new.clear()

    def complete(self, slot: Slot, seconds: float = inf) -> None:
        """Give back the room of a push that is over. Any thread may call this.

        ``seconds`` is how long the gateway took to deliver it; what it did not deliver says nothing about its speed.
        """
        self._completed.append((slot, seconds))

    def backlog_budget(self, queue_id: int) -> int:
        """Return how many pushes that waited in a queue may be sent now."""
        self._free_completed()
        limit = self._limit(queue_id)
        return max(0, min(limit - self._taken[queue_id], _half(limit) - self._backlog[queue_id]))

    def note_crowded(self, queue_ids: Collection[int]) -> None:
        """Take in which queues have more than they have room for. From now on these are crowded, and no others."""
        self._crowded = set(queue_ids)

    def has_capacity_again(self) -> bool:
        """Return whether a queue in which something found no room has some now."""
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

    def _has_capacity(self, slot: Slot) -> bool:
        limit = self._limit(slot.queue_id)
        is_half_free = not slot.is_backlog or self._backlog[slot.queue_id] < _half(limit)
        return self._taken[slot.queue_id] < limit and is_half_free

    def _limit(self, queue_id: int) -> int:
        limit = min(self._maximum, self._first + self._answers[queue_id] // ANSWERS_TO_GROW)
        left_by_others = MAX_OF_ALL - (self._taken_by_all - self._taken[queue_id])
        return min(limit, max(left_by_others, self._first))


def _half(limit: int) -> int:
    """Return the part of a limit that a backlog may take: of an odd one the larger half."""
    return (limit + 1) // 2
