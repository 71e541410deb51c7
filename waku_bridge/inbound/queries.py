"""Answering queries, and how much anybody can make us answer.

A query costs its sender a few hundred bytes and no name, and its answer can be five hundred times as long. So what is
asked again within seconds is answered once, so many queries a minute are answered on the topic of a key, and what goes
beyond a multiple of the query comes out of a bucket that all share. Other keys that a query names cost them nothing, or
two queries a second about a hundred users would silence all others about them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from hashlib import sha256
from time import monotonic
from typing import NamedTuple

from kit.buckets.bucket import BucketLimits, Buckets, Charge, Limit, part, per_minute
from kit.buckets.share import Share, own_share
from kit.buckets.shared import SharedBuckets
from registrations.messages import QueryInfo
from waku_bridge.codec.topics import content_topic, query_name

# An answer may always be so many times as long as its query.
MAX_AMPLIFICATION = 64
# Below nwaku's 150 KiB: what is left is for wrapping, padding and signatures.
MAX_ANSWER_BYTES = 140_000
# Longer answers, as users with hundreds of contacts need them, take the rest from a bucket of so many bytes a second,
# which holds those of a minute.
EXCESS_BYTES_PER_SECOND = 50_000
EXCESS_NAME = "excess"
EXCESS = (Limit(60 * EXCESS_BYTES_PER_SECOND, 60.0),)
# The same query is answered once in five seconds by each process: two of them answer the same query twice at most.
ANSWERED_AGAIN = (Limit(1, 5.0),)
MAX_REMEMBERED = 50_000
HASH_BYTES = 64
# Clients ask about one key, on its topic.
MAX_LOOKED_AT = 10
ALL = b"q"  # the bucket of all answers
REPEATED, TOO_MANY = "repeated_query", "too_many_queries"


class Asked(NamedTuple):
    """One query: who signed it (33 bytes), about which key hashes, how long it was on the wire, and on which topic."""

    author: bytes
    public_key_hashes: tuple[bytes, ...]
    size_bytes: int
    content_topic: str


class Limits:
    """What this process has answered lately, and how often any process may answer about a key."""

    def __init__(
        self,
        per_key_and_minute: int,
        in_all: BucketLimits,
        clock: Callable[[], float] = monotonic,
        share: Share | None = None,
    ) -> None:
        self.of_key = per_minute(per_key_and_minute)
        self.in_all = in_all
        self._clock = clock
        self._share = share or own_share()
        self._buckets = Buckets(MAX_REMEMBERED, frozenset({EXCESS_NAME}).__contains__)

    def judge(self, queries: Sequence[Asked], shared: SharedBuckets, *, at: datetime) -> "Verdicts":
        """Return what may be answered of a batch; belongs into its transaction. `Verdicts.take` notes what was."""
        return Verdicts(self, queries, shared, at=at)

    def is_repeated(self, query: Asked) -> bool:
        """Return whether the same was answered a moment ago."""
        return not self._buckets.has(_again(query), now=self._clock())

    def excess(self) -> float:
        """Return how many bytes there are for long answers."""
        return self._buckets.left(self._excess(), now=self._clock())

    def take(self, queries: Iterable[Asked], excess_bytes: int) -> None:
        """Note what was answered."""
        now = self._clock()
        self._buckets.spend(self._excess(), excess_bytes, now=now)
        for query in queries:
            self._buckets.spend(_again(query), now=now)
        self._buckets.keep()

    def _excess(self) -> Charge:
        return Charge(EXCESS_NAME, part(EXCESS, self._share.part))


class Verdicts:
    """What may be answered of one batch of queries."""

    def __init__(self, limits: Limits, queries: Sequence[Asked], shared: SharedBuckets, *, at: datetime) -> None:
        self._limits = limits
        self._answered: list[Asked] = []
        self._excess = limits.excess()
        self._excess_taken = 0
        fresh: dict[tuple[bytes, tuple[bytes, ...]], Asked] = {}
        for query in queries:
            if not limits.is_repeated(query):
                fresh.setdefault(query[:2], query)  # the first is answered, and charged to its topic
        counts = Counter(_charged(query) for query in fresh.values())
        wanted = dict.fromkeys(counts, limits.of_key) | {ALL: limits.in_all}
        self._spending = shared.open(wanted, counts | {ALL: counts.total()}, at=at)
        self.wanted = [self._wanted(query, fresh.pop(query[:2], None)) for query in queries]
        self._spending.write()

    def _wanted(self, query: Asked, fresh: Asked | None) -> tuple[bytes, ...] | str:
        """Return the key hashes of a query that may be answered, or why none of them may."""
        if fresh is None:
            return REPEATED
        if not self._spending.take([_charged(query), ALL]):
            return TOO_MANY
        self._answered.append(query)
        return tuple(dict.fromkeys(query.public_key_hashes))

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
        self._limits.take(self._answered, self._excess_taken)


def _charged(query: Asked) -> bytes:
    """Return the name of the bucket of the key on whose topic a query came. All that came on another one share one."""
    named = (key for key in query.public_key_hashes[:MAX_LOOKED_AT] if len(key) == HASH_BYTES)
    keys = (key for key in named if content_topic(query_name(key)) == query.content_topic)
    return b"q" + next(keys, b"?")


def _again(query: Asked) -> Charge:
    return Charge(sha256(b"".join((query.author, *query.public_key_hashes))).digest(), ANSWERED_AGAIN)


def _size(info: QueryInfo) -> int:
    return 256 + sum(len(entry) + 4 for entry in info.allowed_key_list)
