"""The live path: drains a node's relay cache of one shard, and writes what is ours into the inbox before the next page.

A page that was drained exists nowhere but here, so it is kept until the database takes it. It is also in the store,
which is why a bridge that is told to stop may drop it: the walker reads it back. So it does with whatever was lost on
the way here: a read whose answer broke may have drained a page.
"""

import contextlib
from collections.abc import Sequence
from datetime import datetime
from time import monotonic
from typing import Any, Protocol

import psycopg
import structlog
from django.core.cache import cache
from django.db import Error as DjangoDatabaseError
from django.utils import timezone
from redis.exceptions import RedisError

from waku_bridge.inbox import Path
from waku_bridge.metrics import (
    LAST_MESSAGE_TIMESTAMP_SECONDS,
    LAST_READ_TIMESTAMP_SECONDS,
    MESSAGE_SKEW_SECONDS,
    READ_ERRORS,
    RING_FILL_RATIO,
)
from waku_bridge.node import NodeError, NotSubscribed, Unreachable
from waku_bridge.node.watch import pages as page_lengths
from waku_bridge.reading import progress, windows
from waku_bridge.reading.backoff import Backoff
from waku_bridge.reading.intake import Intake
from waku_bridge.reading.leases import Term, wait
from waku_bridge.reading.pace import ALARM_FILL, IDLE_SECONDS, Ring
from waku_bridge.reading.pages import Selection
from waku_bridge.reading.sightings import Reader
from waku_bridge.reading.threads import in_thread

log = structlog.get_logger(__name__)

LAST_READ_KEY = "bridge:last_read:{url}"
LAST_READ_TTL_SECONDS = 15
# A node that goes on breaking its answers has its stores searched this often, each time since the search before.
SEARCH_PERIOD_SECONDS = 2.0
NS_PER_SECOND = 10**9


class RelayCache(Protocol):
    """As much of a WakuNode as reading takes."""

    url: str

    async def read(self, pubsub_topic: str) -> list[Any]: ...
    async def subscribe(self, pubsub_topic: str) -> None: ...


