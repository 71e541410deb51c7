"""Pages of messages: which of a page are for us, and memory of the hashes that were read. Pure.

A page holds messages of unknown senders, from nodes that we do not trust: nothing in it may raise an exception.
"""

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Container, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from kit.display import host_of
from waku_bridge.codec.wire import MAX_ENVELOPE_BYTES, message_hash
from waku_bridge.dialect import BadNodeMessage, from_json
from waku_bridge.messages import Envelope

WAKU_VERSION = 1
NS_PER_SECOND = 10**9
# How far ahead a sender's clock may be: a phone with a wrong time zone is accepted.
MAX_AHEAD_NS = 86_400 * NS_PER_SECOND


@dataclass(frozen=True)
class Reader:
    """One path from one node. ``path`` is live, store or backfill, and ``node`` is a URL."""

    path: str
    node: str
    pubsub_topic: str

    @cached_property
    def name(self) -> str:
        """Return host and port of the node, for logs and metrics."""
        return host_of(self.node)


@dataclass(frozen=True, slots=True)
class LongestPage:
    """The longest page of a node's relay cache that was read lately, and how many pages were that long.

    It is the only evidence of the cache's capacity: one of 50 that overflows returns pages of exactly 50, again and
    again, and never a longer one.
    """

    size: int = 0
    times: int = 0


# A message that may have been for us and cannot be taken, as the node wrote it, and the reason.
Rejected = tuple[Any, str]


@dataclass(slots=True)
class Page:
    """A page of messages, from the answer of a node into the inbox.

    ``others`` are raw: at first all messages of the page, and then those on content topics of others. ``new`` has the
    hashes of the envelopes that no path had brought before, and ``hashes`` those of all messages that can be read.
    """

    reader: Reader
    received_at: datetime
    others: list[Any] = field(repr=False)
    envelopes: list[Envelope] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list, repr=False)
    new: list[bytes] = field(default_factory=list)
    hashes: set[bytes] = field(default_factory=set)

    def select(self, topics: Container[str], *, keep: timedelta) -> tuple[list[Envelope], list[Rejected]]:
        """Move the messages that are for us out of the others, and return these, and those that are rejected.

        The content topic is compared before anything is decoded. A message that is older than ``keep`` is rejected: its
        hash may be forgotten already, so it could be a repetition. Each message is checked by itself, also when its
        hash comes twice: the version, for instance, is no part of the hash.
        """
        messages, self.others = self.others, []
        envelopes: list[Envelope] = []
        rejected: list[Rejected] = []
        now_ns = int(self.received_at.timestamp()) * NS_PER_SECOND
        times = range(now_ns - int(keep.total_seconds()) * NS_PER_SECOND, now_ns + MAX_AHEAD_NS + 1)
        for raw in messages:
            content_topic = raw.get("contentTopic") if isinstance(raw, dict) else None
            if not isinstance(content_topic, str):
                rejected.append((raw, "malformed"))
            elif content_topic not in topics:
                self.others.append(raw)
            elif isinstance(taken := _take(raw, self.reader.pubsub_topic, times), Envelope):
                envelopes.append(taken)
            else:
                rejected.append((raw, taken))
        self.envelopes += envelopes
        self.rejected += rejected
        return envelopes, rejected

    def hash_all(self) -> None:
        """Compute the hashes of the messages for others, too, as far as these can be read."""
        self.hashes.update(envelope.hash for envelope in self.envelopes)
        for raw in self.others:
            with suppress(BadNodeMessage, UnicodeEncodeError):
                self.hashes.add(message_hash(self.reader.pubsub_topic, from_json(raw)))


def _take(raw: Any, pubsub_topic: str, times: range) -> Envelope | str:
    """Return the envelope, or the reason why it is rejected."""
    try:
        message = from_json(raw)
    except BadNodeMessage:
        return "malformed"
    if message.version != WAKU_VERSION:
        return "wrong_version"
    if not 0 < len(message.payload) <= MAX_ENVELOPE_BYTES:
        return "wrong_size"
    if message.timestamp_ns not in times:
        return "wrong_time"
    return Envelope(message_hash(pubsub_topic, message), pubsub_topic, message)


CHUNK = 65_536
# With `CHUNK`: two million hashes in 16 MB. They are the messages of 75 minutes at 450 a second, as old as
# the slow tier reads them again.
CHUNKS = 32


class SeenHashes:
    """Memory of at least the newest ``chunk * chunks`` hashes that were read, so that they are not fetched again.

    Most messages of a shard are not for us, and a store is read again and again. Without this memory, each pass would
    fetch all of them. New hashes are in a set, which is sorted into an array whenever it holds ``chunk`` of them.

    Only eight bytes of each hash are kept. To have somebody else's message taken for seen, an attacker needs a message
    of their own with the same eight bytes before the other one is read. That takes 2^64 attempts.
    """

    def __init__(self, chunk: int = CHUNK, chunks: int = CHUNKS) -> None:
        self._chunk = chunk
        self._fresh: set[int] = set()
        self._sorted: deque[array[int]] = deque(maxlen=chunks)

    def __contains__(self, message_hash: bytes) -> bool:
        key = int.from_bytes(message_hash[:8])
        return key in self._fresh or any(_holds(chunk, key) for chunk in self._sorted)

    def clear(self) -> None:
        self._fresh.clear()
        self._sorted.clear()

    def add(self, hashes: Iterable[bytes]) -> None:
        self._fresh.update(int.from_bytes(message_hash[:8]) for message_hash in hashes)
        if len(self._fresh) >= self._chunk:
            self._sorted.appendleft(array("Q", sorted(self._fresh)))
            self._fresh = set()


def _holds(chunk: "array[int]", key: int) -> bool:
    index = bisect_left(chunk, key)
    return index < len(chunk) and chunk[index] == key
