"""Token buckets, pure: how much may be spent at once, and how fast it comes back.

A bucket is one time, at which it will be full again. Spending moves that time, and so nothing has to be refilled. Times
are seconds, because this is counted for every notification.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

# Of a second. Sums of fractions must not cost the last token of a bucket.
TOLERANCE = 1e-3


class Limit(NamedTuple):
    """A bucket of so many tokens, which an empty one needs ``seconds`` to have again."""

    tokens: int
    seconds: float

    @property
    def token_seconds(self) -> float:
        """Return how long one token takes to come back."""
        return self.seconds / self.tokens


@dataclass(slots=True)
class Budget:
    """What may be spent under several limits at a time. ``full_at`` has one time for each limit."""

    limits: Sequence[Limit]
    full_at: list[float]

    def has(self, count: int, *, now: float) -> bool:
        """Return whether so many tokens are there."""
        return all(
            max(full_at, now) + count * limit.token_seconds <= now + limit.seconds + TOLERANCE
            for limit, full_at in zip(self.limits, self.full_at, strict=True)
        )

    def spend(self, count: int, *, now: float) -> None:
        """Take so many tokens, also some that are not there yet."""
        pairs = zip(self.limits, self.full_at, strict=True)
        self.full_at = [max(full_at, now) + count * limit.token_seconds for limit, full_at in pairs]

    def next_at(self) -> float:
        """Return when there is a token again."""
        pairs = zip(self.limits, self.full_at, strict=True)
        return max(full_at + limit.token_seconds - limit.seconds for limit, full_at in pairs)
