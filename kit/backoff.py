"""How long to wait after a failure: twice as long after each one, up to a bound, and partly by chance."""

import random

FIRST_SECONDS = 0.2
MAX_SECONDS = 10.0
# Beyond this many doublings every bound is reached, and soon after them a float is left behind.
MAX_DOUBLINGS = 20


def doubled(first_seconds: float, failures: int, *, max_seconds: float) -> float:
    """Return ``first_seconds`` doubled as often as it failed, ``max_seconds`` at most, however often that was."""
    return min(first_seconds * 2.0 ** min(failures, MAX_DOUBLINGS), max_seconds)


class Backoff:
    """The pauses of one peer that fails again and again."""

    def __init__(self, max_seconds: float = MAX_SECONDS, *, first_seconds: float = FIRST_SECONDS) -> None:
        self.failures = 0
        self._max_seconds = max_seconds
        self._first_seconds = first_seconds

    def next(self) -> float:
        """Count one more failure and return how many seconds to wait. Half of the span is by chance."""
        self.failures += 1
        span = doubled(self._first_seconds, self.failures, max_seconds=self._max_seconds)
        return span * (0.5 + random.random() / 2)  # noqa: S311 - spreads load, guards nothing

    def reset(self) -> None:
        """Begin anew after a success."""
        self.failures = 0
