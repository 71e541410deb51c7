"""Pace of the live path: the pause before the next read of a relay cache. Pure.

It follows from how full the cache was and from how many messages for us come.
"""

from dataclasses import dataclass
from math import exp

# Longest pause, and so the longest that a message waits. A read of an empty cache costs us 0.6 to 1 ms of CPU time.
IDLE_SECONDS = 0.2
# Messages for us that gather before the next read, because a page costs the worker more than one more message on it.
# Messages of others, and our own replies, which the node returns as well, cost the worker nothing.
GATHERED = 2
# Shortest pause: with a shorter one, a message would wait for the overhead of reads and batches.
MIN_SECONDS = 0.05
# The rate of messages for us is averaged over about this time. Recent ones weigh most.
RATE_OF_SECONDS = 1.0
# An idle cache is read often enough that a burst of this many messages per second fills half of it at most, and one of
# 500 does not overflow it. What overflows is found at a store, when it is three seconds old.
BURST_PER_SECOND = 300
# Share of the cache that may fill between two reads at the rate of the last page. Bursts are several times the average.
TARGET_FILL = 0.1
ALARM_FILL = 0.5


@dataclass(slots=True)
class Ring:
    """A node's relay cache.

    Its capacity comes from the settings. Once a page is larger, twice the size of that page is assumed.
    """

    capacity: int
    _per_second: float = 0.0

    def fill(self, page_size: int) -> float:
        """Return how full the cache was, from 0 to 1. At 1, messages may have been overwritten before this read."""
        if page_size > self.capacity:
            self.capacity = 2 * page_size
        return page_size / self.capacity

    def next_read(self, page_size: int, new: int, elapsed_seconds: float) -> float:
        """Return the pause in seconds after a page that gathered for ``elapsed_seconds`` and has ``new`` envelopes."""
        remembered = exp(-elapsed_seconds / RATE_OF_SECONDS)
        self._per_second = remembered * self._per_second + (1 - remembered) * new / max(elapsed_seconds, 0.001)
        if self.fill(page_size) >= ALARM_FILL:
            return 0.0
        gathering = max(GATHERED / self._per_second, MIN_SECONDS) if self._per_second else IDLE_SECONDS
        filling = TARGET_FILL * self.capacity / page_size * elapsed_seconds if page_size else IDLE_SECONDS
        burst = ALARM_FILL * self.capacity / BURST_PER_SECOND
        return min(IDLE_SECONDS, burst, gathering, filling)


@dataclass(frozen=True, slots=True)
class LongestPage:
    """The longest page of a node's relay cache that was read lately, and how many pages were that long.

    It is the only evidence of the cache's capacity: one of 50 that overflows returns pages of exactly 50, again and
    again, and never a longer one.
    """

    size: int = 0
    times: int = 0
