"""Exponential backoff with jitter: the pause doubles with each failure, up to a maximum, and half of it is random."""

import random
from time import monotonic

FIRST_SECONDS = 0.2
MAX_SECONDS = 10.0
# After this many doublings every maximum is reached. Many more would overflow a float.
MAX_DOUBLINGS = 20


def doubled(first_seconds: float, failures: int, *, max_seconds: float) -> float:
    """Return ``first_seconds``, doubled once per failure, but at most ``max_seconds``."""
    return min(first_seconds * 2.0 ** min(failures, MAX_DOUBLINGS), max_seconds)


class Backoff:
    """The backoff for one peer.

    The peer has recovered once it has worked for as long as the longest pause. One success alone does not shorten the
    pauses, because an attempt that had nothing to do succeeds, too.
    """

    def __init__(self, max_seconds: float = MAX_SECONDS, *, first_seconds: float = FIRST_SECONDS) -> None:
        self._max_seconds = max_seconds
        self._first_seconds = first_seconds
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
        span = doubled(self._first_seconds, self._failures, max_seconds=self._max_seconds)
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
