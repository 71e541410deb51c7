"""The outbox: replies are kept, split, published, tried again and given up."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from django.db import IntegrityError, transaction

from registrations.messages import QueryInfo
from tests.conversation import CLIENT, EPHEMERAL, replies_to
from tests.factories import make_envelope, make_reply
from waku_bridge.codec import topics
from waku_bridge.codec.envelope import Reply as ReplyBody
from waku_bridge.codec.envelope import decode
from waku_bridge.codec.waku_message import serialize
from waku_bridge.messages import MessageType, PushResponse, QueryResponse, RegistrationResponse
from waku_bridge.models import OutboundReply
from waku_bridge.node import NodeError
from waku_bridge.outbound import MAX_PARTS, MESSAGE_TYPES, Reply, hand_out_left_behind, publish, record

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PATIENCE = timedelta(seconds=30)
NWAKU_LIMIT_BYTES = 150 * 1024
State = OutboundReply.State


class Node:
    """Takes every message, or none."""

    def __init__(self, url="http://node", *, refuses=False):
        self.url, self.refuses, self.published = url, refuses, []

    async def publish(self, pubsub_topic, message):
        if self.refuses:
            raise NodeError(f"{self.url} refuses")
        self.published.append((pubsub_topic, message))


def info(number, entries=0):
    copies = tuple(bytes([index % 256]) * 64 for index in range(entries))
    return QueryInfo(CLIENT.key_hash, f"{number:08x}-1111-4111-8111-111111111111", 2**64 - 1, b"g" * 65, "", copies)


def recorded(body, **fields):
    envelope = make_envelope(**fields)
    return record([Reply(bytes(envelope.hash), EPHEMERAL.pub33, body)], now=NOW)


def fresh(reply):
    return OutboundReply.objects.get(pk=reply.pk)


# Recording ------------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_seals_a_reply_for_its_receiver_on_the_shard_it_was_asked_on():
    [pk] = recorded(PushResponse(b"m"), pubsub_topic="/waku/2/rs/16/64")
    row = OutboundReply.objects.get(pk=pk)
    assert row.pubsub_topic == "/waku/2/rs/16/64"
    assert row.content_topic == topics.content_topic(topics.partitioned_name(EPHEMERAL.pub33))
    assert (row.state, row.message_type, row.part) == (State.PENDING, MessageType.RESPONSE, 0)
    assert (row.next_attempt_at, row.enqueued_at, row.created_at) == (NOW, NOW, NOW)
    assert decode(bytes(row.payload), [EPHEMERAL], EPHEMERAL).body == PushResponse(b"m")


@pytest.mark.django_db
def test_an_envelope_gets_one_reply():
    envelope = make_envelope()
    reply = Reply(bytes(envelope.hash), EPHEMERAL.pub33, PushResponse(b"m"))
    record([reply], now=NOW)
    with pytest.raises(IntegrityError), transaction.atomic():
        record([reply], now=NOW)


@pytest.mark.django_db
def test_an_envelope_that_retention_removed_gets_none_and_stops_no_other():
    envelope = make_envelope()
    replies = [Reply(h, EPHEMERAL.pub33, PushResponse(b"m")) for h in (b"\x00" * 32, bytes(envelope.hash))]
    assert len(record(replies, now=NOW)) == 1


@pytest.mark.django_db
def test_a_short_answer_is_one_message():
    assert len(recorded(QueryResponse(b"q" * 32, success=True, info=tuple(map(info, range(20)))))) == 1


@pytest.mark.django_db
@pytest.mark.parametrize(("installations", "entries", "parts"), [(1, 2000, 1), (3, 2000, 3), (6, 600, 2), (5, 1000, 3)])
def test_a_long_answer_is_split_so_that_every_node_carries_each_part(installations, entries, parts):
    infos = tuple(info(number, entries) for number in range(installations))
    assert len(recorded(QueryResponse(b"q" * 32, success=True, info=infos))) == parts
    answers = [decoded.body for decoded in replies_to(EPHEMERAL)]
    assert [each for answer in answers for each in answer.info] == list(infos)
    assert {(answer.message_id, answer.success) for answer in answers} == {(b"q" * 32, True)}
    assert list(OutboundReply.objects.order_by("pk").values_list("part", flat=True)) == list(range(parts))
    node = Node()
    publish([row.pk for row in OutboundReply.objects.all()], [node], now=NOW)
    assert all(len(serialize(message)) <= NWAKU_LIMIT_BYTES for _, message in node.published)


@pytest.mark.django_db
def test_one_query_makes_us_publish_only_so_much():
    infos = tuple(info(number, 2000) for number in range(20))
    assert len(recorded(QueryResponse(b"q" * 32, success=True, info=infos))) == MAX_PARTS


# Publishing -----------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_publishes_what_was_recorded_and_drops_the_payload():
    reply, node = make_reply(at=NOW), Node()
    publish([reply.pk], [node], now=NOW)
    [(pubsub_topic, message)] = node.published
    assert (pubsub_topic, message.content_topic) == (reply.pubsub_topic, reply.content_topic)
    assert (message.payload, message.timestamp_ns) == (reply.payload, reply.timestamp_ns)
    assert (message.ephemeral, message.version) == (False, 1)
    row = fresh(reply)
    assert (row.state, row.payload, row.node, row.published_at) == (State.PUBLISHED, None, "http://node", NOW)


@pytest.mark.django_db
def test_publishing_again_does_nothing():
    reply, node = make_reply(at=NOW), Node()
    publish([reply.pk], [node], now=NOW)
    publish([reply.pk], [node], now=NOW + timedelta(hours=1))
    assert len(node.published) == 1


@pytest.mark.django_db
def test_goes_to_the_first_node_that_takes_it():
    reply, deaf, other, spare = make_reply(at=NOW), Node("http://deaf", refuses=True), Node("http://other"), Node()
    publish([reply.pk], [deaf, other, spare], now=NOW)
    assert (len(other.published), len(spare.published), fresh(reply).node) == (1, 0, "http://other")


@pytest.mark.django_db
@pytest.mark.parametrize("nodes", [[], [Node(refuses=True)]], ids=["no node", "a node that refuses"])
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
def test_a_new_reply_does_not_wait_for_a_clock_that_is_behind():
    reply, node = make_reply(at=NOW + timedelta(seconds=1)), Node()
    publish([reply.pk], [node], now=NOW)
    assert len(node.published) == 1


@pytest.mark.django_db
def test_a_reply_just_tried_is_not_tried_by_another_worker_at_the_same_moment():
    reply, node = make_reply(at=NOW), Node()
    publish([reply.pk], [Node(refuses=True)], now=NOW)
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
    with django_assert_max_num_queries(6):
        publish([reply.pk for reply in replies], [Node()], now=NOW)
    assert not OutboundReply.objects.filter(state=State.PENDING).exists()


def test_every_reply_has_its_message_type():
    assert set(MESSAGE_TYPES) == set(ReplyBody.__args__) == {RegistrationResponse, QueryResponse, PushResponse}
