"""The outbox: replies are published, by another node where one fails, tried again and given up."""

import time
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from django.db import connection
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from notifications.connections import new_client, submit
from tests.factories import make_reply
from waku_bridge.codec.waku_message import message_hash
from waku_bridge.models import OutboundReply
from waku_bridge.node import MessageTooLarge, NodeError, NoPeers, WakuNode
from waku_bridge.outbound import Nodes, confirm, hand_out_left_behind
from waku_bridge.outbound import publish as publish_by

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PATIENCE = timedelta(seconds=30)
State = OutboundReply.State


class Node:
    """Takes every message, or none."""

    def __init__(self, url="http://node", *, error=None):
        self.url, self.name, self.error = url, url.removeprefix("http://"), error
        self.published, self.asked = [], 0

    async def publish(self, pubsub_topic, message):
        self.asked += 1
        if self.error:
            raise self.error
        self.published.append((pubsub_topic, message))
        return "lightpush"


def deaf(url="http://deaf"):
    return Node(url, error=NodeError("no"))


def publish(reply_ids, nodes, *, now):
    publish_by(reply_ids, Nodes(nodes), now=now)


def fresh(reply):
    return OutboundReply.objects.get(pk=reply.pk)


@pytest.mark.django_db
def test_publishes_what_was_recorded_and_keeps_it_until_it_is_confirmed():
    reply, node = make_reply(at=NOW), Node()
    publish([reply.pk], [node], now=NOW)
    [(pubsub_topic, message)] = node.published
    assert (pubsub_topic, message.content_topic) == (reply.pubsub_topic, reply.content_topic)
    assert (message.payload, message.timestamp_ns) == (reply.payload, reply.timestamp_ns)
    assert (message.ephemeral, message.version) == (False, 1)
    row = fresh(reply)
    assert (row.state, row.payload, row.node) == (State.PUBLISHED, reply.payload, "http://node")
    assert row.message_hash == message_hash(pubsub_topic, message)
    assert timedelta(0) <= row.published_at - NOW < row.next_attempt_at - NOW


@pytest.mark.django_db
def test_neither_log_nor_metric_holds_what_is_secret_in_the_url_of_a_node():
    """Settings refuse a URL with a password. A path may be one, too."""
    reply, client = make_reply(at=NOW), new_client(timeout_seconds=1)
    node = WakuNode("http://ann:5ecret@127.0.0.1:1/5ecret", client)
    with capture_logs() as logs:
        publish([reply.pk], [node], now=NOW)
        OutboundReply.objects.update(state=State.PUBLISHED, message_hash=b"h" * 32, published_at=NOW)
        confirm(Nodes([node]), now=NOW + timedelta(seconds=20))
    submit(client.aclose()).result()
    assert [(entry["event"], entry.get("node", "")) for entry in logs] == [
        ("node_refused_replies", "127.0.0.1:1"),
        ("replies_not_published", ""),
        ("store_not_asked", "127.0.0.1:1"),
    ]
    metrics = generate_latest().decode()
    assert 'node="127.0.0.1:1"' in metrics
    assert "5ecret" not in f"{logs}{metrics}"


@pytest.mark.django_db
def test_publishing_again_does_nothing():
    reply, node = make_reply(at=NOW), Node()
    publish([reply.pk], [node], now=NOW)
    publish([reply.pk], [node], now=NOW + timedelta(hours=1))
    assert len(node.published) == 1


@pytest.mark.django_db
def test_goes_to_the_first_node_that_takes_it():
    reply, other, spare = make_reply(at=NOW), Node("http://other"), Node()
    publish([reply.pk], [deaf(), other, spare], now=NOW)
    assert (len(other.published), len(spare.published), fresh(reply).node) == (1, 0, "http://other")


@pytest.mark.django_db
@pytest.mark.parametrize("nodes", [[], [deaf()]], ids=["no node", "a node that refuses"])
def test_what_no_node_takes_stays_and_is_handed_out_later(nodes):
    reply = make_reply(at=NOW)
    publish([reply.pk], nodes, now=NOW)
    assert (fresh(reply).state, fresh(reply).attempt_count, fresh(reply).payload) == (State.PENDING, 1, reply.payload)
    soon, later = NOW + timedelta(seconds=9), NOW + timedelta(seconds=10)
    assert hand_out_left_behind(now=soon, limit=10, patience=PATIENCE) == []
    assert hand_out_left_behind(now=later, limit=10, patience=PATIENCE) == [reply.pk]
    assert hand_out_left_behind(now=later, limit=10, patience=PATIENCE) == []
    publish([reply.pk], [Node()], now=later)
    assert fresh(reply).state == State.PUBLISHED


@pytest.mark.django_db
def test_asks_a_node_that_failed_a_moment_ago_last():
    first, second = deaf("http://first"), Node("http://second")
    nodes = Nodes([first, second])
    for _ in range(3):
        publish_by([make_reply(at=NOW).pk], nodes, now=NOW)
    assert (first.asked, len(second.published)) == (1, 3)
    second.error = NodeError("no")
    publish_by([make_reply(at=NOW).pk], nodes, now=NOW)
    assert first.asked == 2


@pytest.mark.django_db
def test_one_message_that_is_too_large_costs_no_node_its_place():
    first, second = Node("http://first", error=MessageTooLarge("no", 100)), Node("http://second")
    nodes = Nodes([first, second])
    publish_by([make_reply(at=NOW).pk], nodes, now=NOW)
    first.error = None
    publish_by([make_reply(at=NOW).pk], nodes, now=NOW)
    assert (len(first.published), len(second.published)) == (1, 1)


