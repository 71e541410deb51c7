"""A development node in this process, and readers that write its messages into a real database."""

import asyncio
import inspect
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta

import pytest
from aiohttp.test_utils import TestServer
from django.db import connection

from embedded.node.node import NODE, Settings
from embedded.node.server import create_app
from kit.http import Connections
from kit.processes.leader import Term
from tests.rig.conversation import CLIENT, PUBSUB_TOPIC
from waku_bridge.codec import wire
from waku_bridge.codec.wire import message_hash
from waku_bridge.management.commands.run_waku_bridge import MAX_PAGE_BYTES
from waku_bridge.messages import WakuMessage
from waku_bridge.models import InboundEnvelope
from waku_bridge.node import WakuNode
from waku_bridge.query_topics import QueryTopics, server_identity
from waku_bridge.reading.intake import Intake, Session, in_thread
from waku_bridge.reading.live import LiveReader
from waku_bridge.reading.stores import FAST, StoreReader

PERSONAL = wire.content_topic(wire.personal_name(server_identity().pub33))
QUERIED = wire.content_topic(wire.query_name(CLIENT.key_hash))
FOREIGN = "/waku/1/0xffffffff/rfc26"
RING_CAPACITY = 50


class World:
    """One node and the parts of a bridge."""

    def __init__(self, server, client):
        self.url = f"http://127.0.0.1:{server.port}"
        self.devnode = server.app[NODE]
        self.client = client
        self.node = Watched(self.url, client)
        self.query_topics = QueryTopics()
        self.session = Session(self.query_topics)
        self.new = []
        self.intake = Remembering(self.session, self.new, keep=timedelta(days=3))
        self.stopped = asyncio.Event()
        self.term = Term(self.stopped)

    def live(self, node=None, **changes):
        return LiveReader(node or self.node, PUBSUB_TOPIC, self.intake, **{"ring_capacity": RING_CAPACITY} | changes)

    def store(self, node=None):
        return StoreReader(node or self.node, PUBSUB_TOPIC, self.intake)

    async def read(self, live=None, times=1):
        """Read the relay cache, by default with a new reader, and return the pauses."""
        live = live or self.live()
        return [await live._read_once(self.term) for _ in range(times)]

    async def walk(self, store=None, tier=FAST):
        """Read what is due in a tier, by default with a new reader of the store, and return the pause after it."""
        store = store or self.store()
        async with asyncio.timeout(20):  # no endless loop
            while not (pause := await self.step(store, tier)):
                pass
        return pause

    async def step(self, store, tier):
        """Read one window of a tier, and return the pause after it."""
        return await store._attempt(store._read_next(tier, self.term))

    def publish(self, *messages):
        """Publish messages to relay and store, and return their hashes."""
        for message in messages:
            self.devnode.publish(PUBSUB_TOPIC, message)
        return [message_hash(PUBSUB_TOPIC, message) for message in messages]

    def archive(self, *messages):
        """Put messages into the store only, whatever their timestamps, as store-sync does, and return their hashes."""
        hashes = [message_hash(PUBSUB_TOPIC, message) for message in messages]
        for digest, message in zip(hashes, messages, strict=True):
            self.devnode.archive.insert(digest, PUBSUB_TOPIC, message)
        return hashes

    def break_node(self, **faults):
        self.devnode.faults.update(faults)

    async def paths(self):
        """Return the path that brought each envelope."""
        return await in_thread(
            lambda: {bytes(row[0]): row[1] for row in InboundEnvelope.objects.values_list("hash", "path")}
        )

    async def holds(self, *hashes, seconds=60):
        """Wait until the inbox has these messages."""
        await until(lambda: self._holds(set(hashes)), f"{len(hashes)} messages in the inbox", seconds)

    async def _holds(self, hashes):
        return hashes <= set(await self.paths())


async def until(is_so, what, seconds=60):
    try:
        async with asyncio.timeout(seconds):
            while not await is_so():  # noqa: ASYNC110 - the database has no events
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(f"not within {seconds} s: {what}")


class Remembering(Intake):
    """An intake that notes the hashes of new envelopes, in order of arrival."""

    def __init__(self, session, new, *, keep):
        super().__init__(session, keep=keep)
        self._new = new

    async def take(self, page):
        await super().take(page)
        self._new.extend(page.new)


class Watched(WakuNode):
    """A node that remembers the queries to its store. ``change`` changes the pages that it returns."""

    def __init__(self, url, client):
        super().__init__(url, client)
        self.asked = []
        self.change = None

    async def store_page(self, **params):
        self.asked.append(params)
        page = await super().store_page(**params)
        return await self.change(page, params) if self.change else page


def message(content_topic=PERSONAL, *, seconds_ago=0.0, payload=None):
    sent_ns = time.time_ns() - int(seconds_ago * 10**9)
    return WakuMessage(payload or os.urandom(20), content_topic, sent_ns)


def messages(count, content_topic=PERSONAL, *, seconds_ago=0.0):
    """Return messages that are a microsecond apart, oldest first."""
    first = message(content_topic, seconds_ago=seconds_ago)
    return [
        replace(first, payload=os.urandom(20), timestamp_ns=first.timestamp_ns + 1000 * number)
        for number in range(count)
    ]


def close_connection():
    """Close the database connection of the thread that calls it."""
    connection.close()


@pytest.fixture
def runner():
    """Return the event loop in which `async def` tests run. It has one thread, for one connection to the database."""
    with asyncio.Runner() as runner:
        runner.get_loop().set_default_executor(ThreadPoolExecutor(1))
        yield runner


@pytest.fixture
def world(transactional_db, runner):
    stack = AsyncExitStack()

    async def begin():
        server = await stack.enter_async_context(TestServer(create_app(Settings(shards=(PUBSUB_TOPIC,)))))
        client = await stack.enter_async_context(Connections(silent_seconds=5, max_answer_bytes=MAX_PAGE_BYTES))
        stack.push_async_callback(asyncio.to_thread, close_connection)
        world = World(server, client)
        stack.push_async_callback(world.session.close)
        return world

    yield runner.run(begin())
    runner.run(stack.aclose())


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test that is a coroutine in the loop of its world."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    pyfuncitem.funcargs["runner"].run(pyfuncitem.obj(**arguments))
    return True
