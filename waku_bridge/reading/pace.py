"""Decide when to read a relay cache again, by how full it was and how many messages of ours come. Pure."""

from dataclasses import dataclass
from math import exp

# The longest that a message waits. A read of an empty cache costs us 0.7 ms of CPU time.
IDLE_SECONDS = 0.2
# A page costs the worker more than one more message on it, so that this many of ours gather before the next read. Where
# they come sooner, a message would wait for reads and batches rather than for others: there is a shortest pause.
# Messages of others, and our replies, which the node gives back, cost the worker nothing.
GATHERED = 2
MIN_SECONDS = 0.05
# Our messages per second are averaged over about this time, the last ones weighing most.
RATE_OF_SECONDS = 1.0
# An idle cache is read often enough that a burst of this many messages per second fills it by half at most.
BURST_PER_SECOND = 500
# Between two reads the cache may fill up to here at the rate of the last page; bursts are several times the average.
TARGET_FILL = 0.1
ALARM_FILL = 0.5


@dataclass(slots=True)
class Ring:
    """A node's relay cache.

    Its capacity is what the operator says, until a page is larger; then it is taken to be twice that page.
    """

    capacity: int
    _per_second: float = 0.0

    def fill(self, page_size: int) -> float:
        """Return how full the cache was, 0 to 1. At 1, messages were pushed out before they could be read."""
        if page_size > self.capacity:
            self.capacity = 2 * page_size
        return page_size / self.capacity

    def next_read(self, page_size: int, new: int, elapsed_seconds: float) -> float:
        """Return how many seconds to wait after a page that took ``elapsed_seconds`` to gather and has ``new`` of
        ours.
        """
        remembered = exp(-elapsed_seconds / RATE_OF_SECONDS)
        self._per_second = remembered * self._per_second + (1 - remembered) * new / max(elapsed_seconds, 0.001)
        if self.fill(page_size) >= ALARM_FILL:
            return 0.0
        gathering = max(GATHERED / self._per_second, MIN_SECONDS) if self._per_second else IDLE_SECONDS
        filling = TARGET_FILL * self.capacity / page_size * elapsed_seconds if page_size else IDLE_SECONDS
        return min(IDLE_SECONDS, self._burst_seconds, gathering, filling)

    @property
    def _burst_seconds(self) -> float:
        return ALARM_FILL * self.capacity / BURST_PER_SECOND
