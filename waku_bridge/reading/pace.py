"""When to read a relay cache again, and what a page says about how full it was. Pure."""

from dataclasses import dataclass

# The bound on what a message waits for in an idle system.
IDLE_SECONDS = 0.1
# Between two reads the cache may fill up to here at the rate of the last page; bursts are several times the average.
TARGET_FILL = 0.1
ALARM_FILL = 0.5


@dataclass(slots=True)
class Ring:
    """A node's relay cache: its capacity is what the operator says, until a page is larger than that. Then nobody
    knows, and twice that page is as good a guess as any.
    """

    capacity: int

    def fill(self, page_size: int) -> float:
        """How full it was, 0 to 1. At 1, messages were pushed out before they could be read."""
        if page_size > self.capacity:
            self.capacity = 2 * page_size
        return page_size / self.capacity

    def next_read(self, page_size: int, elapsed_seconds: float) -> float:
        """How long to wait, in seconds, after a page that took so long to gather."""
        if not page_size:
            return IDLE_SECONDS
        if self.fill(page_size) >= ALARM_FILL:
            return 0.0
        return min(IDLE_SECONDS, TARGET_FILL * self.capacity / page_size * elapsed_seconds)
