"""One run of the simulation, from its seed: phones register, senders request pushes, everything fails, and the ledger
checks the result.
"""

import hashlib
import os
import random
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import cache
from random import Random
from time import monotonic
from typing import Any, Self

import psycopg
import pytest
from coincurve import PrivateKey
from django.db import OperationalError, connections
from django.test import override_settings
from django.utils import timezone

import kit.http
from kit.db.base import DatabaseWrapper
from kit.db.clock import Clock
from notifications.acceptance import acceptance
from notifications.messages import Push, PushNotification
from registrations import quotas
from registrations.messages import TokenType
from tests.rig.conversation import PUBSUB_TOPIC, query, registration, request
from tests.rig.rows import make_channel, make_watermark
from tests.simulation.agenda import Agenda
from tests.simulation.database import EMPTY, PREPARE, Pool, execute_quietly
from tests.simulation.ledger import Asked, Broken, Hope, Ledger, Phone, make_uuid
from tests.simulation.network import Network, Providers
from tests.simulation.processes import LEASE, Process, Scene, SimulatedBridge, SimulatedWorker
from waku_bridge import bridge as waku
from waku_bridge import query_topics
from waku_bridge.codec import wire
from waku_bridge.codec.keys import Identity
from waku_bridge.codec.wire import message_hash
from waku_bridge.inbox import inbox, processing, steps
from waku_bridge.messages import WakuMessage
from waku_bridge.query_topics import CpuBudget

TROUBLE_SECONDS = 20.0
KEYS_PERIOD_SECONDS = 2.0
# Simulated seconds after the trouble: breakers close within a minute, late retries come within an hour.
PEACE_SECONDS = 4500.0
APP = "im.status.ethereum"


