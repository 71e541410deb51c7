"""The process of the bridge: it runs all readers while it holds the leader lock, until it is stopped."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import product

import structlog

from kit.http import Connections
from kit.processes.leader import WAKU_BRIDGE, Leader, Term
from waku_bridge.messages import LEADER
from waku_bridge.metrics import LOCK_HELD
from waku_bridge.node import WakuNode
from waku_bridge.query_topics import QueryTopics
from waku_bridge.reading.backfill import Backfill
from waku_bridge.reading.bound import Bound
from waku_bridge.reading.intake import Intake, Session
from waku_bridge.reading.live import LiveReader
from waku_bridge.reading.stores import StoreReader

log = structlog.get_logger(__name__)

# A node that sends nothing for this long counts as failed.
TIMEOUT_SECONDS = 30.0
# A page is gone from the node once it is read, so the limit only keeps a broken node from filling our memory.
MAX_PAGE_BYTES = 512 * 1024 * 1024
# When the bridge stops: grace period for answers and commits that are under way.
STOP_SECONDS = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The settings of a bridge: the nodes and shards that it reads, and the limits of reading."""

    nodes: Sequence[str]
    store_nodes: Sequence[str]
    pubsub_topics: Sequence[str]
    ring_capacity: int
    recovery: timedelta
    backfill: timedelta
    keep: timedelta
    max_waiting: int


class Bridge:
    """All readers of the nodes and stores in a plan."""

    def __init__(self, plan: Plan, connections: Connections) -> None:
        stores = [WakuNode(url, connections) for url in dict.fromkeys(plan.store_nodes)]
        session = Session(QueryTopics(self._backfill_new))
        self._session = session
        intake = Intake(session, keep=plan.keep)
        live = [
            LiveReader(
                WakuNode(url, connections),
                topic,
                intake,
                ring_capacity=plan.ring_capacity,
            )
            for url, topic in product(dict.fromkeys(plan.nodes), plan.pubsub_topics)
        ]
        shards = list(product(stores, plan.pubsub_topics))
        late = [StoreReader(store, topic, intake, recovery=plan.recovery) for store, topic in shards]
        self._backfills = [Backfill(store, topic, intake, reach=plan.backfill) for store, topic in shards]
        bound = Bound(intake, limit=plan.max_waiting)
        self._readers: list[LiveReader | StoreReader | Backfill | Bound] = [*live, *late, *self._backfills, bound]

    async def run(self, stopped: asyncio.Event) -> None:
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

    def _backfill_new(self, content_topics: Sequence[str]) -> None:
        for backfill in self._backfills:
            backfill.request(content_topics)


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
