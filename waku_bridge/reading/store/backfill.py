"""Backfill: it reads the last minutes of a content topic that is new to us from every store.

A query may come before the registration that it is about, for instance from somebody who saw the new user's grant
elsewhere. The bridge took such a query for a message to others. So it reads a content topic once more as soon as
the topic is ours.

Requested topics are kept in memory only, and a bridge that stops drops them. The bridge that follows knows every topic,
and its walkers read the last hour within ten minutes.
"""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import islice, product
from time import monotonic

import psycopg
import structlog
from django.db import Error as DjangoDatabaseError

from kit.backoff import Backoff
from kit.db.clock import clock
from kit.processes.leader import Term
from waku_bridge.inbox.inbox import Path
from waku_bridge.metrics import STORE_ERRORS
from waku_bridge.node import Busy, NodeError
from waku_bridge.node.client import BUSY_SECONDS
from waku_bridge.reading.intake import Intake
from waku_bridge.reading.reader import Reader
from waku_bridge.reading.store.store_pages import PagePosition, Store, StorePages
from waku_bridge.reading.store.windows import AHEAD, Window

log = structlog.get_logger(__name__)

# Time that a message needs to reach a store on another node. More topics are collected meanwhile.
SETTLE_SECONDS = 2.0
# nwaku's limit, from the second page on.
TOPICS_PER_QUERY = 10
# With more topics than this, reading everything once is less work than reading ten topics at a time.
MANY_TOPICS = 200
# Shortest time between two reads of everything. Topics that are requested meanwhile wait for the next one. So the
# traffic grows to six times its size at most, however many topics somebody registers.
EVERYTHING_PERIOD_SECONDS = 60.0


class Backfill:
    """The backfill of every store and shard."""

    def __init__(
        self, nodes: Iterable[Store], pubsub_topics: Iterable[str], intake: Intake, *, reach: timedelta
    ) -> None:
        places = product(nodes, pubsub_topics)
        self._stores = [_StoreBackfill(node, pubsub_topic, intake, reach) for node, pubsub_topic in places]

    def request(self, content_topics: Sequence[str]) -> None:
        """Have the last minutes of these content topics read."""
        for store in self._stores:
            store.request(content_topics, clock.now())

    async def run(self, term: Term) -> None:
        """Read what is requested until the term is over."""
        async with asyncio.TaskGroup() as group:
            for store in self._stores:
                group.create_task(store.run(term))


class _StoreBackfill:
    """The backfill of one store and shard. It repeats after failures, and drops no topic while the bridge runs."""

    def __init__(self, node: Store, pubsub_topic: str, intake: Intake, reach: timedelta) -> None:
        self._pages = StorePages(node, Reader("backfill", node.url, pubsub_topic), intake, Path.BACKFILL)
        self._reach = reach
        # The time at which each topic was requested, or, once they are too many, since when everything is to be read.
        self._waiting: dict[str, datetime] = {}
        self._everything_since: datetime | None = None
        self._everything_again_at = 0.0  # monotonic
        self._has_work = asyncio.Event()
        self._backoff = Backoff()

    def request(self, content_topics: Sequence[str], at: datetime) -> None:
        for content_topic in content_topics:
            self._waiting.setdefault(content_topic, at)
        if self._everything_since or len(self._waiting) > MANY_TOPICS:
            self._everything_since = min([*self._waiting.values(), self._everything_since or at])
            self._waiting.clear()
        self._has_work.set()

    async def run(self, term: Term) -> None:
        while not term.is_over:
            await term.pause(None, unless=self._has_work)
            await term.pause(SETTLE_SECONDS)
            if not term.is_over:
                await term.pause(await self._fill(term))

    async def _fill(self, term: Term) -> float:
        """Read the requested topics, and return the pause in seconds before the next request to the store."""
        self._has_work.clear()
        if self._everything_since and (rest := self._everything_again_at - monotonic()) > 0:
            self._has_work.set()
            return rest
        try:
            await self._read_everything(term)
            while self._waiting and not term.is_over:
                await self._read_some(term)
        except NodeError as error:
            STORE_ERRORS.labels(self._pages.reader.name, error.code).inc()
            return self._postpone(error)
        except (DjangoDatabaseError, psycopg.Error) as error:
            return self._postpone(error)
        if self._waiting or self._everything_since:  # the term ended before everything was read
            self._has_work.set()
        self._backoff.works()
        return 0.0

    def _postpone(self, error: Exception) -> float:
        if not self._backoff.failures:
            log.warning("backfill_postponed", node=self._pages.reader.name, error=type(error).__name__)
        self._has_work.set()
        return self._backoff.next() + (BUSY_SECONDS if isinstance(error, Busy) else 0)

    async def _read_everything(self, term: Term) -> None:
        since = self._everything_since
        if since is not None:
            self._everything_since = None
            is_whole = False
            try:
                is_whole = await self._read(since, (), term)
            finally:
                if is_whole:
                    self._everything_again_at = monotonic() + EVERYTHING_PERIOD_SECONDS
                else:
                    self._everything_since = since

    async def _read_some(self, term: Term) -> None:
        topics = list(islice(self._waiting, TOPICS_PER_QUERY))
        if await self._read(min(self._waiting[content_topic] for content_topic in topics), topics, term):
            for content_topic in topics:
                self._waiting.pop(content_topic, None)

    async def _read(self, since: datetime, content_topics: Sequence[str], term: Term) -> bool:
        """Read all pages unless the term ends meanwhile, and return whether all were read."""
        window = Window(since - self._reach, clock.now() + AHEAD)
        position = await self._pages.read_again(window, PagePosition(), content_topics)
        while position and not term.is_over:
            position = await self._pages.read_again(window, position, content_topics)
        if not position:
            log.info("topics_backfilled", node=self._pages.reader.name, count=len(content_topics) or "all")
        return not position
