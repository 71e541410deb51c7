"""The live path: it drains a node's relay cache of one shard, and writes each page into the inbox before the next.

Draining removes a page from the node, so the reader keeps it until the database takes it. Only a bridge that stops may
drop it, because the messages are in the store as well and are read there. So are those that were lost on the way: a
read whose answer broke off may have drained a page, and a full cache has dropped messages.
"""

import asyncio
from dataclasses import dataclass
from datetime import datetime
from math import exp
from time import monotonic
from typing import Any

import psycopg
import structlog
from django.db import Error as DjangoDatabaseError

from kit.db.clock import clock
from kit.db.reasons import reason
from kit.http import Backoff
from kit.processes.leader import Term, wait
from kit.processes.starting import note_refusal
from kit.processes.status import ChangeFilter, StatusCache
from waku_bridge.dialect import NodeError, NotSubscribed
from waku_bridge.metrics import (
    LAST_MESSAGE_TIMESTAMP_SECONDS,
    LAST_READ_TIMESTAMP_SECONDS,
    MESSAGE_SKEW_SECONDS,
    READ_ERRORS,
    RING_FILL_RATIO,
)
from waku_bridge.node import WakuNode
from waku_bridge.reading.intake import Intake, in_thread
from waku_bridge.reading.pages import NS_PER_SECOND, LongestPage, Page, Reader

log = structlog.get_logger(__name__)

# Seconds between two notes in the status cache that the node is read.
NOTE_SECONDS = 1.0
# A node that fails is read at the usual pace for this long, because ten broken answers in a row must not take the 2.5 s
# in which a cache of 50 messages overflows at 20 a second. After that, seconds between two attempts. They never end.
USUAL_PACE_SECONDS = 10.0
RETRY_SECONDS = 0.5
# Longest pause, and so the longest that a message waits. A read of an empty cache costs 1.5 ms of CPU time.
IDLE_SECONDS = 0.2
# Messages for us that gather before the next read, because a page costs the worker more than one more message on it.
# Messages of others, and our own replies, which the node returns as well, cost the worker nothing.
GATHERED = 2
# Shortest pause: with a shorter one, a message would wait for the overhead of reads and batches.
MIN_SECONDS = 0.05
# The rate of messages for us is averaged over about this time. Recent ones weigh most.
RATE_OF_SECONDS = 1.0
# An idle cache is read often enough that a burst of this many messages per second fills half of it at most, and one of
# 500 does not overflow it. What overflows is found at a store, when it is three seconds old.
BURST_PER_SECOND = 300
# Share of the cache that may fill between two reads at the rate of the last page. Bursts are several times the average.
TARGET_FILL = 0.1
ALARM_FILL = 0.5


@dataclass(frozen=True, slots=True)
class LastRead:
    """Time of the last read from a node, and how far its clock was ahead of ours then, where it reported the time."""

    at: datetime
    skew_seconds: float | None = None


LAST_READ = StatusCache("last_read", LastRead, ttl_seconds=3)
LONGEST_PAGE = StatusCache("node_longest_page", LongestPage, ttl_seconds=86_400)
# The smallest capacity that nodes have by default. A shorter page says nothing about it, and most pages are shorter.
TELLING_SIZE = 30


@dataclass(slots=True)
class Ring:
    """A node's relay cache.

    Its capacity comes from the settings. Once a page is larger, twice the size of that page is assumed.
    """

    capacity: int
    _per_second: float = 0.0

    def fill(self, page_size: int) -> float:
        """Return how full the cache was, from 0 to 1. At 1, messages may have been overwritten before this read."""
        if page_size > self.capacity:
            self.capacity = 2 * page_size
        return page_size / self.capacity

    def next_read(self, page_size: int, new: int, elapsed_seconds: float) -> float:
        """Return the pause in seconds after a page that gathered for ``elapsed_seconds`` and has ``new`` envelopes."""
        remembered = exp(-elapsed_seconds / RATE_OF_SECONDS)
        self._per_second = remembered * self._per_second + (1 - remembered) * new / max(elapsed_seconds, 0.001)
        if self.fill(page_size) >= ALARM_FILL:
            return 0.0
        gathering = max(GATHERED / self._per_second, MIN_SECONDS) if self._per_second else IDLE_SECONDS
        filling = TARGET_FILL * self.capacity / page_size * elapsed_seconds if page_size else IDLE_SECONDS
        burst = ALARM_FILL * self.capacity / BURST_PER_SECOND
        return min(IDLE_SECONDS, burst, gathering, filling)