class World:
    """All parts of one run."""

    def __init__(self, seed: int, pool: Pool, monitor: "psycopg.Connection[Any]") -> None:
        self.seed = seed
        self.agenda = Agenda()
        self.random = Random(seed)
        self.network = Network(self.agenda, self.random, self.random.choice([1, 2, 2, 3]))
        self.providers = Providers(self.agenda, self.random)
        self.scene = Scene(self.agenda, self.random, pool, self.network, self.providers)
        self.ledger = Ledger(monitor)
        self.keys = Process("keys", self.scene)
        self.network.listeners.append(self._receive)
        self.phones = [Phone(number, self.random) for number in range(self.random.randint(1, 3))]
        self.workers: list[SimulatedWorker] = []
        self.bridges: list[SimulatedBridge] = []
        self.wanted: list[bytes] = []  # hashes of the messages that clients published
        self.trace = hashlib.sha256()
        self.is_dirty = False
        self.broken: Broken | None = None
        self._names = 0
        self._is_nested = False

    # Processes --------------------------------------------------------------------------------------------------------

    def start_worker(self) -> None:
        self._names += 1
        name = f"worker {self._names}"
        worker = SimulatedWorker(name, self.scene, note=self._push, answered=self.ledger.answered)
        self.workers.append(worker)

    def start_bridge(self) -> None:
        self._names += 1
        self.bridges.append(SimulatedBridge(f"bridge {self._names}", self.scene))

    def _push(self, process: SimulatedWorker, push: Push) -> None:
        process.pass_by()  # the process may die before the push is sent
        with self._remembering_what_breaks():
            self.ledger.push(process, push)
        process.pass_by()  # or after it

    def _receive(self, message: WakuMessage) -> None:
        with self._remembering_what_breaks():
            self.ledger.receive(message)

    @contextmanager
    def _remembering_what_breaks(self) -> Iterator[None]:
        """Check something from outside of all processes. The next step raises a broken invariant, which would here end
        in a task.
        """
        try:
            with self.scene.inside(None):
                yield
        except Broken as broken:
            self.broken = broken

    def statement(self, query: str) -> None:
        """Handle a statement of any process, before it runs."""
        process = self.scene.current
        if process is None:
            return
        self.trace.update(f"{process.name} {SAVEPOINT.sub('', query)}".encode())
        self.is_dirty |= bool(CHANGE.search(query)) and "waku_bridge_store" not in query
        process.pass_by()
        if isinstance(process, SimulatedWorker) and process.is_in_batch and not self._is_nested:
            self._let_another_process(process)

    def commit(self, commit: Callable[[], None]) -> None:
        """Run a commit of any process, which may die before or after it."""
        process = self.scene.current
        if process is not None:
            process.pass_by()
        commit()
        if process is not None:
            process.pass_by()

    def _let_another_process(self, process: Process) -> None:
        """Let another worker process a whole batch in the middle of this one's.

        The rows of that batch are checked before this batch goes on. A later check would see the rows of both batches,
        and a report that was true may not be true any more by then.
        """
        others = [w for w in self.workers if w is not process and w.is_alive and not w.is_in_batch]
        if others and self.network.is_troubled and self.random.random() < 0.01:
            self._is_nested = True
            try:
                self.random.choice(others).process_batch()
            finally:
                self._is_nested = False
            with self._remembering_what_breaks():
                self.ledger.check()

    def _replace_dead(self) -> None:
        for processes, start in ((self.workers, self.start_worker), (self.bridges, self.start_bridge)):
            for process in [each for each in processes if not each.is_alive]:
                process.bury()
                processes.remove(process)
                if start != self.start_bridge or not self.is_read():
                    self.agenda.add(self.random.uniform(0.2, 5.0), start)

    # Clients ----------------------------------------------------------------------------------------------------------

    def publish(self, message: WakuMessage) -> None:
        self.wanted.append(message_hash(PUBSUB_TOPIC, message))
        self.network.spread(message)

    def register(self, phone: Phone, *, unregister: bool = False) -> None:
        phone.register(self.random)
        message = registration(
            phone.identity,
            access_token=phone.access_token,
            now=self._now_and_random(),
            installation_id=phone.installation_id,
            version=phone.version,
            token_type=phone.token_type,
            device_token="" if unregister else phone.device_token,
            app_topic=APP if phone.token_type == TokenType.APN else "",
            unregister=unregister,
        )
        self.publish(message)
        if self.random.random() < 0.2:  # a late copy
            self.agenda.add(self.random.uniform(1, 15), lambda: self.network.spread(message))

    def kill_token(self, phone: Phone) -> None:
        phone.is_steady = False
        self.providers.dead.add(phone.device_token.encode())

    def ask(self, message_id: bytes) -> None:
        chosen = self.random.sample(self.phones, self.random.randint(1, len(self.phones)))
        hopes = [self._hope(phone) for phone in chosen]
        pushes = tuple(map(self._notification, hopes))
        sender = Identity(PrivateKey(self.random.randbytes(32)))
        self.ledger.expect(Asked(sender, message_id, pushes, hopes))

        def send() -> None:
            self.publish(request(*pushes, signer=sender, message_id=message_id, **self._now_and_random()))

        send()
        if self.random.random() < 0.2:  # the sender repeats it: another envelope, the same request
            self.agenda.add(self.random.uniform(0.1, 12), send)

    def _hope(self, phone: Phone) -> Hope:
        is_right = bool(phone.access_token) and self.random.random() < 0.9
        stored = self.ledger.state.get("registrations") or ()
        return Hope(phone, is_right, any(row[1:] == [phone.version, "active", phone.installation_id] for row in stored))

    def _notification(self, hope: Hope) -> PushNotification:
        phone = hope.phone
        token = phone.access_token if hope.is_token_right else make_uuid(self.random)
        names = (phone.identity.key_hash, phone.installation_id, token)
        return PushNotification(*names, 1, b"chat", b"author", self.random.randbytes(20))

    def query(self) -> None:
        key_hash = self.random.choice(self.phones).identity.key_hash
        signer = Identity(PrivateKey(self.random.randbytes(32)))
        self.network.spread(query(key_hash, signer=signer, **self._now_and_random()))

    def _now_and_random(self) -> dict[str, Any]:
        return {"timestamp_ns": self.agenda.now_ns(), "random_bytes": self.random.randbytes}

    # The run ----------------------------------------------------------------------------------------------------------

    def write_script(self) -> None:
        """Put all events from outside onto the agenda."""
        later, random = self.agenda.add, self.random
        for phone in self.phones:
            later(random.uniform(0, 4), lambda p=phone: self.register(p))
            if random.random() < 0.3:
                again, off = random.uniform(6, 16), random.random() < 0.3
                later(again, lambda p=phone, u=off: self.register(p, unregister=u))
            if random.random() < 0.2:
                later(random.uniform(5, 18), lambda p=phone: self.kill_token(p))
        message_ids = [random.randbytes(32) for _ in range(random.randint(3, 9))]
        for message_id in message_ids:
            for _ in range(1 if random.random() < 0.8 else 2):
                later(random.uniform(1, TROUBLE_SECONDS), lambda m=message_id: self.ask(m))
        for _ in range(random.randint(0, 2)):
            later(random.uniform(2, TROUBLE_SECONDS), self.query)
        for _ in range(random.randint(0, 25)):
            later(random.uniform(0, TROUBLE_SECONDS), self.trouble)
        later(TROUBLE_SECONDS, self.heal)

    def trouble(self) -> None:
        """Cause one random fault."""
        worker = self.random.choice(self.workers or [None])
        bridge = self.random.choice(self.bridges or [None])
        match self.random.randrange(8):
            case 0 | 1 if worker:
                worker.killed_after = self.random.randint(1, 30)
            case 2 if worker:
                worker.cut_after = self.random.randint(1, 30)
            case 3 if worker:
                worker.stop()
            case 4 if bridge:
                bridge.killed_after = self.random.randint(1, 10)
            case 5 if bridge:
                bridge.cut_after = self.random.randint(1, 10)
            case 6:
                self.providers.trouble()
            case _:
                self.network.trouble()

    def heal(self) -> None:
        """Let everything work again."""
        self.network.heal()
        self.providers.heal()
        for process in (*self.workers, *self.bridges):
            process.killed_after = process.cut_after = None

    def want_keys(self) -> None:
        self.agenda.add(self.random.uniform(0.05, 1.0), self._derive_keys)

    def _derive_keys_by_the_clock(self) -> None:
        self._derive_keys()
        self.agenda.add(KEYS_PERIOD_SECONDS, self._derive_keys_by_the_clock)

    def _derive_keys(self) -> None:
        """Derive keys, as the worker for keys does."""
        try:
            with self.scene.inside(self.keys):
                inbox.derive_needed_keys(budget=CpuBudget(0, 60), limit=1000)
        except OperationalError:  # a batch holds the rows
            self.keys.connection.close()

    def is_read(self) -> bool:
        """Return whether the inbox has everything that clients published."""
        stored = {name for name, _ in self.ledger.state.get("envelopes") or ()}
        return not self.network.is_troubled and all(each.hex() in stored for each in self.wanted)

    def _remember_the_past(self) -> None:
        """Give the server a past, unless this is a first start.

        A first start reads many old messages, and has no channels that are proven to work.
        """
        if self.random.random() < 0.1:
            # Pushes under way when an app gets queues of its own stay in the shared queue.
            self.ledger.limit_in_flight *= 2
            return
        with self.scene.inside(self.keys):
            for node in self.network.nodes:
                make_watermark(node=node.url, at=self.agenda.now())
            for token_type, topic in ((TokenType.APN, APP), (TokenType.FIREBASE, "")):
                make_channel(token_type=token_type, app_topic=topic, last_success_at=self.agenda.now())

    def run(self) -> None:
        """Run entries of the agenda until everything is at its end. Raises Broken, or any exception of the server."""
        self.write_script()
        self._remember_the_past()
        self._derive_keys_by_the_clock()
        for _ in range(2):
            self.start_worker()
        self.start_bridge()
        while self.unfinished():
            if self.agenda.seconds > PEACE_SECONDS:
                raise Broken(f"not at an end: {self.unfinished()[:5]}")
            self._step()
        self.ledger.check_end()

    def unfinished(self) -> list[str]:
        return ["trouble"] if self.network.is_troubled else self.ledger.unfinished(self.wanted)

    def _step(self) -> None:
        found = self.agenda.next()
        assert found is not None  # a worker always plans its next batch
        owner, call = found
        with self.scene.inside(owner if isinstance(owner, Process) else None):
            call()
        self._replace_dead()
        if self.is_dirty:
            self.is_dirty = False
            self.ledger.check()
        if self.broken is not None:
            raise self.broken
        for process in (*self.workers, *self.bridges):
            if process.loop.faults:
                raise Broken(f"{process.name}: {process.loop.faults[0]}")

    def close(self) -> None:
        for process in (*self.workers, *self.bridges, self.keys):
            process.bury()
        self.network.close()


