"""A token bucket: how much of something may be had that others can ask for without limit. Pure: the clock is an
argument.
"""

import threading
from collections.abc import Callable
from time import monotonic


class Bucket:
    """Fills with ``per_second``, up to ``most``, and is full at the beginning.

    What is begun is finished: the last expense may overdraw the bucket, and it recovers from there.
    """

    def __init__(self, per_second: float, most: float, clock: Callable[[], float] = monotonic) -> None:
        self._per_second = per_second
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        self._left = most
        self._at = clock()

    def left(self) -> float:
        """Return how much may be spent now."""
        with self._lock:
            now = self._clock()
            self._left = min(self._left + (now - self._at) * self._per_second, self._most)
            self._at = now
            return self._left

    def spend(self, amount: float) -> None:
        """Take an amount from the bucket."""
        with self._lock:
            self._left -= amount
