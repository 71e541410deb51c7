"""CPU budget: a token bucket of CPU seconds, for work that anybody can cause without limit."""

import threading
from collections.abc import Callable
from time import monotonic

from kit.buckets import bucket
from kit.buckets.bucket import FullAt, Limit

# Refill time of a budget without a refill: longer than any process lives.
NEVER_SECONDS = 1e9


class CpuBudget:
    """A budget that starts full at ``maximum`` seconds and refills by ``per_second``. Any thread may spend from it.

    Work that has begun is finished: the last expense may overdraw the budget, and it refills from below zero.
    """

    def __init__(self, per_second: float, maximum: float, clock: Callable[[], float] = monotonic) -> None:
        self._limits = (Limit(maximum, maximum / per_second if per_second else NEVER_SECONDS),) if maximum else ()
        self._full_at: FullAt = ()
        self._clock = clock
        self._lock = threading.Lock()

    def left(self) -> float:
        """Return how many seconds may be spent now."""
        with self._lock:
            return bucket.left(self._full_at, self._limits, now=self._clock())

    def spend(self, seconds: float) -> None:
        with self._lock:
            self._full_at = bucket.spend(self._full_at, self._limits, seconds, now=self._clock())