class Simulation:
    """Resources that all runs of one process share: the connections, and the patches of clocks and randomness."""

    def __init__(self) -> None:
        self._undo = ExitStack()
        self._world: World | None = None
        self._random = Random()

    @property
    def world(self) -> World:
        assert self._world is not None
        return self._world

    def __enter__(self) -> Self:
        with connections["default"].cursor() as cursor:
            cursor.execute(PREPARE)
        self._pool = Pool()
        self._monitor = psycopg.connect(**self._pool.parameters, autocommit=True)
        patch = self._undo.enter_context(pytest.MonkeyPatch.context())
        self._undo.enter_context(override_settings(CACHES=CACHES, DELIVERY_LEASE_SECONDS=LEASE.total_seconds()))
        self._move_into_the_world(patch)
        patch.setattr(wire, "symmetric_key", cache(wire.symmetric_key))
        patch.setattr(query_topics, "TopicSet", FewTopics)
        self._watch_database(patch)
        return self

    def __exit__(self, *error: object) -> None:
        self._undo.close()
        self._monitor.close()
        self._pool.close()

    def _current(self) -> Process:
        process = self.world.scene.current
        assert process is not None
        return process

    def _move_into_the_world(self, patch: pytest.MonkeyPatch) -> None:
        """Give the server the time, the random numbers and the objects of one process from the world of this run."""
        for name, module in list(sys.modules.items()):
            if name.startswith(OURS) and getattr(module, "monotonic", None) is monotonic:
                patch.setattr(module, "monotonic", self._monotonic)
        patch.setattr(timezone, "now", self._now)
        # the server sets it from the database's time, which is simulated
        patch.setattr(Clock, "set", lambda _clock, reported: reported)
        patch.setattr(os, "urandom", self._random_bytes)
        patch.setattr(kit.http, "_loop", lambda: self._current().loop)
        patch.setattr(waku, "want_keys", self._want_keys)
        patch.setattr(acceptance, "own_admission", lambda: self._current().admission)
        for module in (acceptance, quotas, processing, steps):
            patch.setattr(module, "own_buckets", lambda: self._current().buckets)
        patch.setattr(processing, "query_limits", lambda: self._current().query_limits)

    def _monotonic(self) -> float:
        return self.world.agenda.monotonic()

    def _now(self) -> datetime:
        return self.world.agenda.now()

    def _random_bytes(self, size: int) -> bytes:
        return self._random.randbytes(size)

    def _want_keys(self) -> None:
        self.world.want_keys()

    def _watch_database(self, patch: pytest.MonkeyPatch) -> None:
        execute, commit = psycopg.Cursor.execute, DatabaseWrapper._commit

        def executed(cursor: Any, query: Any, *args: Any, **options: Any) -> Any:
            if self._world is not None and self._world.scene.current is not None:
                text = query.decode() if isinstance(query, bytes) else str(query)
                self.world.statement(text)
            return execute(cursor, query, *args, **options)

        def committed(connection: Any) -> None:
            if self._world is None:
                commit(connection)
            else:
                with connection.wrap_database_errors:  # as Django does for the statements
                    self.world.commit(lambda: commit(connection))

        patch.setattr(psycopg.Cursor, "execute", executed)
        patch.setattr(DatabaseWrapper, "_commit", committed)

    def run(self, seed: int) -> World:
        """Run one seed, and return its world at the end."""
        execute_quietly(self._monitor, EMPTY)
        random.seed(seed)
        self._random = Random(seed + 1)
        with override_settings(MAX_OPEN_PER_ROUTE=self._random.choice([2, 3, 50, 50])):
            self._world = world = World(seed, self._pool, self._monitor)
            try:
                world.run()
            finally:
                self._world = None
                world.close()
        return world


class FewTopics(set[int]):
    """Set of topics that is made in no time. The production one for a million topics takes a tenth of a second."""

    def fill(self, upper: int, lower: bytes) -> None:
        self.update(upper << 16 | int.from_bytes(lower[at : at + 2]) for at in range(0, len(lower), 2))

    def add(self, topic: int) -> bool:
        is_new = topic not in self
        super().add(topic)
        return is_new


SAVEPOINT = re.compile(r'"s\d+_x\d+"')  # named after a thread
CHANGE = re.compile(r"\b(INSERT INTO|DELETE FROM|UPDATE (?=[a-z\"]))")
OURS = ("kit.", "notifications.", "registrations.", "waku_bridge.")
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
