"""Decide when to read a relay cache again, by how full it was. Pure."""

from dataclasses import dataclass

# The longest that a message waits in an idle system, and while messages come in. A read of an empty cache costs us
# 0.7 ms of CPU time.
IDLE_SECONDS = 0.2
BUSY_SECONDS = 0.07
# How long after a message others are expected.
BUSY_FOR_SECONDS = 10.0
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
    _quiet_seconds: float = BUSY_FOR_SECONDS

    def fill(self, page_size: int) -> float:
        """Return how full the cache was, 0 to 1. At 1, messages were pushed out before they could be read."""
        if page_size > self.capacity:
            self.capacity = 2 * page_size
        return page_size / self.capacity

    def next_read(self, page_size: int, elapsed_seconds: float) -> float:
        """Return how many seconds to wait after a page that took ``elapsed_seconds`` to gather."""
        if not page_size:
            self._quiet_seconds += elapsed_seconds
            is_idle = self._quiet_seconds >= BUSY_FOR_SECONDS
            return min(IDLE_SECONDS if is_idle else BUSY_SECONDS, self._burst_seconds)
        self._quiet_seconds = 0.0
        if self.fill(page_size) >= ALARM_FILL:
            return 0.0
        return min(BUSY_SECONDS, self._burst_seconds, TARGET_FILL * self.capacity / page_size * elapsed_seconds)

    @property
    def _burst_seconds(self) -> float:
        return ALARM_FILL * self.capacity / BURST_PER_SECOND
