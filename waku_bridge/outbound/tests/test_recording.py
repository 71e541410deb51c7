"""Recording of replies: they are encoded, split, and stored once."""

from datetime import UTC, datetime

import pytest

from notifications.messages import Answer
from registrations.messages import QueryInfo
from tests.rig.conversation import CLIENT, EPHEMERAL, replies_to
from tests.rig.rows import PUBSUB_TOPIC
from tests.rig.statements import statements
from waku_bridge.codec import topics
from waku_bridge.codec.envelope import Reply as ReplyBody
from waku_bridge.codec.envelope import decode
from waku_bridge.codec.waku_message import serialize
from waku_bridge.messages import MessageType, PushResponse, QueryResponse, RegistrationResponse, WakuMessage
from waku_bridge.models import OutboundReply
from waku_bridge.outbound import MAX_PARTS, MESSAGE_TYPES, Reply, record, reply_to, return_address
from waku_bridge.outbound.publishing import RETRY_AFTER, claim_pending

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NWAKU_LIMIT_BYTES = 150 * 1024
State = OutboundReply.State


def info(number, entries=0):
    copies = tuple(bytes([index % 256]) * 64 for index in range(entries))
    return QueryInfo(CLIENT.key_hash, f"{number:08x}-1111-4111-8111-111111111111", 2**64 - 1, b"g" * 65, "", copies)


def reply(body, *, pubsub_topic=PUBSUB_TOPIC, envelope_hash=b"e" * 32, **fields):
    return Reply(envelope_hash, pubsub_topic, EPHEMERAL.pub33, body, **fields)


def recorded(body, **fields):
    return record([reply(body, **fields)], now=NOW, retry_after=RETRY_AFTER).outgoing()


@pytest.mark.requirement("SR17")
@pytest.mark.django_db
def test_a_reply_is_sealed_for_its_receiver_on_the_shard_of_its_question():
    [outgoing] = recorded(PushResponse(b"m"), pubsub_topic="/waku/2/rs/16/64")
    row = OutboundReply.objects.get(pk=outgoing.id)
    assert row.pubsub_topic == "/waku/2/rs/16/64"
    assert row.content_topic == topics.content_topic(topics.partitioned_name(EPHEMERAL.pub33))
    assert (row.state, row.message_type, row.part) == (State.PENDING, MessageType.RESPONSE, 0)
    assert (row.next_attempt_at, row.created_at) == (NOW + RETRY_AFTER, NOW)
    assert decode(bytes(row.payload), [EPHEMERAL], EPHEMERAL).body == PushResponse(b"m")


@pytest.mark.django_db
def test_a_reply_is_published_with_the_bytes_of_its_row():
    """Another worker that finds the row later publishes the same bytes."""
    for needs_confirmation in (True, False):
        [outgoing] = recorded(PushResponse(b"m"), needs_confirmation=needs_confirmation)
        [found] = claim_pending(limit=10, now=NOW + RETRY_AFTER)
        assert found == outgoing._replace(attempt_count=2)
        assert found.needs_confirmation is needs_confirmation
        OutboundReply.objects.all().delete()


@pytest.mark.django_db
def test_an_envelope_gets_one_reply():
    first = recorded(PushResponse(b"m"))
    assert recorded(PushResponse(b"other")) == []
    assert [row.pk for row in OutboundReply.objects.all()] == [outgoing.id for outgoing in first]


@pytest.mark.django_db
def test_an_envelope_with_two_replies_in_a_batch_gets_one_and_stops_no_other():
    replies = [reply(PushResponse(b"m"), envelope_hash=envelope_hash) for envelope_hash in (b"e" * 32, b"f" * 32)]
    assert len(record([replies[0], *replies], now=NOW, retry_after=RETRY_AFTER).outgoing()) == 2


@pytest.mark.django_db
def test_a_return_address_is_the_author_and_the_shard():
    answer = Answer("waku", b"e" * 32, return_address(EPHEMERAL.pub33, PUBSUB_TOPIC), b"m", ())
    assert reply_to(answer) == reply(PushResponse(b"m", ()))


@pytest.mark.django_db
def test_a_batch_costs_one_statement():
    replies = [reply(PushResponse(b"m"), envelope_hash=bytes([number]) * 32) for number in range(50)]
    with statements() as sent:
        assert len(record(replies, now=NOW, retry_after=RETRY_AFTER).outgoing()) == 50
    assert len(sent) == 1


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
    rows = OutboundReply.objects.all()
    messages = [WakuMessage(row.payload, row.content_topic, row.timestamp_ns) for row in rows]
    assert all(len(serialize(message)) <= NWAKU_LIMIT_BYTES for message in messages)


@pytest.mark.django_db
def test_the_parts_of_an_answer_have_a_limit():
    infos = tuple(info(number, 2000) for number in range(20))
    assert len(recorded(QueryResponse(b"q" * 32, success=True, info=infos))) == MAX_PARTS


def test_every_reply_has_its_message_type():
    assert set(MESSAGE_TYPES) == set(ReplyBody.__args__) == {RegistrationResponse, QueryResponse, PushResponse}
