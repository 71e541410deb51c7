"""Backfill: it reads the last minutes of a content topic that is new to us from a store.

A query may come before the registration that it is about, for instance from somebody who saw the new user's grant
elsewhere. The bridge took such a query for a message to others. So it reads a content topic once more as soon as
the topic is ours.

Requested topics are kept in memory only, and a bridge that stops drops them. The bridge that follows knows every topic,
and remembers no message: its slow tier takes in such a query.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
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
from waku_bridge.reading.pages import Reader
from waku_bridge.reading.store_pages import Store, StorePages, Window

log = structlog.get_logger(__name__)

# A sender's clock may be ahead by 20 s, and our own be behind.
AHEAD = timedelta(seconds=25)
# Time that a message needs to reach a store on another node. More topics are collected meanwhile.
SETTLE = timedelta(seconds=2)
# nwaku's limit, from the second page on.
TOPICS_PER_QUERY = 10
# With more topics than this, reading everything once is less work than reading ten topics at a time.
MANY_TOPICS = 200
# Shortest time between two reads of everything. Topics that are requested meanwhile wait for the next one. So the
# traffic grows to six times its size at most, however many topics somebody registers.
EVERYTHING_PERIOD_SECONDS = 60.0


class Backfill:
    """The backfill of one store and shard. It repeats after failures, and drops no topic while the bridge runs."""

    def __init__(self, node: Store, pubsub_topic: str, intake: Intake, *, reach: timedelta) -> None:
        self._pages = StorePages(node, Reader("backfill", node.url, pubsub_topic), intake, Path.BACKFILL)
        self._reach = reach
        self._requested_at: dict[str, datetime] = {}  # by content topic
        self._everything_again_at = 0.0  # monotonic
        self._has_work = asyncio.Event()
        self._backoff = Backoff()

    def request(self, content_topics: Sequence[str]) -> None:
        """Have the last minutes of these content topics read."""
        self._requested_at |= dict.fromkeys(content_topics, clock.now())
        self._has_work.set()

    async def run(self, term: Term) -> None:
        while not term.is_over:
            await term.pause(None, unless=self._has_work)
            while self._requested_at and not term.is_over:
                await term.pause(await self._read_once(term))
            self._has_work.clear()

    async def _read_once(self, term: Term) -> float:
        """Read some of the requested topics, or all, and return the pause in seconds before the next."""
        settled_at = clock.now() - SETTLE
        topics = [topic for topic, at in self._requested_at.items() if at <= settled_at]
        if not topics:
            return SETTLE.total_seconds()
        if is_everything := len(topics) > MANY_TOPICS:
            if (rest := self._everything_again_at - monotonic()) > 0:
                return rest
        else:
            topics = topics[:TOPICS_PER_QUERY]
        try:
            is_read = await self._read(topics, term, is_everything=is_everything)
        except NodeError as error:
            STORE_ERRORS.labels(self._pages.reader.name, error.code).inc()
            return self._postpone(error)
        except (DjangoDatabaseError, psycopg.Error) as error:
            return self._postpone(error)
        if is_read and is_everything:
            self._everything_again_at = monotonic() + EVERYTHING_PERIOD_SECONDS
        self._backoff.works()
        return 0.0

    def _postpone(self, error: Exception) -> float:
        if not self._backoff.failures:
            log.warning("backfill_postponed", node=self._pages.reader.name, error=type(error).__name__)
        return self._backoff.next() + (BUSY_SECONDS if isinstance(error, Busy) else 0)

    async def _read(self, topics: Sequence[str], term: Term, *, is_everything: bool) -> bool:
        """Read these topics, or all messages, unless the term ends meanwhile, and return whether all was read."""
        since = min(self._requested_at[topic] for topic in topics) - self._reach
        window = Window(since, clock.now() + AHEAD)
        if not await self._pages.read_again(window, term, () if is_everything else topics):
            return False
        for topic in topics:
            del self._requested_at[topic]
        log.info("topics_backfilled", node=self._pages.reader.name, count=len(topics))
        return True
