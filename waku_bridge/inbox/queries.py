"""Limits of the answers to queries.

A query costs its sender a few hundred bytes and no identity, and its answer can be five hundred times as long. So three
limits hold. A query that is repeated within seconds is answered once. The queries on the topic of each key are limited
per minute. Answers longer than a multiple of their query take the excess from a bucket:

    about a key with a proven address ──▶ the bucket of that key ──if empty──▶ the bucket that these keys share
    about any other key, as anybody can make ──▶ the bucket that all others share, a tenth as large

A key has a bucket of its own because anybody can ask about users with many contacts, and empty the shared one.

Only the topic of a query is charged. If every key that it names were charged, two queries a second about a hundred
users would block all other queries about these users.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from hashlib import sha256
from time import monotonic
from typing import NamedTuple

from kit.buckets.bucket import Buckets, Charge, Limit, part, per_minute
from kit.buckets.shared import Share, SharedBuckets, own_share
from registrations.messages import QueryInfo

# Ratio of answer to query in bytes that is always allowed.
MAX_AMPLIFICATION = 64
# Below nwaku's limit of 150 KiB: the difference is for wrapping, padding and signatures.
MAX_ANSWER_BYTES = 140_000
# Refill rate of the bucket that longer answers about keys with a proven address share. Users with hundreds of contacts
# need such answers. The buckets that many share hold the bytes of a minute, and that of a key holds one answer.
EXCESS_BYTES_PER_SECOND = 50_000
EXCESS, EXCESS_OF_OTHERS = "excess", "excess of others"
SHARED = {
    EXCESS: (Limit(60 * EXCESS_BYTES_PER_SECOND, 60.0),),
    EXCESS_OF_OTHERS: (Limit(6 * EXCESS_BYTES_PER_SECOND, 60.0),),
}
EXCESS_OF_KEY = (Limit(MAX_ANSWER_BYTES, 60.0),)
# Each process answers the same query once in five seconds, so two processes answer it twice at most.
ANSWERED_AGAIN = (Limit(1, 5.0),)
MAX_REMEMBERED = 50_000
TOPIC = b"q"  # with a content topic: its bucket
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
        clock: Callable[[], float] = monotonic,
        share: Share | None = None,
    ) -> None:
        self.of_key = per_minute(per_key_and_minute)
        self._clock = clock
        self._share = share or own_share()
        self._buckets = Buckets(MAX_REMEMBERED, SHARED.__contains__)

    def is_repeated(self, query: Asked) -> bool:
        """Return whether the same query was answered a moment ago."""
        return not self._buckets.has(_again(query), now=self._clock())

    def excess(self, name: str | bytes) -> float:
        """Return how many bytes for long answers are left in the bucket of a key, or in one of the shared ones."""
        return self._buckets.left(self._excess(name), now=self._clock())

    def take(self, queries: Iterable[Asked], excess_bytes: Mapping[str | bytes, int]) -> None:
        """Note these queries as answered, and take the excess bytes of their answers from the buckets."""
        now = self._clock()
        for name, taken in excess_bytes.items():
            self._buckets.spend(self._excess(name), taken, now=now)
        for query in queries:
            self._buckets.spend(_again(query), now=now)
        self._buckets.keep()

    def _excess(self, name: str | bytes) -> Charge:
        if isinstance(name, bytes):
            return Charge(name, EXCESS_OF_KEY)
        return Charge(name, part(SHARED[name], self._share.part))


class Verdicts:
    """The verdict about each query of one batch: the key hashes that may be answered, or a reason.

    It is made in the transaction of the batch. Call `take` after the commit, to note which queries were answered.
    """

    def __init__(self, limits: Limits, queries: Sequence[Asked], shared: SharedBuckets, *, at: datetime) -> None:
        self._limits = limits
        self._answered: dict[tuple[bytes, tuple[bytes, ...]], Asked] = {}
        self._excess_taken = Counter[str | bytes]()
        self._take = partial(shared.take, now=at)
        self.wanted = [self._wanted(query) for query in queries]

    def _wanted(self, query: Asked) -> tuple[bytes, ...] | str:
        """Return the key hashes of a query that may be answered, or the reason why none of them may.

        Only an answer makes later copies repetitions. Anybody can send a copy on a topic that is beyond its limit.
        """
        if query[:2] in self._answered or self._limits.is_repeated(query):
            return REPEATED
        if not self._take([(TOPIC + query.content_topic.encode(), self._limits.of_key)]):
            return TOO_MANY
        self._answered[query[:2]] = query
        return tuple(dict.fromkeys(query.public_key_hashes))

    def fitting(self, query: Asked, infos: Sequence[QueryInfo]) -> Iterator[QueryInfo]:
        """Yield the installations that fit into the answer, in their order."""
        proven, size = {info.public_key_hash for info in infos if info.has_proven_address}, 0
        for info in infos:
            size += _size(info)
            excess = max(0, size - MAX_AMPLIFICATION * query.size_bytes)
            needed, key = min(excess, _size(info)), info.public_key_hash
            buckets = (key, EXCESS) if key in proven else (EXCESS_OF_OTHERS,)
            if size > MAX_ANSWER_BYTES or not self._take_excess(needed, buckets):
                return
            yield info

    def _take_excess(self, needed: int, buckets: Iterable[str | bytes]) -> bool:
        """Take bytes from the first of these buckets that has as many, and return whether one has."""
        for name in buckets if needed else ():
            if self._limits.excess(name) - self._excess_taken[name] >= needed:
                self._excess_taken[name] += needed
                return True
        return not needed

    def take(self) -> None:
        """Note which queries were answered. Call it after the commit."""
        self._limits.take(self._answered.values(), self._excess_taken)


def _again(query: Asked) -> Charge:
    return Charge(sha256(b"".join((query.author, *query.public_key_hashes))).digest(), ANSWERED_AGAIN)


def _size(info: QueryInfo) -> int:
    return 256 + sum(len(entry) + 4 for entry in info.allowed_key_list)
