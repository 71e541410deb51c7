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

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from hashlib import sha256
from time import monotonic
from typing import NamedTuple

from kit.buckets.bucket import Buckets, Charge, Limit, part, per_minute
from kit.buckets.shared import Share, SharedBuckets, own_share
from registrations.messages import QueryInfo
from waku_bridge.outbound.outbox import MAX_INFO_BYTES, size_of

# Ratio of answer to query in bytes that is always allowed.
MAX_AMPLIFICATION = 64
# Refill rate of the bucket that longer answers about keys with a proven address share. Users with hundreds of contacts
# need such answers. The buckets that many share hold the bytes of a minute, and that of a key holds one answer.
EXCESS_BYTES_PER_SECOND = 50_000
EXCESS, EXCESS_OF_OTHERS = "excess", "excess of others"
SHARED = {
    EXCESS: (Limit(60 * EXCESS_BYTES_PER_SECOND, 60.0),),
    EXCESS_OF_OTHERS: (Limit(6 * EXCESS_BYTES_PER_SECOND, 60.0),),
}
EXCESS_OF_KEY = (Limit(MAX_INFO_BYTES, 60.0),)
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
    """The limits of one process: the queries that it answered lately, and the rates that all processes share.

    A batch charges them at once. Call `keep` after its commit, or `take_back` after a rollback.
    """

    def __init__(
        self,
        per_key_and_minute: int,
        clock: Callable[[], float] = monotonic,
        share: Share | None = None,
    ) -> None:
        self._of_key = per_minute(per_key_and_minute)
        self._clock = clock
        self._share = share or own_share()
        self._buckets = Buckets(MAX_REMEMBERED, SHARED.__contains__)
        self.keep, self.take_back = self._buckets.keep, self._buckets.take_back

    def refusal(self, query: Asked, shared: SharedBuckets, *, at: datetime) -> str:
        """Return the reason why a query may not be answered. If there is none, the text is empty and it is charged.

        Only an answer makes later copies repetitions. Anybody can send a copy on a topic that is beyond its limit.
        """
        again = Charge(sha256(b"".join((query.author, *query.public_key_hashes))).digest(), ANSWERED_AGAIN)
        if not self._buckets.has(again, now=self._clock()):
            return REPEATED
        if not shared.take([(TOPIC + query.content_topic.encode(), self._of_key)], now=at):
            return TOO_MANY
        self._buckets.spend(again, now=self._clock())
        return ""

    def fitting(self, query: Asked, infos: Sequence[QueryInfo]) -> Iterator[QueryInfo]:
        """Yield the installations that fit into the answer, in their order."""
        proven, size = {info.public_key_hash for info in infos if info.has_proven_address}, 0
        for info in infos:
            size += size_of(info)
            excess = max(0, size - MAX_AMPLIFICATION * query.size_bytes)
            needed, key = min(excess, size_of(info)), info.public_key_hash
            buckets = (key, EXCESS) if key in proven else (EXCESS_OF_OTHERS,)
            if size > MAX_INFO_BYTES or (needed and not any(self.take_excess(name, needed) for name in buckets)):
                return
            yield info

    def take_excess(self, name: str | bytes, size_bytes: int) -> bool:
        """Take bytes for a long answer from the bucket of a key, or a shared one, and return whether it has as many."""
        is_of_key = isinstance(name, bytes)
        limits = EXCESS_OF_KEY if is_of_key else part(SHARED[str(name)], self._share.part)
        return self._buckets.take((name, limits), count=size_bytes, now=self._clock())
