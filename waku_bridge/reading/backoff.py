"""How long to wait after a failure: longer after each, and never for all at the same moment."""

import random

FIRST_SECONDS = 0.2
MOST_SECONDS = 10.0


class Backoff:
    def __init__(self) -> None:
        self.failures = 0

    def next(self) -> float:
        """After one more failure, in seconds: half of the span is by chance."""
        self.failures += 1
        span: float = min(FIRST_SECONDS * 2 ** min(self.failures, 10), MOST_SECONDS)
        return span * (0.5 + random.random() / 2)  # noqa: S311 - spreads load, guards nothing

    def reset(self) -> None:
        self.failures = 0
