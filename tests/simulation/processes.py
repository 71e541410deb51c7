"""Processes of the simulation: workers that process batches, and a bridge that reads nodes.

Each has an event loop, a database connection and memory of its own, which end with it. A process is killed at one of
its statements, before or after a commit, or when it sends a push. Its connection is lost in the same places.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from math import inf
from random import Random
from types import SimpleNamespace
from typing import Any

import psycopg
from django.db import InterfaceError, OperationalError, connections

from kit.batches.batch import Step
from kit.batches.worker import Worker
from kit.buckets.shared import SharedBuckets
from kit.db.clock import clock
from kit.processes.leader import Term
from notifications.delivery.steps import Delivery
from notifications.messages import Push, Result
from notifications.queues.capacity import Admission, ConcurrencyLimits
from tests.rig.conversation import PUBSUB_TOPIC
from tests.simulation.agenda import Agenda, Loop
from tests.simulation.database import Asynchronous, Pool, Wrapper
from tests.simulation.network import RING_CAPACITY, Network, Providers, SimulatedGateway
from waku_bridge.bridge import WakuBridge
from waku_bridge.inbox.queries import Limits
from waku_bridge.node import Nodes
from waku_bridge.query_topics import QueryTopics
from waku_bridge.reading.intake import Intake, Session
from waku_bridge.reading.live import LiveReader
from waku_bridge.reading.stores import StoreReader

LEASE = timedelta(seconds=20)
IN_FLIGHT = 3
TIMEOUT_SECONDS = 8.0


class Killed(BaseException):
    """The process ends here."""


class Process:
    """Event loop, connection and fate of a process of any kind."""

    def __init__(self, name: str, scene: "Scene") -> None:
        self.name = name
        self.scene = scene
        self.random = scene.random
        self.is_alive = True
        self.connection = Wrapper(scene.pool, self.random.random)
        self.loop = Loop(scene.agenda, self, self._as_thread)
        self.admission = Admission()
        self.buckets = SharedBuckets()
        self.query_limits = Limits(1000, scene.agenda.monotonic)
        self.killed_after: int | None = None  # places that it still passes before it is killed
        self.cut_after: int | None = None  # places that it still passes before its connection is lost

    def pass_by(self) -> None:
        """Pass a place at which the process may be killed or lose its connection."""
        if self.killed_after is not None:
            self.killed_after -= 1
            if self.killed_after <= 0:
                self.is_alive = False
                raise Killed
        if self.cut_after is not None:
            self.cut_after -= 1
            if self.cut_after <= 0:
                self.cut_after = None
                raise psycopg.OperationalError("the connection is lost")

    def bury(self) -> None:
        """Roll back the process's transaction and release its locks, as the database does when a client is gone."""
        self.is_alive = False
        self.connection.closed_in_transaction = False
        self.connection.in_atomic_block = False
        self.connection.close()

    def _as_thread(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except (OperationalError, InterfaceError):
            self.connection.close()
            raise


class Scene:
    """Surroundings of the processes: agenda, database, network, and the process that runs now."""

    def __init__(self, agenda: Agenda, random: Random, pool: Pool, network: Network, providers: Providers) -> None:
        self.agenda = agenda
        self.random = random
        self.pool = pool
        self.network = network
        self.providers = providers
        self.current: Process | None = None

    @contextmanager
    def inside(self, process: Process | None) -> Iterator[None]:
        """Run the block as this process, whose connection becomes Django's."""
        before, self.current = self.current, process
        wrapper, connections["default"] = connections["default"], process.connection if process else None
        try:
            yield
        finally:
            self.current = before
            connections["default"] = wrapper


class SimulatedWorker(Process):
    """Worker process. It processes batches when its wakeup is set, and looks for rows now and then."""

    def __init__(
        self,
        name: str,
        scene: Scene,
        *,
        note: Callable[["SimulatedWorker", Push], None],
        answered: Callable[["SimulatedWorker", Push, Result], None],
    ) -> None:
        super().__init__(name, scene)
        wakeup: Any = SimpleNamespace(set=self.hurry)
        gateway = SimulatedGateway(
            scene.providers, lambda push: note(self, push), lambda push, result: answered(self, push, result)
        )
        self.delivery = Delivery(lambda _: gateway, wakeup)
        self.delivery.limits = ConcurrencyLimits(2, connections=2 * IN_FLIGHT)
        nodes: Any = scene.network.nodes
        own = WakuBridge(self.delivery, wakeup, nodes=Nodes(nodes), stores=Nodes(nodes))
        steps: list[Step] = [*own.intake(), *self.delivery.steps(), *own.outlet()]
        self._worker = Worker(steps, wakeup)
        self._due = 0  # number of the next batch; batches that were postponed are skipped
        self.is_in_batch = False
        self.hurry()

    def hurry(self) -> None:
        """Process a batch soon."""
        self._plan(self.random.uniform(0.0, 0.1))

    def _plan(self, seconds: float) -> None:
        self._due += 1
        number = self._due
        self.scene.agenda.add(seconds, lambda: self.process_batch() if number == self._due else None, self)

    def stop(self) -> None:
        """Begin to stop, as on SIGTERM: work under way is finished first."""
        self._worker.stop(timeout_seconds=TIMEOUT_SECONDS)

    def process_batch(self) -> None:
        """Process one batch, and plan the next."""
        is_more = False
        self._worker._rows.look_at = 0.0
        self.is_in_batch = True
        try:
            with self.scene.inside(self):
                is_more = self._worker.process_batch(now=clock.now())
        except (OperationalError, InterfaceError, psycopg.Error):
            with self.scene.inside(self):
                self._worker._rows.disconnect()
        except Killed:
            self.is_alive = False
        finally:
            self.is_in_batch = False
        if not self.is_alive or self._worker._is_over():
            self.bury()
        elif is_more:
            self._plan(0.001)
        else:
            self._plan(self._pause())

    def _pause(self) -> float:
        if self.scene.network.is_troubled and self.random.random() < 0.03:
            return self.random.uniform(2.0, 40.0)  # the process hangs, and its leases end
        next_at = self._worker._next_at()
        due_in = 1.0 if next_at == inf else max(next_at - self.loop.time(), 0.04)
        return min(due_in, self.random.uniform(0.5, 1.0) if self.scene.network.is_troubled else 3.0)


class SimulatedSession(Session):
    """Session of the bridge, on a connection that never makes the loop wait."""

    def __init__(self, topics: QueryTopics, pool: Pool, pass_by: Callable[[], None]) -> None:
        super().__init__(topics)
        self._pool = pool
        self._pass_by = pass_by
        self._own: Asynchronous | None = None

    async def _connect(self) -> Any:
        self._own = Asynchronous(self._pool.take(), self._pool, self._pass_by)
        self._connection: Any = self._own
        self.number += 1
        await self.topics.load(self._connection)
        return self._connection

    def give_back(self) -> None:
        if self._own is not None:
            self._own.give_back()


class SimulatedBridge(Process):
    """Bridge that holds the lock: it reads all nodes live and from their stores until it is killed or stopped."""

    def __init__(self, name: str, scene: Scene) -> None:
        super().__init__(name, scene)
        topics = QueryTopics(self._want)
        self._session = SimulatedSession(topics, scene.pool, self.pass_by)
        self.loop.call_soon(lambda: self.loop.create_task(self._read()))

    def _want(self, content_topics: Sequence[str]) -> None:
        for store in self._stores:
            store.request(content_topics)

    async def _read(self) -> None:
        nodes: Any = self.scene.network.nodes
        intake = Intake(self._session, keep=timedelta(days=3))
        self._stores = [StoreReader(node, PUBSUB_TOPIC, intake) for node in nodes]
        live = [LiveReader(node, PUBSUB_TOPIC, intake, ring_capacity=RING_CAPACITY) for node in nodes]
        term = Term(asyncio.Event())
        async with asyncio.TaskGroup() as group:
            for reader in (*live, *self._stores):
                group.create_task(reader.run(term))

    def bury(self) -> None:
        super().bury()
        self._session.give_back()
