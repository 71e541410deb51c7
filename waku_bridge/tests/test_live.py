"""The live path: what of a page is ours, and what happens to it when something is away."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest
from django.db import InterfaceError, OperationalError, connection
from structlog.testing import capture_logs

from tests.conversation import CLIENT, PUBSUB_TOPIC
from waku_bridge.codec import topics
from waku_bridge.codec.waku_message import message_hash
from waku_bridge.identity import own_content_topics, server_identity
from waku_bridge.live import BUSY_PERIOD_SECONDS, IDLE_PERIOD_SECONDS, LiveReader, select
from waku_bridge.messages import WakuMessage
from waku_bridge.models import InboundEnvelope
from waku_bridge.node import NodeError, NotSubscribed, to_json
from waku_bridge.query_topics import QueryTopics, listen_to

PERSONAL = topics.content_topic(topics.personal_name(server_identity().pub33))
PARTITIONED = topics.content_topic(topics.partitioned_name(server_identity().pub33))
QUERIED = topics.content_topic(topics.query_name(CLIENT.key_hash))
FOREIGN = "/waku/1/0xffffffff/rfc26"
MESSAGE = WakuMessage(b"payload", PERSONAL, 1_700_000_000_000_000_000)
TOPICS = {QUERIED}  # anything that contains; QueryTopics has a test of its own


def selected(*page, known=TOPICS):
    return [envelope.message for envelope in select(page, PUBSUB_TOPIC, known)]


def raw(**fields):
    return to_json(replace(MESSAGE, **fields))


def test_listens_to_two_topics_of_its_own():
    assert own_content_topics() == {PERSONAL, PARTITIONED}


@pytest.mark.parametrize("content_topic", [PERSONAL, PARTITIONED, QUERIED])
def test_takes_what_is_on_a_topic_of_ours_with_its_hash(content_topic):
    message = replace(MESSAGE, content_topic=content_topic)
    [envelope] = select([to_json(message)], PUBSUB_TOPIC, TOPICS)
    assert (envelope.message, envelope.hash) == (message, message_hash(PUBSUB_TOPIC, message))


def test_does_not_decode_what_is_on_other_topics():
    with capture_logs() as logs:
        assert selected({"contentTopic": FOREIGN, "payload": "no base64"}, raw(content_topic=FOREIGN)) == []
    assert logs == []


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (None, "malformed"),
        ("text", "malformed"),
        ({}, "malformed"),
        ({"contentTopic": 5}, "malformed"),
        (raw() | {"payload": "no base64"}, "malformed"),
        (raw() | {"timestamp": 2**64}, "malformed"),
        (raw(version=0), "wrong_version"),
        (raw(version=2), "wrong_version"),
        (raw(payload=b""), "wrong_size"),
        (raw(payload=bytes(1024 * 1024 + 1)), "wrong_size"),
    ],
)
def test_a_broken_message_is_counted_and_does_not_stop_its_neighbours(broken, reason):
    with capture_logs() as logs:
        assert selected(raw(timestamp_ns=1), broken, raw(timestamp_ns=2)) == [
            replace(MESSAGE, timestamp_ns=1),
            replace(MESSAGE, timestamp_ns=2),
        ]
    [entry] = logs
    assert entry[reason] == 1


# The reader -----------------------------------------------------------------------------------------------------------


def close_connection():
    """That of the thread it runs in."""
    connection.close()


class Node:
    """A node that answers reads with these, in turn."""

    url = "http://node"

    def __init__(self, *answers):
        self.answers = list(answers)
        self.subscribed = []

    async def read(self, _pubsub_topic):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def subscribe(self, pubsub_topic):
        self.subscribed.append(pubsub_topic)


class FailingTopics(QueryTopics):
    """Its database is away as often as there are errors."""

    def __init__(self, *errors):
        super().__init__()
        self.errors = list(errors)

    def refresh(self):
        if self.errors:
            raise self.errors.pop(0)
        super().refresh()


@pytest.fixture
def run():
    """Let a reader read once for every answer; returns its pauses and what it enqueued."""
    opened = []

    def read_all(node, query_topics=None):
        query_topics = query_topics or QueryTopics()
        opened.append(query_topics)
        enqueued = []
        reader = LiveReader(node, PUBSUB_TOPIC, query_topics, enqueued.extend)

        async def main():
            # One thread, so that its connection can be closed.
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
            try:
                return [await reader._read_once() for _ in range(len(node.answers))]
            finally:
                await asyncio.to_thread(close_connection)

        return asyncio.run(main()), enqueued

    yield read_all
    for query_topics in opened:
        query_topics.close()


@pytest.mark.django_db(transaction=True)
def test_stores_a_page_and_enqueues_what_is_new(run):
    pauses, enqueued = run(Node([raw()], [raw()], []))
    assert pauses == [BUSY_PERIOD_SECONDS, BUSY_PERIOD_SECONDS, IDLE_PERIOD_SECONDS]
    assert enqueued == [bytes(InboundEnvelope.objects.get().hash)]


@pytest.mark.django_db(transaction=True)
def test_takes_a_query_for_somebody_who_registered_before_the_page_was_fetched(run):
    listen_to([CLIENT.key_hash], now="2026-01-01T00:00:00Z")
    _, enqueued = run(Node([raw(content_topic=QUERIED), raw(content_topic=FOREIGN)]))
    assert len(enqueued) == 1


@pytest.mark.django_db(transaction=True)
def test_a_page_survives_an_outage_of_the_database(run):
    errors = [psycopg.OperationalError(), OperationalError(), InterfaceError()]
    _, enqueued = run(Node([raw()]), FailingTopics(*errors))
    assert len(enqueued) == 1


@pytest.mark.django_db(transaction=True)
def test_reading_goes_on_while_redis_is_away(run, settings):
    settings.CACHES = {"default": settings.CACHES["default"] | {"LOCATION": "redis://127.0.0.1:1/0"}}
    _, enqueued = run(Node([raw()]))
    assert len(enqueued) == 1


def test_subscribes_when_the_node_forgot_the_shard_without_spinning(run):
    node = Node(NotSubscribed("http://node"))
    pauses, _ = run(node)
    assert node.subscribed == [PUBSUB_TOPIC]
    assert pauses == [BUSY_PERIOD_SECONDS]


def test_waits_longer_for_a_node_that_stays_away_and_says_so_once(run):
    with capture_logs() as logs:
        pauses, _ = run(Node(*[NodeError("away")] * 12))
    assert 0.1 < pauses[0] < 1
    assert 5 <= pauses[-1] <= 10
    assert [entry["event"] for entry in logs] == ["node_lost"]
