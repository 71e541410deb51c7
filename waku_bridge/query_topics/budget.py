"""How much CPU time may go into something that others can ask for without limit. Pure, the clock is an argument."""

import threading
from collections.abc import Callable
from time import monotonic


class CpuBudget:
    """``share`` CPU seconds per second of the clock, saved up to ``most_seconds``; full at the beginning.

    What is begun is finished: the last expense may overdraw it, and it recovers from there.
    """

    def __init__(self, share: float, most_seconds: float, clock: Callable[[], float] = monotonic) -> None:
        self._share = share
        self._most_seconds = most_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._left, self._at = most_seconds, clock()

    def left(self) -> float:
        """Seconds that may be spent now."""
        with self._lock:
            now = self._clock()
            self._left = min(self._left + (now - self._at) * self._share, self._most_seconds)
            self._at = now
            return self._left

    def spend(self, seconds: float) -> None:
        with self._lock:
            self._left -= seconds
