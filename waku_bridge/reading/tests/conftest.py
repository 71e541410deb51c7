"""A development node in this process, and readers that read it into a real database."""

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from aiohttp.test_utils import TestServer
from django.db import connection

from notifications.connections import new_client
from tests.conversation import CLIENT, PUBSUB_TOPIC
from waku_bridge.codec import topics
from waku_bridge.codec.waku_message import message_hash
from waku_bridge.devnode.node import NODE
from waku_bridge.devnode.server import create_app
from waku_bridge.devnode.settings import Settings
from waku_bridge.identity import server_identity
from waku_bridge.management.commands.run_waku_bridge import MAX_PAGE_BYTES
from waku_bridge.messages import WakuMessage
from waku_bridge.models import InboundEnvelope
from waku_bridge.node import WakuNode
from waku_bridge.query_topics import QueryTopics
from waku_bridge.reading.intake import Intake
from waku_bridge.reading.leases import Term
from waku_bridge.reading.live import LiveReader
from waku_bridge.reading.threads import in_thread
from waku_bridge.reading.walker import StoreWalker

PERSONAL = topics.content_topic(topics.personal_name(server_identity().pub33))
QUERIED = topics.content_topic(topics.query_name(CLIENT.key_hash))
FOREIGN = "/waku/1/0xffffffff/rfc26"
RING_CAPACITY = 50
RECOVERY = timedelta(hours=48)


class World:
    """One node, and what a bridge would hold. Threads are one, so that its database connection can be closed."""

    def __init__(self, server, client):
        self.url = f"http://127.0.0.1:{server.port}"
        self.devnode = server.app[NODE]
        self.client = client
        self.node = Watched(self.url, client)
        self.query_topics = QueryTopics()
        self.enqueued = []
        self.intake = Intake(self.query_topics, self.enqueued.extend, keep=timedelta(days=3))
        self.stopped = asyncio.Event()
        self.term = Term(self.stopped)

    def live(self, node=None, **changes):
        options = {"store_nodes": [self.url], "ring_capacity": RING_CAPACITY} | changes
        return LiveReader(node or self.node, PUBSUB_TOPIC, self.intake, **options)

    def walker(self, node=None, **changes):
        options = {"period_seconds": 0.05, "recovery": RECOVERY} | changes
        return StoreWalker(node or self.node, PUBSUB_TOPIC, self.intake, **options)

    def publish(self, *messages):
        """To relay and store alike; returns the hashes."""
        for message in messages:
            self.devnode.publish(PUBSUB_TOPIC, message)
        return [message_hash(PUBSUB_TOPIC, message) for message in messages]

    def archive(self, *messages):
        """Into the store only, whatever their timestamp: as store-sync does it, or as what nobody heard."""
        hashes = [message_hash(PUBSUB_TOPIC, message) for message in messages]
        for digest, message in zip(hashes, messages, strict=True):
            self.devnode.archive.insert(digest, PUBSUB_TOPIC, message)
        return hashes

    def break_node(self, **faults):
        self.devnode.faults.update(faults)

    async def paths(self):
        """Which path brought each envelope."""
        return await in_thread(
            lambda: {bytes(row[0]): row[1] for row in InboundEnvelope.objects.values_list("hash", "path")}
        )


class Watched(WakuNode):
    """A node that remembers what its store was asked."""

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
    """A microsecond apart, oldest first."""
    first = message(content_topic, seconds_ago=seconds_ago)
    return [
        replace(first, payload=os.urandom(20), timestamp_ns=first.timestamp_ns + 1000 * number)
        for number in range(count)
    ]


def close_connection():
    """That of the thread it runs in."""
    connection.close()


@pytest.fixture
def run(transactional_db):
    """Run a scenario: `run(scenario)` with `async def scenario(world)`. Names after it go into the node's settings."""

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
                    await asyncio.to_thread(world.query_topics.close)
                    await asyncio.to_thread(close_connection)

        return asyncio.run(main())

    return run_scenario