class LiveReader:
    """Reads one shard from one node while it has the lease. ``store_nodes`` are searched for what a read has lost."""

    def __init__(
        self, node: RelayCache, pubsub_topic: str, intake: Intake, *, store_nodes: Sequence[str], ring_capacity: int
    ) -> None:
        self.reader = Reader("live", node.url, pubsub_topic)
        self._node = node
        self._intake = intake
        self._store_nodes = store_nodes
        self._ring = Ring(ring_capacity)
        self._backoff = Backoff()
        self._read_at, self._read_monotonic = timezone.now(), monotonic()
        self._lost_since: datetime | None = None
        self._searched_at = -SEARCH_PERIOD_SECONDS

    async def run(self, term: Term) -> None:
        self._read_at, self._read_monotonic = timezone.now(), monotonic()
        self._intake.works(self.reader)
        while not term.is_over:
            await term.pause(await self._read_once(term))
        self._intake.fails(self.reader)

    async def _read_once(self, term: Term) -> float:
        """Read and store one page; returns how long to wait for the next, in seconds."""
        try:
            page = await self._node.read(self.reader.pubsub_topic)
        except NotSubscribed:
            self._lose()
            return await self._subscribe()
        except NodeError as error:
            return await self._failed(error)
        self._recovered()
        received_at, pause = timezone.now(), self._measure(page)
        await self._store_however_long_it_takes(page, received_at, term)
        self._read_at = received_at
        await self._search_stores()
        return pause

    def _measure(self, page: Sequence[Any]) -> float:
        """Counts, warns, and says when to read again."""
        now, size = monotonic(), len(page)
        LAST_READ_TIMESTAMP_SECONDS.labels(self.reader.name, self.reader.pubsub_topic).set_to_current_time()
        if page:
            LAST_MESSAGE_TIMESTAMP_SECONDS.labels(self.reader.name, self.reader.pubsub_topic).set_to_current_time()
        self._watch_ring(size)
        pause = self._ring.next_read(size, now - self._read_monotonic)
        self._read_monotonic = now
        return pause

    def _watch_ring(self, size: int) -> None:
        is_larger_than_told = size > self._ring.capacity
        fill = self._ring.fill(size)
        RING_FILL_RATIO.labels(self.reader.name).observe(fill)
        if is_larger_than_told:
            log.warning("ring_larger_than_configured", node=self.reader.name, messages=size)
        elif fill >= ALARM_FILL:
            log.warning("ring_filling_up", node=self.reader.name, messages=size, capacity=self._ring.capacity)
        if fill >= 1:
            self._lose()

    async def _subscribe(self) -> float:
        try:
            await self._node.subscribe(self.reader.pubsub_topic)
        except NodeError as error:
            return await self._failed(error)
        log.info("node_subscribed", node=self.reader.name, pubsub_topic=self.reader.pubsub_topic)
        return IDLE_SECONDS

    async def _failed(self, error: NodeError) -> float:
        """Nothing is asked again as if nothing had happened: unless the request never left, it may have drained."""
        READ_ERRORS.labels(self.reader.name, error.code).inc()
        if not self._backoff.failures:
            log.warning("node_lost", node=self.reader.name, error=str(error))
        self._lose()
        if not isinstance(error, Unreachable):
            await self._search_stores()
        return self._backoff.next()

    def _recovered(self) -> None:
        if self._backoff.failures:
            log.info("node_back", node=self.reader.name, failures=self._backoff.failures)
        self._backoff.reset()

    def _lose(self) -> None:
        self._lost_since = self._lost_since or self._read_at

    async def _search_stores(self) -> None:
        """Have the walkers read again what came since the last good read, or since they were last told to: what is
        ordered is durable, so a later read can only have lost what came after it. While the database is away that
        waits: then they do not move their watermarks, either.
        """
        if self._lost_since is None or monotonic() - self._searched_at < SEARCH_PERIOD_SECONDS:
            return
        now = timezone.now()
        lost = windows.lost_reply(last_read_at=self._lost_since, now=now)
        try:
            await in_thread(progress.order_lost_reply, self._store_nodes, self.reader.pubsub_topic, lost)
        except (DjangoDatabaseError, psycopg.Error) as error:
            log.warning("search_postponed", node=self.reader.name, error=type(error).__name__)
            return
        log.info("stores_searched_for_losses", node=self.reader.name, since=lost.start_at.isoformat())
        self._searched_at = monotonic()
        self._lost_since, self._read_at = None, now

    async def _store_however_long_it_takes(self, page: list[Any], received_at: datetime, term: Term) -> None:
        """Even when the lease is lost meanwhile: with the database, both are. Only a bridge that stops lets go."""
        backoff = Backoff()
        while not await self._is_stored(page, received_at, is_first=not backoff.failures):
            await wait(term.stopped, backoff.next())
            if term.stopped.is_set():
                READ_ERRORS.labels(self.reader.name, "not_stored").inc()
                log.error("page_left_to_the_store", node=self.reader.name, size=len(page))
                return

    async def _is_stored(self, page: list[Any], received_at: datetime, *, is_first: bool) -> bool:
        try:
            await in_thread(self._store, page, received_at)
        except (DjangoDatabaseError, psycopg.Error) as error:
            if is_first:
                log.warning("page_not_stored", node=self.reader.name, size=len(page), error=type(error).__name__)
            return False
        return True

    def _store(self, page: list[Any], received_at: datetime) -> None:
        selection = self._intake.take(page, self.reader, path=Path.LIVE, received_at=received_at)
        self._tell(selection, received_at)
        page_lengths.note(self.reader.node, len(page))

    def _tell(self, selection: Selection, received_at: datetime) -> None:
        received_ns = received_at.timestamp() * NS_PER_SECOND
        skews = [(received_ns - e.message.timestamp_ns) / NS_PER_SECOND for e in selection.envelopes]
        MESSAGE_SKEW_SECONDS.labels(self.reader.name).observe_all(skews)
        # While Redis is away nobody learns how we are doing; reading goes on.
        with contextlib.suppress(RedisError):
            key = LAST_READ_KEY.format(url=self.reader.node)
            cache.set(key, timezone.now().isoformat(), LAST_READ_TTL_SECONDS)
