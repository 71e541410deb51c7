"""Decide how long to wait after a failure: longer after each, and partly by chance, so that not all try at once."""

import random

FIRST_SECONDS = 0.2
MOST_SECONDS = 10.0


class Backoff:
    """The pauses of one peer."""

    def __init__(self, most_seconds: float = MOST_SECONDS) -> None:
        self.failures = 0
        self._most_seconds = most_seconds

    def next(self) -> float:
        """Count one more failure and return how many seconds to wait. Half of the span is by chance."""
        self.failures += 1
        span: float = min(FIRST_SECONDS * 2 ** min(self.failures, 10), self._most_seconds)
        return span * (0.5 + random.random() / 2)  # noqa: S311 - spreads load, guards nothing

    def reset(self) -> None:
        self.failures = 0
