"""Limits of the answers to queries.

A query costs its sender a few hundred bytes and no identity, and its answer can be five hundred times as long. So three
limits hold. A query that is repeated within seconds is answered once. The queries on the topic of each key are limited
per minute. Answers longer than a multiple of their query take the excess from a bucket that all queries share.

Only the key of the query's topic is charged. If every key that a query names were charged, two queries a second about a
hundred users would block all other queries about these users.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from hashlib import sha256
from time import monotonic
from typing import NamedTuple

from kit.buckets.bucket import BucketLimits, Buckets, Charge, Limit, part, per_minute
from kit.buckets.share import Share, own_share
from kit.buckets.shared import SharedBuckets
from registrations.messages import QueryInfo
from waku_bridge.codec.topics import content_topic, query_name

# Ratio of answer to query in bytes that is always allowed.
MAX_AMPLIFICATION = 64
# Below nwaku's limit of 150 KiB: the difference is for wrapping, padding and signatures.
MAX_ANSWER_BYTES = 140_000
# Refill rate of the bucket that longer answers take their excess from. Users with hundreds of contacts need such
# answers. The bucket holds the bytes of a minute.
EXCESS_BYTES_PER_SECOND = 50_000
EXCESS_NAME = "excess"
EXCESS = (Limit(60 * EXCESS_BYTES_PER_SECOND, 60.0),)
# Each process answers the same query once in five seconds, so two processes answer it twice at most.
ANSWERED_AGAIN = (Limit(1, 5.0),)
MAX_REMEMBERED = 50_000
HASH_BYTES = 64
# Limit of the keys in a query that are compared with its topic. Clients name one key, on its topic.
MAX_LOOKED_AT = 10
ALL = b"q"  # the bucket of all answers
REPEATED, TOO_MANY = "repeated_query", "too_many_queries"


class Asked(NamedTuple):
    """One query: its author (33 bytes), the key hashes it names, its size on the wire, and its content topic."""

    author: bytes
    public_key_hashes: tuple[bytes, ...]
    size_bytes: int
    content_topic: str


class Limits:
    """The limits of one process: the queries that it answered lately, and the rates that all processes share."""

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

    def is_repeated(self, query: Asked) -> bool:
        """Return whether the same query was answered a moment ago."""
        return not self._buckets.has(_again(query), now=self._clock())

    def excess(self) -> float:
        """Return how many bytes are left for long answers."""
        return self._buckets.left(self._excess(), now=self._clock())

    def take(self, queries: Iterable[Asked], excess_bytes: int) -> None:
        """Note these queries as answered, and take the excess bytes of their answers from the bucket."""
        now = self._clock()
        self._buckets.spend(self._excess(), excess_bytes, now=now)
        for query in queries:
            self._buckets.spend(_again(query), now=now)
        self._buckets.keep()

    def _excess(self) -> Charge:
        return Charge(EXCESS_NAME, part(EXCESS, self._share.part))


class Verdicts:
    """The verdict about each query of one batch: the key hashes that may be answered, or a reason.

    It is made in the transaction of the batch. Call `take` after the commit, to note which queries were answered.
    """

    def __init__(self, limits: Limits, queries: Sequence[Asked], shared: SharedBuckets, *, at: datetime) -> None:
        self._limits = limits
        self._answered: list[Asked] = []
        self._excess = limits.excess()
        self._excess_taken = 0
        fresh: dict[tuple[bytes, tuple[bytes, ...]], Asked] = {}
        for query in queries:
            if not limits.is_repeated(query):
                fresh.setdefault(query[:2], query)  # the first is answered, and charged to its topic
        self._take = partial(shared.take, now=at)
        self.wanted = [self._wanted(query, fresh.pop(query[:2], None)) for query in queries]

    def _wanted(self, query: Asked, fresh: Asked | None) -> tuple[bytes, ...] | str:
        """Return the key hashes of a query that may be answered, or the reason why none of them may."""
        if fresh is None:
            return REPEATED
        if not self._take([(_charged(query), self._limits.of_key), (ALL, self._limits.in_all)]):
            return TOO_MANY
        self._answered.append(query)
        return tuple(dict.fromkeys(query.public_key_hashes))

    def fitting(self, query: Asked, infos: Iterable[QueryInfo]) -> Iterator[QueryInfo]:
        """Yield the installations that fit into the answer, in their order."""
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
        """Note which queries were answered. Call it after the commit."""
        self._limits.take(self._answered, self._excess_taken)


def _charged(query: Asked) -> bytes:
    """Return the bucket of the key on whose topic a query came. Queries on other topics share one bucket."""
    named = (key for key in query.public_key_hashes[:MAX_LOOKED_AT] if len(key) == HASH_BYTES)
    keys = (key for key in named if content_topic(query_name(key)) == query.content_topic)
    return b"q" + next(keys, b"?")


def _again(query: Asked) -> Charge:
    return Charge(sha256(b"".join((query.author, *query.public_key_hashes))).digest(), ANSWERED_AGAIN)


def _size(info: QueryInfo) -> int:
    return 256 + sum(len(entry) + 4 for entry in info.allowed_key_list)
