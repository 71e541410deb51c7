"""Exponential backoff with jitter: the pause doubles with each failure, up to a maximum, and half of it is random."""

import random

FIRST_SECONDS = 0.2
MAX_SECONDS = 10.0
# After this many doublings every maximum is reached. Many more would overflow a float.
MAX_DOUBLINGS = 20


def doubled(first_seconds: float, failures: int, *, max_seconds: float) -> float:
    """Return ``first_seconds``, doubled once per failure, but at most ``max_seconds``."""
    return min(first_seconds * 2.0 ** min(failures, MAX_DOUBLINGS), max_seconds)


class Backoff:
    """The backoff for one peer."""

    def __init__(self, max_seconds: float = MAX_SECONDS, *, first_seconds: float = FIRST_SECONDS) -> None:
        self.failures = 0
        self._max_seconds = max_seconds
        self._first_seconds = first_seconds

    def next(self) -> float:
        """Count one more failure and return the seconds to wait: between half of the doubled pause and all of it."""
        self.failures += 1
        span = doubled(self._first_seconds, self.failures, max_seconds=self._max_seconds)
        return span * (0.5 + random.random() / 2)  # noqa: S311 - spreads load, guards nothing

    def reset(self) -> None:
        """Start again from the first pause, after a success."""
        self.failures = 0
