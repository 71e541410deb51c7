"""Token buckets, which limit bursts and rates. The module does no I/O: the clock is an argument.

A bucket is represented by the times at which it will be full again, one for each of its limits. Spending moves those
times into the future, so nothing has to be refilled. A full bucket, whose times are past, need not be stored. Times are
seconds of any clock.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import NamedTuple

# Tolerance in seconds, so that rounding does not cost the last token.
TOLERANCE = 1e-3


class Limit(NamedTuple):
    """The capacity of a bucket in ``tokens``, and the ``seconds`` in which an empty bucket becomes full."""

    tokens: float
    seconds: float

    @property
    def token_seconds(self) -> float:
        """Return the seconds in which one token comes back."""
        return self.seconds / self.tokens

    def part(self, share: float) -> "Limit":
        """Return a share of the limit: of its rate, and of its tokens, but at least one token."""
        tokens = max(self.tokens * share, min(self.tokens, 1.0))
        return Limit(tokens, tokens * self.token_seconds / share)


# All limits of one bucket. The first limits bursts, and the last limits the rate in the long run.
BucketLimits = tuple[Limit, ...]
FullAt = tuple[float, ...]


@lru_cache(maxsize=4096)
def part(limits: BucketLimits, share: float) -> BucketLimits:
    """Return a share of each limit."""
    return tuple(limit.part(share) for limit in limits)


def per_minute(tokens: float, *, minutes: float = 1) -> BucketLimits:
    """Return a limit of ``tokens`` per minute. Unused tokens of up to ``minutes`` accumulate."""
    return (Limit(tokens * minutes, 60.0 * minutes),)


def left(full_at: FullAt, limits: BucketLimits, *, now: float) -> float:
    """Return the number of tokens left: below zero if some were spent in advance, and 0 for a bucket without limits."""
    pairs = zip(limits, full_at or (now,) * len(limits), strict=True)
    return min(((now + limit.seconds - max(at, now)) / limit.token_seconds for limit, at in pairs), default=0.0)


def has(full_at: FullAt, limits: BucketLimits, count: float = 1, *, now: float) -> bool:
    """Return whether ``count`` tokens are left."""
    return _is_within(spend(full_at, limits, count, now=now), limits, now)


def _is_within(full_at: FullAt, limits: BucketLimits, now: float) -> bool:
    """Return whether no tokens were spent in advance."""
    for at, (_, seconds) in zip(full_at, limits, strict=True):
        excess = at - now - seconds
        if excess > TOLERANCE:
            return False
    return True


def spend(full_at: FullAt, limits: BucketLimits, count: float = 1, *, now: float) -> FullAt:
    """Return the bucket after ``count`` tokens were spent, also in advance of those that are left."""
    pairs = zip(full_at or (now,) * len(limits), limits, strict=True)
    return tuple([max(now, at) + count * seconds / tokens for at, (tokens, seconds) in pairs])


def next_at(full_at: Sequence[float], limits: BucketLimits) -> float:
    """Return when the bucket has a token again. The time may be past."""
    pairs = zip(limits, full_at, strict=True)
    return max(at + min(1.0, limit.tokens) * limit.token_seconds - limit.seconds for limit, at in pairs)


CAPACITY = 200_000
# To look through the largest memory takes some 20 ms.
SWEPT_EVERY_SECONDS = 1.0


class Charge(NamedTuple):
    """The name of a bucket to charge, and its limits."""

    name: Hashable
    limits: BucketLimits


class Buckets:
    """The buckets of one process, by name, in bounded memory. Only one thread may use it.

    Senders choose many of the names, so at most ``capacity`` buckets are kept. At the capacity, full ones are
    forgotten, because a full bucket carries no information. While that leaves no room, a new name gets no bucket, and
    is charged only to its parents on the path: address, then domain or key, then all. A batch changes buckets
    immediately. `keep` makes its changes final, and `take_back` undoes them after a rollback.

    ``is_root`` returns whether a name always gets a bucket: one of the few at the end of every path, which no sender
    chooses.
    """

    def __init__(
        self, capacity: int = CAPACITY, is_root: Callable[[Hashable], bool] = frozenset().__contains__
    ) -> None:
        self._capacity = capacity
        self._is_root = is_root
        self._full_at: dict[Hashable, FullAt] = {}
        self._before: dict[Hashable, FullAt] = {}
        self._latest = self._sweep_at = float("-inf")
        self._behind = 0.0

    def __len__(self) -> int:
        return len(self._full_at)

    def take(self, *path: tuple[Hashable, BucketLimits], count: float = 1, now: float) -> bool:
        """Take ``count`` tokens from each bucket of a path, or from none if one has too few. Return whether it took."""
        at, spent = self._time(now), []
        for name, limits in path:
            full_at = spend(self._full_at.get(name, ()), limits, count, now=at)
            if not _is_within(full_at, limits, at):
                return False
            spent.append((name, full_at))
        for name, full_at in spent:
            self._put(name, full_at, at)
        return True

    def has(self, charge: Charge, *, now: float) -> bool:
        """Return whether a token is left."""
        return has(self._full_at.get(charge.name, ()), charge.limits, now=self._time(now))

    def left(self, charge: Charge, *, now: float) -> float:
        """Return the number of tokens left."""
        return left(self._full_at.get(charge.name, ()), charge.limits, now=self._time(now))

    def spend(self, charge: Charge, count: float = 1, *, now: float) -> bool:
        """Take tokens, also in advance of those that are left. Return whether the name has a bucket."""
        at = self._time(now)
        full_at = spend(self._full_at.get(charge.name, ()), charge.limits, count, now=at)
        return self._put(charge.name, full_at, at)

    def missing(self, name: Hashable, *, now: float) -> tuple[float, ...]:
        """Return for each limit the seconds until the bucket is full, or an empty tuple for a name without a bucket."""
        at = self._time(now)
        return tuple([max(full_at - at, 0.0) for full_at in self._full_at.get(name, ())])

    def put(self, name: Hashable, missing: Sequence[float], *, now: float) -> bool:
        """Set for each limit the seconds until the bucket is full. Return whether the name has a bucket."""
        at = self._time(now)
        return self._put(name, tuple(at + seconds for seconds in missing), at)

    def is_changed(self, name: Hashable) -> bool:
        """Return whether the batch has changed this bucket."""
        return name in self._before

    def keep(self) -> None:
        """Make the changes of the batch final."""
        self._before.clear()

    def take_back(self) -> None:
        """Undo the changes of the batch. A bucket that was forgotten meanwhile was full, and is not restored."""
        for name, full_at in self._before.items():
            if not full_at:
                self._full_at.pop(name, None)
            elif name in self._full_at:
                self._full_at[name] = full_at
        self._before.clear()

    def _time(self, now: float) -> float:
        """Return the time of this store, which continues where it was when the clock is set back.

        So no bucket is filled twice, and none stays empty until the clock shows the old time again.
        """
        self._behind = max(self._behind, self._latest - now)
        self._latest = now + self._behind
        return self._latest

    def _put(self, name: Hashable, full_at: FullAt, at: float) -> bool:
        before = self._full_at.get(name)
        if before is None and not (self._has_capacity(at) or self._is_root(name)):
            return False
        self._before.setdefault(name, before or ())
        self._full_at[name] = full_at
        return True

    def _has_capacity(self, at: float) -> bool:
        """Return whether another bucket fits, after forgetting full ones, which is done once a second at most."""
        if len(self._full_at) >= self._capacity and at >= self._sweep_at:
            self._sweep_at = at + SWEPT_EVERY_SECONDS
            self._full_at = {name: full_at for name, full_at in self._full_at.items() if max(full_at) > at}
        return len(self._full_at) < self._capacity
