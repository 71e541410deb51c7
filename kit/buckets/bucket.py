"""Token buckets: how much may be spent at once, and how fast it comes back. Pure: the clock is an argument.

A bucket is the time at which it is full again, one for each of its limits. Spending moves that time, so nothing has to
be refilled, and a bucket whose time is past says nothing. Times are seconds of any clock.
"""

import heapq
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from itertools import count as numbers
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


CAPACITY = 200_000


class Charge(NamedTuple):
    """The name of a bucket that is charged, and its limits. The share of the process is taken of them already."""

    name: Hashable
    limits: BucketLimits


class Buckets:
    """The buckets of one process, by name, in bounded memory. It belongs to one thread.

    Strangers choose many of the names that are counted. So at most ``capacity`` buckets are kept, and only a full one
    makes room for another: it says no more than one that is not there. While none is full, a new name has no bucket and
    is charged to its parents only, which are given with it: address, then domain or key, then all. A batch changes
    buckets at once; `keep` makes that final, and `take_back` undoes it when the batch was rolled back.

    ``is_root`` says of which names there is always room for a bucket: those that all others are charged to in the end,
    which are few and which no stranger chooses.
    """

    def __init__(
        self, capacity: int = CAPACITY, is_root: Callable[[Hashable], bool] = frozenset().__contains__
    ) -> None:
        self._capacity = capacity
        self._is_root = is_root
        self._full_at: dict[Hashable, FullAt] = {}
        # Each name with a time before which it is not looked at whether its bucket is full. The number keeps names from
        # being compared.
        self._oldest: list[tuple[float, int, Hashable]] = []
        self._numbers = numbers()
        self._before: dict[Hashable, FullAt] = {}
        self._latest = float("-inf")
        self._behind = 0.0

    def __len__(self) -> int:
        return len(self._full_at)

    def take(self, *path: Charge, count: float = 1, now: float) -> bool:
        """Take tokens from each bucket of a path if all have them, else from none, and return whether all had."""
        at = self._time(now)
        for name, limits in path:
            if not has(self._full_at.get(name, ()), limits, count, now=at):
                return False
        for charge in path:
            self._spend(charge, count, at)
        return True

    def has(self, charge: Charge, *, now: float) -> bool:
        """Return whether a token is there."""
        return has(self._full_at.get(charge.name, ()), charge.limits, now=self._time(now))

    def left(self, charge: Charge, *, now: float) -> float:
        """Return how many tokens there are."""
        return left(self._full_at.get(charge.name, ()), charge.limits, now=self._time(now))

    def spend(self, charge: Charge, count: float = 1, *, now: float) -> bool:
        """Take tokens, also some that are not there yet. Return whether the name has a bucket."""
        return self._spend(charge, count, self._time(now))

    def missing(self, name: Hashable, *, now: float) -> tuple[float, ...]:
        """Return how many seconds a bucket needs to be full, for each of its limits: nothing where there is none."""
        at = self._time(now)
        return tuple(max(full_at - at, 0.0) for full_at in self._full_at.get(name, ()))

    def put(self, name: Hashable, missing: Sequence[float], *, now: float) -> bool:
        """Have a bucket need so many seconds to be full. Return whether the name has a bucket."""
        at = self._time(now)
        return self._put(name, tuple(at + seconds for seconds in missing), at)

    def is_changed(self, name: Hashable) -> bool:
        """Return whether the batch has changed this bucket."""
        return name in self._before

    def keep(self) -> None:
        """Keep what the batch changed."""
        self._before.clear()

    def take_back(self) -> None:
        """Undo what the batch changed. A bucket that made room for another meanwhile was full, and stays away."""
        for name, full_at in self._before.items():
            if not full_at:
                self._full_at.pop(name, None)
            elif name in self._full_at:
                self._full_at[name] = full_at
        self._before.clear()

    def _time(self, now: float) -> float:
        """Return the time of this store. When the clock is put back, it goes on from where it was: no bucket is filled
        twice, and none waits until the clock shows the old time again.
        """
        self._behind = max(self._behind, self._latest - now)
        self._latest = now + self._behind
        return self._latest

    def _spend(self, charge: Charge, count: float, at: float) -> bool:
        full_at = spend(self._full_at.get(charge.name, ()), charge.limits, count, now=at)
        return self._put(charge.name, full_at, at)

    def _put(self, name: Hashable, full_at: FullAt, at: float) -> bool:
        before = self._full_at.get(name)
        if before is None:
            if not (self._has_capacity(at) or self._is_root(name)):
                return False
            heapq.heappush(self._oldest, (max(full_at), next(self._numbers), name))
        self._before.setdefault(name, before or ())
        self._full_at[name] = full_at
        return True

    def _has_capacity(self, at: float) -> bool:
        """Return whether there is room for another bucket, after making it with full ones."""
        while len(self._full_at) >= self._capacity:
            earliest, _, name = self._oldest[0]
            if earliest > at:
                return False
            self._forget_oldest_if_full(name, at)
        if len(self._oldest) >= 2 * self._capacity:
            self._rebuild()
        return True

    def _forget_oldest_if_full(self, name: Hashable, at: float) -> None:
        full_at = max(self._full_at.get(name, (at,)))
        if full_at > at:
            heapq.heapreplace(self._oldest, (full_at, next(self._numbers), name))
        else:
            heapq.heappop(self._oldest)
            self._full_at.pop(name, None)

    def _rebuild(self) -> None:
        """Leave out names that were taken back or stand here twice."""
        self._oldest = [(max(full_at), next(self._numbers), name) for name, full_at in self._full_at.items()]
        heapq.heapify(self._oldest)