@pytest.mark.django_db
def test_a_node_that_reaches_nobody_with_what_all_have_seen_keeps_its_place():
    first, second = Node("http://first", error=NoPeers("no")), Node("http://second")
    nodes = Nodes([first, second])
    publish_by([make_reply(at=NOW, attempt_count=1).pk], nodes, now=NOW)
    publish_by([make_reply(at=NOW).pk], nodes, now=NOW)
    publish_by([make_reply(at=NOW).pk], nodes, now=NOW)
    assert (first.asked, len(second.published)) == (2, 3)


@pytest.mark.django_db
def test_waits_longer_after_each_time_that_nobody_takes_it():
    reply, at, waits = make_reply(at=NOW), NOW, []
    for _ in range(8):
        publish([reply.pk], [deaf()], now=at)
        waits.append((fresh(reply).next_attempt_at - at).total_seconds())
        at = fresh(reply).next_attempt_at
    assert waits == [10, 20, 30, 40, 50, 60, 60, 60]


@pytest.mark.django_db
def test_what_is_published_again_goes_to_another_node_first():
    """Gossip has shown it to the first one, which drops what it has seen."""
    reply = make_reply(at=NOW, node="http://first", published_at=NOW)
    first, second = Node("http://first"), Node("http://second")
    publish([reply.pk], [first, second], now=NOW)
    assert (len(first.published), len(second.published), fresh(reply).node) == (0, 1, "http://second")


@pytest.mark.django_db
def test_what_was_published_and_is_refused_now_is_left_to_the_stores():
    """Perhaps everybody has seen it: that is no reason to make a new message of it."""
    reply = make_reply(at=NOW, node="http://node", published_at=NOW, message_hash=b"h" * 32)
    publish([reply.pk], [deaf()], now=NOW)
    row = fresh(reply)
    assert (row.state, row.payload, row.timestamp_ns) == (State.PUBLISHED, reply.payload, reply.timestamp_ns)
    assert row.next_attempt_at < NOW + timedelta(seconds=10)


@pytest.mark.django_db(transaction=True)
def test_a_worker_that_was_overtaken_changes_nothing():
    """Its node hung so long that another worker published the reply, and a store knew it."""
    reply = make_reply(at=NOW)

    class Slow(Node):
        async def publish(self, pubsub_topic, message):
            with psycopg.connect(**connection.get_connection_params(), autocommit=True) as database:
                database.execute("UPDATE waku_bridge_outboundreply SET state = 'confirmed', payload = NULL")
            return await super().publish(pubsub_topic, message)

    publish([reply.pk], [Slow()], now=NOW)
    assert (fresh(reply).state, fresh(reply).payload) == (State.CONFIRMED, None)


@pytest.mark.django_db
def test_a_new_reply_does_not_wait_for_a_clock_that_is_behind():
    reply, node = make_reply(at=NOW + timedelta(seconds=1)), Node()
    publish([reply.pk], [node], now=NOW)
    assert len(node.published) == 1


@pytest.mark.django_db
def test_a_reply_just_tried_is_not_tried_by_another_worker_at_the_same_moment():
    reply, node = make_reply(at=NOW), Node()
    publish([reply.pk], [deaf()], now=NOW)
    publish([reply.pk], [node], now=NOW + timedelta(seconds=1))
    assert node.published == []


@pytest.mark.django_db
@pytest.mark.parametrize(("age_seconds", "is_fresh"), [(10, True), (20, False)])
def test_store_nodes_get_a_timestamp_that_they_accept(age_seconds, is_fresh):
    stamped_ns = time.time_ns() - age_seconds * 10**9
    reply, node = make_reply(at=NOW, timestamp_ns=stamped_ns), Node()
    publish([reply.pk], [node], now=NOW)
    [(_, message)] = node.published
    assert (message.timestamp_ns == stamped_ns) == is_fresh
    assert fresh(reply).timestamp_ns == message.timestamp_ns
    assert time.time_ns() - message.timestamp_ns < 15 * 10**9


@pytest.mark.django_db
def test_a_reply_whose_queue_entry_was_lost_is_handed_out():
    reply = make_reply(at=NOW)
    assert hand_out_left_behind(now=NOW + timedelta(seconds=29), limit=10, patience=PATIENCE) == []
    assert hand_out_left_behind(now=NOW + PATIENCE, limit=10, patience=PATIENCE) == [reply.pk]


@pytest.mark.django_db
def test_gives_up_after_an_hour_and_drops_the_payload():
    old, young = make_reply(at=NOW), make_reply(at=NOW + timedelta(minutes=1))
    assert hand_out_left_behind(now=NOW + timedelta(hours=1), limit=10, patience=PATIENCE) == [young.pk]
    assert (fresh(old).state, fresh(old).payload) == (State.ABANDONED, None)
    publish([old.pk], [node := Node()], now=NOW + timedelta(hours=1))
    assert node.published == []


@pytest.mark.django_db
def test_publishes_a_batch_with_as_many_statements_as_one_reply(django_assert_max_num_queries):
    replies = [make_reply(at=NOW) for _ in range(64)]
    with django_assert_max_num_queries(2):
        publish([reply.pk for reply in replies], [Node()], now=NOW)
    assert not OutboundReply.objects.filter(state=State.PENDING).exists()


@pytest.mark.django_db
def test_what_was_published_once_and_cannot_be_again_is_unconfirmed_and_not_abandoned():
    reply = make_reply(at=NOW, node="http://node", published_at=NOW, attempt_count=1)
    assert hand_out_left_behind(now=NOW + timedelta(hours=1), limit=10, patience=PATIENCE) == []
    assert (fresh(reply).state, fresh(reply).payload) == (State.UNCONFIRMED, None)
