"""`manage.py run_waku_bridge`: read every configured node, store and shard into the inbox.

Any number of these processes may run: one of them reads, and the others stand by.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta
from itertools import product
from typing import Any

import structlog
import uvloop
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from kit.display import host_of
from kit.exposition import serve
from kit.http import Connections
from kit.processes import announce_ready
from kit.processes.leader import WAKU_BRIDGE, Leader, Term
from kit.processes.starting import wait_until_fit
from waku_bridge.messages import LEADER
from waku_bridge.metrics import LOCK_HELD
from waku_bridge.node import WakuNode
from waku_bridge.query_topics import QueryTopics
from waku_bridge.reading.intake import Bound, Intake, Session
from waku_bridge.reading.live import LiveReader
from waku_bridge.reading.stores import StoreReader

# A node that sends nothing for this long counts as failed.
TIMEOUT_SECONDS = 30.0
# A page is gone from the node once it is read, so the limit only keeps a broken node from filling our memory.
MAX_PAGE_BYTES = 512 * 1024 * 1024
# When the bridge stops: grace period for answers and commits that are under way.
STOP_SECONDS = 4.0
# The process exits this long after a signal. A thread that waits for a hanging database cannot be stopped, and
# supervisors kill after ten seconds.
LAST_SECONDS = STOP_SECONDS + 4.0
# Limit of unopened envelopes in the inbox, of postponed ones, and of those that wait for a key.
MAX_WAITING = 200_000

log = structlog.get_logger(__name__)


class Command(BaseCommand):
    help = "Read every Waku node and store of the settings, and write the messages that are for us into the inbox."

    def handle(self, *_args: Any, **_options: Any) -> None:
        if not settings.WAKU_NODES:
            raise CommandError("WAKU_NODES is not set, and no embedded node is running. Start `manage.py up`.")
        serve()
        wait_until_fit()
        uvloop.run(_read_all())


async def _read_all() -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, _stop, stopped)
    nodes, stores = (list(map(host_of, urls)) for urls in (settings.WAKU_NODES, settings.WAKU_STORE_NODES))
    log.info("bridge_started", nodes=nodes, store_nodes=stores, pubsub_topics=settings.WAKU_PUBSUB_TOPICS)
    async with Connections(silent_seconds=TIMEOUT_SECONDS, max_answer_bytes=MAX_PAGE_BYTES) as connections:
        announce_ready()  # before the lock is held: the bridge that this one replaces stops then, and releases the lock
        bridge = Bridge(connections, nodes=settings.WAKU_NODES, store_nodes=settings.WAKU_STORE_NODES)
        await bridge.run(stopped)
    log.info("bridge_stopped")


class Bridge:
    """All readers of these nodes and stores."""

    def __init__(self, connections: Connections, *, nodes: Sequence[str], store_nodes: Sequence[str]) -> None:
        self._session = Session(QueryTopics(self._request))
        intake = Intake(self._session, keep=timedelta(days=settings.ENVELOPE_RETENTION_DAYS))
        shards = settings.WAKU_PUBSUB_TOPICS
        self._stores = [
            StoreReader(WakuNode(url, connections), shard, intake)
            for url, shard in product(dict.fromkeys(store_nodes), shards)
        ]
        live = [
            LiveReader(WakuNode(url, connections), shard, intake, ring_capacity=settings.WAKU_RING_CAPACITY)
            for url, shard in product(dict.fromkeys(nodes), shards)
        ]
        bound = Bound(intake, limit=MAX_WAITING)
        self._readers: list[LiveReader | StoreReader | Bound] = [*live, *self._stores, bound]

    async def run(self, stopped: asyncio.Event) -> None:
        """Read whenever this process has the lock, until it is stopped."""
        await Leader(WAKU_BRIDGE, LEADER, LOCK_HELD).lead(stopped, self._read)

    async def _read(self, term: Term) -> None:
        """Run all readers until the term is over, and return once they have returned."""
        try:
            async with asyncio.TaskGroup() as group:
                readers = [group.create_task(reader.run(term)) for reader in self._readers]
                cutting = group.create_task(_cut_off(term.stopped, readers))
                await asyncio.wait(readers)
                cutting.cancel()
        finally:
            await self._session.close()  # a session that listens and is not read blocks notices to all other sessions

    def _request(self, content_topics: Sequence[str]) -> None:
        for store in self._stores:
            store.request(content_topics)


async def _cut_off(stopped: asyncio.Event, readers: Sequence["asyncio.Task[None]"]) -> None:
    """Cancel readers that are still busy `STOP_SECONDS` after the bridge was stopped.

    The messages that they hold, and those that were still to be backfilled, are also in the store. The next bridge
    reads them there.
    """
    await stopped.wait()
    _, hanging = await asyncio.wait(readers, timeout=STOP_SECONDS)
    if hanging:
        log.warning("readers_cut_off", count=len(hanging))
    for task in hanging:
        task.cancel()


def _stop(stopped: asyncio.Event) -> None:
    stopped.set()
    asyncio.get_running_loop().call_later(LAST_SECONDS, _leave)


def _leave() -> None:
    log.error("bridge_left_without_its_threads")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
