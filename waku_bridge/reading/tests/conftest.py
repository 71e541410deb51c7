"""A development node in this process, and readers that write its messages into a real database."""

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest
from aiohttp.test_utils import TestServer
from django.db import connection

from embedded.node.node import NODE, Settings
from embedded.node.server import create_app
from kit.batches.batch import CHANNEL
from kit.http.connections import new_client
from kit.processes.leader import Term
from tests.rig.conversation import CLIENT, PUBSUB_TOPIC
from waku_bridge.codec import topics
from waku_bridge.codec.topics import message_hash
from waku_bridge.identity import server_identity
from waku_bridge.messages import WakuMessage
from waku_bridge.models import InboundEnvelope
from waku_bridge.node import WakuNode
from waku_bridge.query_topics import QueryTopics
from waku_bridge.reading.bridge import MAX_PAGE_BYTES
from waku_bridge.reading.intake import Intake, Session
from waku_bridge.reading.live import LiveReader
from waku_bridge.reading.store.walker import StoreWalker
from waku_bridge.reading.threads import in_thread

PERSONAL = topics.content_topic(topics.personal_name(server_identity().pub33))
QUERIED = topics.content_topic(topics.query_name(CLIENT.key_hash))
FOREIGN = "/waku/1/0xffffffff/rfc26"
RING_CAPACITY = 50
RECOVERY = timedelta(hours=48)


class World:
    """One node and the parts of a bridge. There is one thread, so that its database connection can be closed."""

    def __init__(self, server, client):
        self.url = f"http://127.0.0.1:{server.port}"
        self.devnode = server.app[NODE]
        self.client = client
        self.node = Watched(self.url, client)
        self.query_topics = QueryTopics()
        self.session = Session(self.query_topics)
        self.new = []
        self.suspected = []
        self.intake = Remembering(self.session, self.new, keep=timedelta(days=3))
        self.stopped = asyncio.Event()
        self.term = Term(self.stopped)

    def live(self, node=None, **changes):
        options = {"suspect": self.suspected.append, "ring_capacity": RING_CAPACITY} | changes
        return LiveReader(node or self.node, PUBSUB_TOPIC, self.intake, **options)

    def walker(self, node=None, **changes):
        options = {"period_seconds": 0.05, "recovery": RECOVERY} | changes
        return StoreWalker(node or self.node, PUBSUB_TOPIC, self.intake, **options)

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


class Remembering(Intake):
    """An intake that notes the hashes of new envelopes, in order of arrival."""

    def __init__(self, session, new, *, keep):
        super().__init__(session, keep=keep)
        self._new = new

    async def take(self, *args, **options):
        taken = await super().take(*args, **options)
        self._new.extend(taken.new)
        return taken


class Watched(WakuNode):
    """A node that remembers the queries to its store."""

    def __init__(self, url, client):
        super().__init__(url, client)
        self.asked = []

    async def store_page(self, **params):
        self.asked.append(params)
        return await super().store_page(**params)


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


def parameters():
    """Return the parameters of a further connection to the database of the test."""
    return {
        name: value
        for name, value in connection.get_connection_params().items()
        if name in {"dbname", "host", "user", "password", "port"}
    }


@asynccontextmanager
async def listening():
    """Collect the announcements that workers receive, each with the backend that sent it."""
    announcements = []
    async with await psycopg.AsyncConnection.connect(**parameters(), autocommit=True) as session:
        await session.execute(f"LISTEN {CHANNEL}")
        ended = asyncio.Event()
        receiving = asyncio.create_task(_receive(session, announcements, ended))
        try:
            yield announcements
        finally:
            ended.set()
            await receiving


async def _receive(session, announcements, ended):
    """Receive for short periods, because psycopg may not notice that it is cancelled."""
    while not ended.is_set():
        async for notice in session.notifies(timeout=0.1):
            announcements.append(notice)


def close_connection():
    """Close the database connection of the thread that calls it."""
    connection.close()


@pytest.fixture
def run(transactional_db):
    """Return a function that runs `async def scenario(world)`: `run(scenario)`. Keywords go to the node's settings."""

    def run_scenario(scenario, **settings):
        async def main():
            pool = ThreadPoolExecutor(1)
            asyncio.get_running_loop().set_default_executor(pool)
            app = create_app(Settings(shards=(PUBSUB_TOPIC,), **settings))
            async with (
                TestServer(app) as server,
                new_client(timeout_seconds=5, max_answer_bytes=MAX_PAGE_BYTES) as client,
            ):
                world = World(server, client)
                try:
                    return await scenario(world)
                finally:
                    await world.session.close()
                    await asyncio.to_thread(close_connection)

        return asyncio.run(main())

    return run_scenario
