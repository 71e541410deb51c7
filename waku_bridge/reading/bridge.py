"""All readers of one bridge, each under its lease, until it is told to stop."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import product

import structlog

from notifications.connections import HttpClient
from waku_bridge.node import WakuNode
from waku_bridge.query_topics import QueryTopics
from waku_bridge.reading.backfill import Backfill
from waku_bridge.reading.intake import Enqueue, Intake
from waku_bridge.reading.leases import LeaseName, Leases, Work
from waku_bridge.reading.live import LiveReader
from waku_bridge.reading.walker import StoreWalker

log = structlog.get_logger(__name__)

# An answer or a commit that is under way is waited for, but not longer than that.
STOP_SECONDS = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to read, and how."""

    nodes: Sequence[str]
    store_nodes: Sequence[str]
    pubsub_topics: Sequence[str]
    ring_capacity: int
    store_period_seconds: float
    recovery: timedelta
    backfill: timedelta
    keep: timedelta

    def lease_names(self) -> list[LeaseName]:
        live = [LeaseName("live", node, topic) for node, topic in product(self.nodes, self.pubsub_topics)]
        stores = [LeaseName("store", node, topic) for node, topic in product(self.store_nodes, self.pubsub_topics)]
        return list(dict.fromkeys(live + stores))


class Bridge:
    def __init__(self, plan: Plan, client: HttpClient, enqueue: Enqueue) -> None:
        self._plan = plan
        self._client = client
        self._topics = QueryTopics(self._want)
        self._intake = Intake(self._topics, enqueue, keep=plan.keep)
        self._backfill: Backfill | None = None

    async def run(self, stopped: asyncio.Event) -> None:
        names = self._plan.lease_names()
        stores = [WakuNode(url, self._client) for url in self._plan.store_nodes]
        self._backfill = Backfill(stores, self._plan.pubsub_topics, self._intake, reach=self._plan.backfill)
        async with Leases() as leases, asyncio.TaskGroup() as group:
            filling = group.create_task(self._backfill.run(stopped))
            readers = [group.create_task(leases.hold(name, self._work(name))) for name in names]
            watching = group.create_task(leases.watch())
            group.create_task(_stop(stopped, leases, [*readers, filling], watching))
        await asyncio.to_thread(self._topics.close)

    def _want(self, content_topics: Sequence[str]) -> None:
        if self._backfill:
            self._backfill.request(content_topics)

    def _work(self, name: LeaseName) -> Work:
        node = WakuNode(name.node, self._client)
        if name.kind == "store":
            period, recovery = self._plan.store_period_seconds, self._plan.recovery
            walker = StoreWalker(node, name.pubsub_topic, self._intake, period_seconds=period, recovery=recovery)
            return walker.run
        reader = LiveReader(
            node,
            name.pubsub_topic,
            self._intake,
            store_nodes=self._plan.store_nodes,
            ring_capacity=self._plan.ring_capacity,
        )
        return reader.run


async def _stop(
    stopped: asyncio.Event, leases: Leases, readers: Sequence["asyncio.Task[None]"], watching: "asyncio.Task[None]"
) -> None:
    """What a reader holds that nobody takes is in the store, too: the next bridge finds it there. Likewise what was
    still to be backfilled.
    """
    await stopped.wait()
    leases.stop()
    _, hanging = await asyncio.wait(readers, timeout=STOP_SECONDS)
    if hanging:
        log.warning("readers_cut_off", count=len(hanging))
    for task in (*hanging, watching):
        task.cancel()
