"""How much CPU time may go into work that others can ask for without limit: a token bucket of CPU seconds."""

import threading
from collections.abc import Callable
from time import monotonic

from kit.buckets import bucket
from kit.buckets.bucket import FullAt, Limit

# A budget that gets nothing back is one that takes longer than any process lives.
NEVER_SECONDS = 1e9


class CpuBudget:
    """Gets ``per_second`` back, up to ``maximum`` seconds, and is full at the beginning. Any thread may spend of it.

    What is begun is finished: the last expense may overdraw the budget, and it recovers from there.
    """

    def __init__(self, per_second: float, maximum: float, clock: Callable[[], float] = monotonic) -> None:
        self._limits = (Limit(maximum, maximum / per_second if per_second else NEVER_SECONDS),) if maximum else ()
        self._full_at: FullAt = ()
        self._clock = clock
        self._lock = threading.Lock()

    def left(self) -> float:
        """Return how much may be spent now."""
        with self._lock:
            return bucket.left(self._full_at, self._limits, now=self._clock())

    def spend(self, seconds: float) -> None:
        """Take so many seconds."""
        with self._lock:
            self._full_at = bucket.spend(self._full_at, self._limits, seconds, now=self._clock())