class LiveReader:
    """Reader of one shard from one node, while the lock is held."""

    def __init__(self, node: WakuNode, pubsub_topic: str, intake: Intake, *, ring_capacity: int) -> None:
        self.reader = Reader("live", node.url, pubsub_topic)
        self._node = node
        self._intake = intake
        self._ring = Ring(ring_capacity)
        self._pause = IDLE_SECONDS  # the usual one, after the last page
        self._failing_since: float | None = None  # monotonic
        self._read_at = monotonic()
        self._noted_at = -NOTE_SECONDS
        self._noting: asyncio.Future[None] | None = None
        self._longest_page = TELLING_SIZE
        labels = (self.reader.name, pubsub_topic)
        self._last_read = LAST_READ_TIMESTAMP_SECONDS.labels(*labels)
        self._last_message = LAST_MESSAGE_TIMESTAMP_SECONDS.labels(*labels)
        self._fill_ratio = RING_FILL_RATIO.labels(self.reader.name)
        self._skew = MESSAGE_SKEW_SECONDS.labels(self.reader.name)

    async def run(self, term: Term) -> None:
        self._read_at = monotonic()
        while not term.is_over:
            pause = await self._read_once(term)
            await asyncio.sleep(pause)  # it is too short to need an interruption

    async def _read_once(self, term: Term) -> float:
        """Read and store one page, and return the pause before the next, in seconds."""
        try:
            messages = await self._drain()
        except NodeError as error:
            return self._failed(error)
        self._recovered()
        before, self._read_at = self._read_at, monotonic()
        new = await self._store(messages, clock.now(), term) if messages else 0
        self._note()
        self._pause = self._ring.next_read(len(messages), new, self._read_at - before)
        return self._pause

    async def _drain(self) -> list[Any]:
        try:
            return await self._node.read(self.reader.pubsub_topic)
        except NotSubscribed:
            await self._node.subscribe(self.reader.pubsub_topic)
            log.info("node_subscribed", node=self.reader.name, pubsub_topic=self.reader.pubsub_topic)
            return []

    def _watch_ring(self, size: int) -> None:
        is_larger_than_configured = size > self._ring.capacity
        fill = self._ring.fill(size)
        self._fill_ratio.observe(fill)
        self._last_message.set_to_current_time()
        if is_larger_than_configured:
            log.warning("ring_larger_than_configured", node=self.reader.name, messages=size)
        elif fill >= ALARM_FILL:
            log.warning("ring_filling_up", node=self.reader.name, messages=size, capacity=self._ring.capacity)

    def _failed(self, error: NodeError) -> float:
        """Note the failure, and return the pause in seconds before the next read."""
        READ_ERRORS.labels(self.reader.name, error.code).inc()
        if self._failing_since is None:
            self._failing_since = monotonic()
            log.warning("node_lost", node=self.reader.name, error=str(error))
        is_new = monotonic() - self._failing_since < USUAL_PACE_SECONDS
        return max(self._pause, MIN_SECONDS) if is_new else RETRY_SECONDS

    def _recovered(self) -> None:
        if self._failing_since is not None:
            log.info("node_back", node=self.reader.name, seconds=round(monotonic() - self._failing_since, 1))
        self._failing_since = None

    async def _store(self, messages: list[Any], received_at: datetime, term: Term) -> int:
        """Store a page, however often the database fails, and return how many of its envelopes are new.

        It goes on without the leader lock, because a database failure takes the lock, too. It gives up only when the
        bridge stops.
        """
        self._watch_ring(len(messages))
        backoff, reasons = Backoff(), ChangeFilter()
        while True:
            try:
                await self._intake.take(page := Page(self.reader, received_at, messages))
                break
            except (DjangoDatabaseError, psycopg.Error) as error:
                note_refusal(error)
                if reasons.has_changed(why := reason(error)):
                    log.warning("page_not_stored", node=self.reader.name, size=len(messages), reason=why)
            await wait(term.stopped, backoff.next())
            if term.stopped.is_set():
                READ_ERRORS.labels(self.reader.name, "not_stored").inc()
                log.error("page_left_to_the_store", node=self.reader.name, size=len(messages))
                return 0
        received_ns = received_at.timestamp() * NS_PER_SECOND
        self._skew.observe_all((received_ns - e.message.timestamp_ns) / NS_PER_SECOND for e in page.envelopes)
        if len(messages) >= self._longest_page:
            self._longest_page = len(messages)
            await in_thread(note_page, self.reader.node, len(messages))
        return len(page.new)

    def _note(self) -> None:
        """Note every `NOTE_SECONDS` that the node is read. Reading does not wait for a Redis that hangs."""
        is_due = monotonic() - self._noted_at >= NOTE_SECONDS
        if is_due and (self._noting is None or self._noting.done()):
            self._noted_at = monotonic()
            self._last_read.set_to_current_time()
            self._noting = asyncio.ensure_future(in_thread(_note_read, self.reader.node, self._node.skew_seconds))


def _note_read(node: str, skew_seconds: float | None) -> None:
    LAST_READ.save(LastRead(clock.now(), skew_seconds), node)


def note_page(node: str, size: int) -> None:
    """Note the size of a page for the config check, unless a longer one is known."""
    known = LONGEST_PAGE.read(node) or LongestPage()
    if size >= known.size:
        LONGEST_PAGE.save(LongestPage(size, known.times + 1 if size == known.size else 1), node)
