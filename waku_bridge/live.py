"""The live path: drains a node's cache of one shard, and writes what is ours into the inbox before the next page.

A page that was drained exists nowhere but here, so it is stored however long the database takes.
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

import psycopg
import structlog
from django.core.cache import cache
from django.db import Error as DjangoDatabaseError
from django.db import close_old_connections
from django.utils import timezone
from redis.exceptions import RedisError

from waku_bridge import inbox
from waku_bridge.codec.waku_message import message_hash
from waku_bridge.identity import own_content_topics
from waku_bridge.inbox import Envelope
from waku_bridge.node import BadNodeMessage, NodeError, NotSubscribed, WakuNode, from_json
from waku_bridge.query_topics import QueryTopics

log = structlog.get_logger(__name__)

BUSY_PERIOD_SECONDS = 0.05
IDLE_PERIOD_SECONDS = 0.15
FIRST_BACKOFF_SECONDS = 0.2
MAX_BACKOFF_SECONDS = 10.0
WAKU_VERSION = 1
MAX_PAYLOAD_BYTES = 1024 * 1024
LAST_READ_KEY = "bridge:last_read:{url}"
LAST_READ_TTL_SECONDS = 15

Enqueue = Callable[[list[bytes]], None]


class LiveReader:
    """Reads one shard from one node until it is told to stop."""

    def __init__(self, node: WakuNode, pubsub_topic: str, query_topics: QueryTopics, enqueue: Enqueue) -> None:
        self.node = node
        self.pubsub_topic = pubsub_topic
        self._query_topics = query_topics
        self._enqueue = enqueue
        self._failures = 0

    async def run(self, stopped: asyncio.Event) -> None:
        while not stopped.is_set():
            await _wait(stopped, await self._read_once())

    async def _read_once(self) -> float:
        """Read and store one page; returns how long to wait for the next, in seconds."""
        try:
            page = await self.node.read(self.pubsub_topic)
        except NotSubscribed:
            return await self._subscribe()
        except NodeError as error:
            return self._back_off(error)
        self._recovered()
        await self._store_however_long_it_takes(page)
        return BUSY_PERIOD_SECONDS if page else IDLE_PERIOD_SECONDS

    async def _subscribe(self) -> float:
        try:
            await self.node.subscribe(self.pubsub_topic)
        except NodeError as error:
            return self._back_off(error)
        log.info("node_subscribed", node=self.node.url, pubsub_topic=self.pubsub_topic)
        return BUSY_PERIOD_SECONDS

    def _back_off(self, error: NodeError) -> float:
        if not self._failures:
            log.warning("node_lost", node=self.node.url, error=str(error))
        self._failures += 1
        span: float = min(FIRST_BACKOFF_SECONDS * 2 ** min(self._failures, 10), MAX_BACKOFF_SECONDS)
        return span * (0.5 + random.random() / 2)  # noqa: S311 - spreads load, guards nothing

    def _recovered(self) -> None:
        if self._failures:
            log.info("node_back", node=self.node.url, failures=self._failures)
        self._failures = 0

    async def _store_however_long_it_takes(self, page: list[Any]) -> None:
        received_at, failures = timezone.now(), 0
        while True:
            try:
                await asyncio.to_thread(self._store, page, received_at)
            except (DjangoDatabaseError, psycopg.Error) as error:
                if not failures:
                    log.warning("page_not_stored", node=self.node.url, size=len(page), error=type(error).__name__)
                failures += 1
                await asyncio.sleep(min(FIRST_BACKOFF_SECONDS * 2 ** min(failures, 10), MAX_BACKOFF_SECONDS))
            else:
                return

    def _store(self, page: list[Any], received_at: datetime) -> None:
        close_old_connections()
        self._query_topics.refresh()
        envelopes = select(page, self.pubsub_topic, self._query_topics)
        hashes = inbox.store(envelopes, source=self.node.url, now=received_at)
        # While Redis is away nobody learns how we are doing; reading goes on.
        with contextlib.suppress(RedisError):
            cache.set(LAST_READ_KEY.format(url=self.node.url), timezone.now().isoformat(), LAST_READ_TTL_SECONDS)
        if hashes:
            self._enqueue(hashes)


def select(page: Iterable[Any], pubsub_topic: str, query_topics: QueryTopics) -> list[Envelope]:
    """The messages of a page that are for us. The topic is compared before anything is decoded."""
    own_topics = own_content_topics()
    envelopes, skipped = [], Counter[str]()
    for raw in page:
        content_topic = raw.get("contentTopic") if isinstance(raw, dict) else None
        if not isinstance(content_topic, str) or not (content_topic in own_topics or content_topic in query_topics):
            skipped["other_topic" if isinstance(content_topic, str) else "malformed"] += 1
            continue
        try:
            message = from_json(raw)
        except BadNodeMessage:
            skipped["malformed"] += 1
            continue
        if message.version != WAKU_VERSION or not 0 < len(message.payload) <= MAX_PAYLOAD_BYTES:
            skipped["wrong_version" if message.version != WAKU_VERSION else "wrong_size"] += 1
            continue
        envelopes.append(Envelope(message_hash(pubsub_topic, message), pubsub_topic, message))
    if skipped.keys() - {"other_topic"}:
        log.warning("messages_skipped", pubsub_topic=pubsub_topic, **skipped)
    return envelopes


async def _wait(stopped: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(stopped.wait(), timeout=seconds)
    except TimeoutError:
        return
