"""What failures of a peer lead to: longer pauses, and trying equal servers in another order. The module does no I/O."""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from time import monotonic

FIRST_SECONDS = 0.2
MAX_SECONDS = 10.0
# After this many doublings every maximum is reached. Many more would overflow a float.
MAX_DOUBLINGS = 20

# A server that restarts is back within seconds. A server that hangs should be tried last for longer than that.
DISTRUST_SECONDS = 10.0
# Older measurements are ignored, so that a slow server gets another chance.
MEMORY_SECONDS = 60.0
SMOOTHING = 0.2
# A server is slow when its time is above the quickest server's time multiplied by the factor, plus the seconds.
SLOW_FACTOR = 3.0
SLOW_SECONDS = 0.1


def doubled(first_seconds: float, failures: int, *, max_seconds: float) -> float:
    """Return ``first_seconds``, doubled once per failure, but at most ``max_seconds``."""
    return min(first_seconds * 2.0 ** min(failures, MAX_DOUBLINGS), max_seconds)


class Backoff:
    """Exponential backoff for one peer: the pause doubles with each failure, and half of it is random.

    The peer has recovered once it has worked for as long as the longest pause. One success alone does not shorten the
    pauses, because an attempt that had nothing to do succeeds, too.
    """

    def __init__(self, max_seconds: float = MAX_SECONDS) -> None:
        self._max_seconds = max_seconds
        self._failures = 0
        self._works_since: float | None = None  # monotonic

    @property
    def failures(self) -> int:
        """Return the number of failures since the peer recovered last."""
        has_recovered = self._works_since is not None and monotonic() - self._works_since >= self._max_seconds
        return 0 if has_recovered else self._failures

    def next(self) -> float:
        """Count one more failure and return the seconds to wait: between half of the doubled pause and all of it."""
        self._failures, self._works_since = self.failures + 1, None
        span = doubled(FIRST_SECONDS, self._failures, max_seconds=self._max_seconds)
        return span * (0.5 + random.random() / 2)  # noqa: S311 - spreads load, guards nothing

    def works(self) -> bool:
        """Note a success. Return whether the peer has recovered with it."""
        if not self._failures:
            return False
        self._works_since = monotonic() if self._works_since is None else self._works_since
        if self.failures:
            return False
        self._failures, self._works_since = 0, None
        return True


@dataclass(slots=True)
class _Memory:
    trusted_from: float = 0.0
    failures: int = 0  # failures in a row
    seconds: float = 0.0  # smoothed time that its answers take
    measured_at: float = float("-inf")


class Peers:
    """Base URLs in the operator's order, with the failures and times of each (seconds of a monotonic clock).

    A server that failed is tried last for a while. It is not left out, because all of them may have failed. With each
    failure in a row, it is distrusted for twice as long, up to ``max_distrust_seconds``.
    """

    def __init__(self, urls: Iterable[str], *, max_distrust_seconds: float = DISTRUST_SECONDS) -> None:
        self._memories = {url: _Memory() for url in urls}
        self._max_distrust_seconds = max_distrust_seconds

    def in_order(self, now: float) -> list[str]:
        """Return the URLs in the order in which to try them.

        The order is: trusted servers in the operator's order, slow ones, and distrusted ones, the first of which is the
        one that will be trusted again first.
        """
        quickest = min((m.seconds for m in self._memories.values() if _is_measured(m, now)), default=0.0)

        def rank(url: str) -> tuple[float, bool]:
            memory = self._memories[url]
            is_slow = _is_measured(memory, now) and memory.seconds > quickest * SLOW_FACTOR + SLOW_SECONDS
            return max(memory.trusted_from - now, 0.0), is_slow

        return sorted(self._memories, key=rank)

    def is_trusted(self, url: str, now: float) -> bool:
        """Return whether a server is not distrusted at the moment."""
        return self._memories[url].trusted_from <= now

    def failed(self, url: str, now: float, *, min_seconds: float = 0.0) -> None:
        """Distrust a server for a while. Failures while it is distrusted, as of parallel requests, do not count."""
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
        """Record the time of a server's answer."""
        memory = self._memories[url]
        weight = SMOOTHING if _is_measured(memory, now) else 1.0
        memory.seconds += (seconds - memory.seconds) * weight
        memory.measured_at = now


def _is_measured(memory: _Memory, now: float) -> bool:
    return now - memory.measured_at < MEMORY_SECONDS
