"""Which of several equal servers to ask first. It is pure: the clock is an argument.

A server that failed is asked last for a while. It is not left out, because when all have failed the least bad is better
than none.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from kit.backoff import doubled

# A server is back within seconds of a restart, and one that hangs should be asked last for longer than that.
DISTRUST_SECONDS = 10.0
# A measurement older than this says nothing, so that a slow server gets another chance.
MEMORY_SECONDS = 60.0
SMOOTHING = 0.2
# A server is slow when it takes so many times as long as the quickest, and also this much longer.
SLOW_FACTOR = 3.0
SLOW_SECONDS = 0.1


@dataclass(slots=True)
class _Memory:
    trusted_from: float = 0.0
    failures: int = 0  # failures in a row
    seconds: float = 0.0  # smoothed time that its answers take
    measured_at: float = float("-inf")


class Peers:
    """Base URLs in the operator's order, and what is known about each (seconds of a monotonic clock).

    A server that fails again and again is distrusted twice as long each time, up to ``max_distrust_seconds``.
    """

    def __init__(self, urls: Iterable[str], *, max_distrust_seconds: float = DISTRUST_SECONDS) -> None:
        self._memories = {url: _Memory() for url in urls}
        self._max_distrust_seconds = max_distrust_seconds

    def in_order(self, now: float) -> list[str]:
        """Return the trusted servers in the operator's order with the slow ones behind them, then the distrusted ones,
        with the one that was distrusted first in front.
        """
        quickest = min((m.seconds for m in self._memories.values() if _is_measured(m, now)), default=0.0)

        def rank(url: str) -> tuple[float, bool]:
            memory = self._memories[url]
            is_slow = _is_measured(memory, now) and memory.seconds > quickest * SLOW_FACTOR + SLOW_SECONDS
            return max(memory.trusted_from - now, 0.0), is_slow

        return sorted(self._memories, key=rank)

    def is_trusted(self, url: str, now: float) -> bool:
        """Return whether a server has not failed lately."""
        return self._memories[url].trusted_from <= now

    def failed(self, url: str, now: float, *, min_seconds: float = 0.0) -> None:
        """Distrust a server for a while. Requests that were under way together fail together, and count once."""
        memory = self._memories[url]
        if memory.trusted_from > now:
            return
        span = doubled(DISTRUST_SECONDS, memory.failures, max_seconds=self._max_distrust_seconds)
        memory.failures += 1
        memory.trusted_from = now + max(span, min_seconds)

    def answered(self, url: str) -> None:
        """Trust a server again."""
        memory = self._memories[url]
        memory.trusted_from = 0.0
        memory.failures = 0

    def took(self, url: str, seconds: float, now: float) -> None:
        """Note how long an answer of a server took."""
        memory = self._memories[url]
        weight = SMOOTHING if _is_measured(memory, now) else 1.0
        memory.seconds += (seconds - memory.seconds) * weight
        memory.measured_at = now


def _is_measured(memory: _Memory, now: float) -> bool:
    return now - memory.measured_at < MEMORY_SECONDS
