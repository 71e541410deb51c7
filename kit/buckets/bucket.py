"""Token buckets: how much may be spent at once, and how fast it comes back. Pure: the clock is an argument.

A bucket is the time at which it is full again, one for each of its limits. Spending moves that time, so nothing has to
be refilled, and a bucket whose time is past says nothing. Times are seconds of any clock.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

# Tolerance in seconds, so that rounding does not cost the last token.
TOLERANCE = 1e-3


class Limit(NamedTuple):
    """A bucket of so many tokens, which an empty one needs ``seconds`` to have again."""

    tokens: float
    seconds: float

    @property
    def token_seconds(self) -> float:
        """Return how long one token takes to come back."""
        return self.seconds / self.tokens

    def part(self, share: float) -> "Limit":
        """Return this share of the limit: of its rate, and of its tokens at once, but one at least."""
        tokens = max(self.tokens * share, min(self.tokens, 1.0))
        return Limit(tokens, tokens * self.token_seconds / share)


# All limits of one bucket. The first is that of bursts, the last that of the long run.
BucketLimits = tuple[Limit, ...]
FullAt = tuple[float, ...]


@lru_cache(maxsize=4096)
def part(limits: BucketLimits, share: float) -> BucketLimits:
    """Return this share of each limit."""
    return tuple(limit.part(share) for limit in limits)


def per_minute(tokens: float, *, minutes: float = 1) -> BucketLimits:
    """Return the limit of so many tokens a minute, of which those of some minutes may be saved up."""
    return (Limit(tokens * minutes, 60.0 * minutes),)


def left(full_at: FullAt, limits: BucketLimits, *, now: float) -> float:
    """Return how many tokens there are: less than none where some were spent in advance, and none without a limit."""
    pairs = zip(limits, full_at or (now,) * len(limits), strict=True)
    return min(((now + limit.seconds - max(at, now)) / limit.token_seconds for limit, at in pairs), default=0.0)


def has(full_at: FullAt, limits: BucketLimits, count: float = 1, *, now: float) -> bool:
    """Return whether so many tokens are there."""
    for at, (tokens, seconds) in zip(full_at or (now,) * len(limits), limits, strict=True):
        missing = at - now if at > now else 0.0
        if missing + count * seconds / tokens > seconds + TOLERANCE:
            return False
    return True


def spend(full_at: FullAt, limits: BucketLimits, count: float = 1, *, now: float) -> FullAt:
    """Return the bucket without so many tokens, also some that are not there yet."""
    pairs = zip(full_at or (now,) * len(limits), limits, strict=True)
    return tuple([(max(now, at)) + count * seconds / tokens for at, (tokens, seconds) in pairs])


def next_at(full_at: Sequence[float], limits: BucketLimits) -> float:
    """Return when there is a token again: a time that may be past."""
    pairs = zip(limits, full_at, strict=True)
    return max(at + min(1.0, limit.tokens) * limit.token_seconds - limit.seconds for limit, at in pairs)
