"""Answering queries, and how much anybody can make us answer.

A query costs its sender a few hundred bytes and no name, and its answer can be five hundred times as long. So what is
asked again within seconds is answered once, a key is asked about so often a minute, and what goes beyond a multiple of
the query comes out of a bucket that all share. Each worker process counts for itself.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

from kit.buckets import Bucket
from registrations.messages import QueryInfo

# An answer may always be so many times as long as its query.
MAX_AMPLIFICATION = 64
# Below nwaku's 150 KiB: what is left is for wrapping, padding and signatures.
MAX_ANSWER_BYTES = 140_000
# Longer answers, as users with hundreds of contacts need them, take the rest from a bucket of so many bytes a second,
# which holds those of a minute.
EXCESS_BYTES_PER_SECOND = 50_000
REPEATED_SECONDS = 5.0
# Keys and queries remembered. With more, all are forgotten: a bucket is full again then, no more.
MOST_REMEMBERED = 50_000
REPEATED, TOO_MANY = "repeated_query", "too_many_queries"


class Asked(NamedTuple):
    """One query: who signed it (33 bytes), about which key hashes, and how long it was on the wire."""

    author: bytes
    public_key_hashes: tuple[bytes, ...]
    size_bytes: int


@dataclass(slots=True)
class _Level:
    left: float
    at: float


class Limits:
    """What this process has answered lately."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._answered: dict[tuple[bytes, tuple[bytes, ...]], float] = {}
        self._keys: dict[bytes, _Level] = {}
        self._excess = Bucket(EXCESS_BYTES_PER_SECOND, 60 * EXCESS_BYTES_PER_SECOND, clock)

    def judge(self, queries: Sequence[Asked]) -> "Verdicts":
        """Return what may be answered of a batch. Nothing is taken before `Verdicts.take`."""
        return Verdicts(self, queries)

    def is_repeated(self, query: Asked) -> bool:
        """Return whether the same was answered a moment ago."""
        at = self._answered.get((query.author, query.public_key_hashes))
        return at is not None and self._clock() - at < REPEATED_SECONDS

    def left(self, public_key_hash: bytes) -> float:
        """Return how many more answers about a key there may be now."""
        level = self._keys.get(public_key_hash)
        if level is None:
            return self._per_minute
        return min(level.left + (self._clock() - level.at) * self._per_minute / 60, self._per_minute)

    def excess(self) -> float:
        """Return how many bytes there are for long answers."""
        return self._excess.left()

    def take(self, queries: Iterable[Asked], asked: Iterable[bytes], excess_bytes: int) -> None:
        """Note what was answered."""
        now = self._clock()
        for remembered in (self._answered, self._keys):
            if len(remembered) > MOST_REMEMBERED:
                remembered.clear()
        self._answered.update(((query.author, query.public_key_hashes), now) for query in queries)
        for public_key_hash in asked:
            self._keys[public_key_hash] = _Level(self.left(public_key_hash) - 1, now)
        self._excess.spend(excess_bytes)


class Verdicts:
    """What may be answered of one batch of queries."""

    def __init__(self, limits: Limits, queries: Sequence[Asked]) -> None:
        self._limits = limits
        self._left: dict[bytes, float] = {}
        self._taken: list[bytes] = []
        self._excess = limits.excess()
        self._excess_taken = 0
        self._answered: list[Asked] = []
        self.wanted = [self._wanted(query) for query in queries]

    def _wanted(self, query: Asked) -> tuple[bytes, ...] | str:
        """Return the key hashes of a query that may be answered, or why none of them may."""
        if self._limits.is_repeated(query) or any(query[:2] == other[:2] for other in self._answered):
            return REPEATED
        wanted = tuple(key for key in dict.fromkeys(query.public_key_hashes) if self._takes(key))
        if query.public_key_hashes and not wanted:
            return TOO_MANY
        self._answered.append(query)
        return wanted

    def _takes(self, public_key_hash: bytes) -> bool:
        left = self._left.get(public_key_hash)
        left = self._limits.left(public_key_hash) if left is None else left
        self._left[public_key_hash] = left - (left >= 1)
        if left >= 1:
            self._taken.append(public_key_hash)
        return left >= 1

    def fitting(self, query: Asked, infos: Iterable[QueryInfo]) -> Iterator[QueryInfo]:
        """Yield the installations that there is room for in the answer, in their order."""
        size = 0
        for info in infos:
            size += _size(info)
            excess = max(0, size - MAX_AMPLIFICATION * query.size_bytes)
            needed = min(excess, _size(info))
            if size > MAX_ANSWER_BYTES or self._excess_taken + needed > self._excess:
                return
            self._excess_taken += needed
            yield info

    def take(self) -> None:
        """Note what was answered, once that is committed."""
        self._limits.take(self._answered, self._taken, self._excess_taken)


def _size(info: QueryInfo) -> int:
    return 256 + sum(len(entry) + 4 for entry in info.allowed_key_list)
