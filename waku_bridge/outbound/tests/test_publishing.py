"""Replies are encoded, stored once, published, by another node where one fails, attempted again, and given up."""

import asyncio
import secrets
import socket
import time
from datetime import UTC, datetime, timedelta
from functools import partial

import psycopg
import pytest
from django.db import connection
from prometheus_client import REGISTRY, generate_latest

from kit.http import Connections, submit
from notifications.messages import Answer
from registrations.messages import QueryInfo
from tests.rig.conversation import CLIENT, EPHEMERAL, put, registration, replies_to
from tests.rig.delivering import Process, fresh, wait_for_wakeup
from tests.rig.logs import capture_logs
from tests.rig.rows import CONTENT_TOPIC, PUBSUB_TOPIC, make_reply
from tests.rig.statements import refuse, statements
from waku_bridge.codec import wire
from waku_bridge.codec.envelope import decode
from waku_bridge.codec.wire import message_hash, serialize_message
from waku_bridge.dialect import MessageTooLarge, NodeError
from waku_bridge.messages import (
    MessageType,
    PushResponse,
    QueryResponse,
    WakuMessage,
)
from waku_bridge.models import OutboundReply
from waku_bridge.node import HEDGED_AT_ONCE, HEDGED_SHARE, Nodes, WakuNode
from waku_bridge.outbound import sending
from waku_bridge.outbound.outbox import CHECK_AFTER, MAX_PARTS, Reply, record, reply_to, return_address
from waku_bridge.outbound.sending import LEASE, Outgoing, Sent
from waku_bridge.outbound.tests.conftest import OutboxProcess

NOW = datetime(2026, 1, 1, tzinfo=UTC)
END_ALL = """
    WITH gone AS (DELETE FROM waku_bridge_openreply RETURNING *)
    INSERT INTO waku_bridge_endedreply SELECT ended.* FROM gone, jsonb_populate_record(
        NULL::waku_bridge_endedreply,
        to_jsonb(gone) || jsonb_build_object('state', 'confirmed', 'ended_on', current_date)
    ) AS ended
"""
State = OutboundReply.State
pytestmark = pytest.mark.django_db


class Node:
    """A node that takes every message, or none."""

    def __init__(self, url="http://node", *, error=None):
        self.url, self.name, self.error = url, url.removeprefix("http://"), error
        self.published, self.asked = [], 0

    async def publish(self, pubsub_topic, message):
        self.asked += 1
        if self.error:
            raise self.error
        self.published.append((pubsub_topic, message))


def deaf(url="http://deaf"):
    return Node(url, error=NodeError("no"))


def publish(*nodes):
    """Have a new process publish the replies that are due."""
    OutboxProcess(nodes).works()


def decided(process, body=b"m"):
    """Have a batch of this process decide on a reply."""
    process.replies.append(Reply(secrets.token_bytes(32), PUBSUB_TOPIC, EPHEMERAL.pub33, PushResponse(body)))


# New ------------------------------------------------------------------------------------------------------------------


def test_a_reply_is_published_after_its_batch_and_kept_until_it_is_confirmed(clock):
    process = OutboxProcess([node := Node()])
    decided(process)
    process.works()
    [(pubsub_topic, message)] = node.published
    row = OutboundReply.objects.get()
    assert (pubsub_topic, message.content_topic) == (row.pubsub_topic, row.content_topic)
    assert (message.payload, message.timestamp_ns) == (row.payload, row.timestamp_ns)
    assert (message.ephemeral, message.version) == (False, 1)
    assert (row.state, row.payload, row.node, row.attempt_count) == (State.PUBLISHED, row.payload, "http://node", 1)
    assert row.message_hash == message_hash(pubsub_topic, message)
    assert (row.published_at, row.due_at) == (clock.at, clock.at + CHECK_AFTER)


@pytest.mark.django_db(transaction=True)  # what is left behind is counted after the commit
def test_a_reply_that_its_worker_does_not_publish_is_published_by_another(clock):
    before = left_behind()
    record([Reply(b"e" * 32, PUBSUB_TOPIC, EPHEMERAL.pub33, PushResponse(b"m"))], now=clock.at)
    clock.goes(LEASE.total_seconds() - 0.1)
    publish(node := Node())
    assert node.published == []
    clock.goes(0.1)
    publish(node)
    publish(node)
    assert (len(node.published), left_behind() - before) == (1, 1)


def left_behind():
    return REGISTRY.get_sample_value("pushserver_left_behind_total", {"kind": "replies"}) or 0


def test_a_batch_of_replies_costs_as_many_statements_as_one_reply(clock):
    numbers = []
    for replies in (1, 64):
        process = OutboxProcess([Node()])
        for number in range(replies):
            decided(process, bytes([number]))
        with statements() as sent:
            process.process_batch()
            while process.sends.under_way:
                wait_for_wakeup()
                if process.sends.peek(replies)[replies - 1 :]:
                    process.process_batch()
        numbers.append(len(sent))
    assert len(set(numbers)) == 1
    assert not OutboundReply.objects.filter(state=State.PENDING).exists()


# Nodes ----------------------------------------------------------------------------------------------------------------


def test_neither_log_nor_metric_holds_the_secret_part_of_a_nodes_url(clock):
    """Settings refuse a URL with a password. A path may be secret, too."""
    make_reply(at=clock.at)
    client = Connections(silent_seconds=1)
    node = WakuNode("http://ann:5ecret@127.0.0.1:1/5ecret", client)
    process = OutboxProcess([node], [node])
    with capture_logs("http") as logs:
        process.works()
    submit(client.close()).result()
    assert [(entry["event"], entry.get("node", "")) for entry in logs] == [
        ("store_not_asked", "127.0.0.1:1"),
        ("replies_not_published", ""),
        ("node_refused_replies", "127.0.0.1:1"),
    ]
    metrics = generate_latest().decode()
    assert 'node="127.0.0.1:1"' in metrics
    assert "5ecret" not in f"{logs}{metrics}"


@pytest.mark.parametrize(
    ("nodes", "needs_confirmation", "state"),
    [([], True, State.PUBLISHED), ([deaf()], True, State.PUBLISHED), ([deaf()], False, State.UNCONFIRMED)],
    ids=["no node", "a node that refuses", "a reply without confirmation"],
)
def test_a_reply_that_no_node_takes_is_published_later(nodes, needs_confirmation, state, clock):
    reply = make_reply(at=clock.at, needs_confirmation=needs_confirmation)
    publish(*nodes)
    assert (fresh(reply).state, fresh(reply).attempt_count, fresh(reply).payload) == (State.PENDING, 1, reply.payload)
    clock.goes(9)
    publish(node := Node())
    assert node.published == []
    clock.goes(1)
    publish(node)
    publish(node)
    assert (len(node.published), fresh(reply).state) == (1, state)


def test_a_fault_of_ours_while_publishing_keeps_the_reply_and_stops_no_other(clock):
    class Broken(Node):
        async def publish(self, pubsub_topic, message):
            if not self.asked:
                self.asked = 1
                raise KeyError(message.payload)
            return await super().publish(pubsub_topic, message)

    for _ in "12":
        make_reply(at=clock.at)
    with capture_logs("http") as logs:
        publish(Broken())
    assert sorted(OutboundReply.objects.values_list("state", flat=True)) == [State.PENDING, State.PUBLISHED]
    assert {"event": "sending_failed", "error": "KeyError", "log_level": "error"} in logs


def test_a_node_that_failed_a_moment_ago_comes_last(clock):
    first, second = deaf("http://first"), Node("http://second")
    process = OutboxProcess([first, second])
    for _ in range(3):
        make_reply(at=clock.at)
        process.works()
    assert (first.asked, len(second.published)) == (1, 3)
    second.error = NodeError("no")
    make_reply(at=clock.at)
    process.works()
    assert first.asked == 2


def test_a_message_that_is_too_large_is_no_failure_of_the_node(clock):
    first, second = Node("http://first", error=MessageTooLarge("no", 100)), Node("http://second")
    process = OutboxProcess([first, second])
    make_reply(at=clock.at)
    process.works()
    first.error = None
    make_reply(at=clock.at)
    process.works()
    assert (len(first.published), len(second.published)) == (1, 1)


@pytest.fixture
def hanging():
    """A node that takes connections and answers nothing. Its client gives up after a minute."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = Connections(silent_seconds=60)
        yield WakuNode(f"http://127.0.0.1:{listener.getsockname()[1]}", client)
        submit(client.close()).result()


@pytest.mark.django_db(transaction=True)
def test_a_reply_is_in_time_while_one_of_two_nodes_hangs(start, hanging):
    """The client gives up after three seconds, and this node would be given up after a minute."""
    [node] = start(1)
    process = Process(nodes=[hanging, node.waku])
    with capture_logs("http") as logs:
        for version in (1, 2, 3):
            put(registration(CLIENT, version=version))
            process.process_until(partial(are_published, version))
    assert list(OutboundReply.objects.values_list("node", flat=True)) == [node.url] * 3
    assert node.has(*(bytes(each) for each in OutboundReply.objects.values_list("message_hash", flat=True)))
    refused = [entry for entry in logs if entry["event"] == "node_refused_replies"]
    assert [(entry["node"], entry["code"], entry["count"]) for entry in refused] == [(hanging.name, "slow", 1)]


def are_published(count):
    return OutboundReply.objects.filter(state=State.PUBLISHED).count() == count


def test_slow_nodes_get_each_reply_twice_for_a_tenth_of_all_replies_at_most(monkeypatch):
    """The ones saved up come on top, for the replies that are under way when a node begins to hang."""
    monkeypatch.setattr(sending, "SLOW_AFTER_SECONDS", 0.01)

    class Slow(Node):
        offered = 0  # also those that are cancelled, because the other node took the reply

        async def publish(self, pubsub_topic, message):
            self.offered += 1
            await asyncio.sleep(0.05)
            return await super().publish(pubsub_topic, message)

    async def publish_all(count):
        results = [Sent(outgoing()) for _ in range(count)]
        await asyncio.gather(*(sending.publish(sent, both) for sent in results))
        assert all(sent.node for sent in results)

    first, second = Slow("http://first"), Slow("http://second")
    both = Nodes([first, second])
    submit(publish_all(HEDGED_AT_ONCE)).result()
    for _ in range(10):
        submit(publish_all(100)).result()
    hedges = first.offered + second.offered - 1000 - HEDGED_AT_ONCE
    assert 0 < hedges <= HEDGED_AT_ONCE + (1000 + HEDGED_AT_ONCE) * HEDGED_SHARE


def outgoing():
    payload = secrets.token_bytes(20)
    return Outgoing(
        1, NOW, b"e" * 32, 0, MessageType.RESPONSE, PUBSUB_TOPIC, CONTENT_TOPIC, payload, time.time_ns(), NOW
    )


def test_the_wait_grows_each_time_that_no_node_takes_a_reply(clock):
    reply, waits = make_reply(at=clock.at), []
    for _ in range(8):
        publish(deaf())
        waits.append((fresh(reply).due_at - clock.at).total_seconds())
        clock.goes_to(fresh(reply).due_at)
    assert waits == [10, 20, 30, 40, 50, 60, 60, 60]


@pytest.mark.django_db(transaction=True)
def test_a_late_result_does_not_change_a_reply_that_another_worker_published(clock):
    """The node of the first worker hangs until another worker has published the reply and a store has it."""
    reply = make_reply(at=clock.at)

    class Slow(Node):
        async def publish(self, pubsub_topic, message):
            with psycopg.connect(**connection.get_connection_params(), autocommit=True) as database:
                database.execute(END_ALL)
            return await super().publish(pubsub_topic, message)

    publish(Slow())
    assert (fresh(reply).state, fresh(reply).payload) == (State.CONFIRMED, None)


@pytest.mark.parametrize(("age_seconds", "is_fresh"), [(10, True), (20, False)])
def test_store_nodes_get_a_timestamp_that_they_accept(age_seconds, is_fresh, clock):
    stamped_ns = time.time_ns() - age_seconds * 10**9
    reply = make_reply(at=clock.at, timestamp_ns=stamped_ns)
    publish(node := Node())
    [(_, message)] = node.published
    assert (message.timestamp_ns == stamped_ns) == is_fresh
    assert fresh(reply).timestamp_ns == message.timestamp_ns
    assert time.time_ns() - message.timestamp_ns < 15 * 10**9


# Giving up ------------------------------------------------------------------------------------------------------------


def test_a_reply_is_given_up_after_an_hour_and_its_payload_dropped(clock):
    old, young = make_reply(at=clock.at), make_reply(at=clock.at + timedelta(minutes=1))
    clock.goes(3600)
    publish(node := Node())
    assert (fresh(old).state, fresh(old).payload) == (State.ABANDONED, None)
    assert [message.payload for _, message in node.published] == [young.payload]


def test_a_published_reply_that_cannot_be_repeated_is_unconfirmed_and_not_abandoned(clock):
    reply = make_reply(at=clock.at, node="http://node", published_at=clock.at, attempt_count=1)
    clock.goes(3600)
    publish(node := Node())
    assert (node.asked, fresh(reply).state, fresh(reply).payload) == (0, State.UNCONFIRMED, None)


def test_a_reply_whose_row_cannot_be_written_is_left_for_a_while_and_stops_no_other(clock):
    bad, other = make_reply(at=clock.at), make_reply(at=clock.at + timedelta(minutes=1))
    refuse("waku_bridge_endedreply", "INSERT", f"NEW.id = {bad.pk}")
    clock.goes(3600)
    publish(node := Node())
    assert [message.payload for _, message in node.published] == [other.payload]
    assert fresh(bad).due_at == clock.at + timedelta(seconds=10)


# Recording ------------------------------------------------------------------------------------------------------------


NWAKU_LIMIT_BYTES = 150 * 1024


def info(number, entries=0):
    copies = tuple(bytes([index % 256]) * 64 for index in range(entries))
    return QueryInfo(CLIENT.key_hash, f"{number:08x}-1111-4111-8111-111111111111", 2**64 - 1, b"g" * 65, "", copies)


def reply(body, *, pubsub_topic=PUBSUB_TOPIC, envelope_hash=b"e" * 32, **fields):
    return Reply(envelope_hash, pubsub_topic, EPHEMERAL.pub33, body, **fields)


def recorded(body, **fields):
    return record([reply(body, **fields)], now=NOW).outgoing()


@pytest.mark.requirement("SR17")
def test_a_reply_is_sealed_for_its_receiver_on_the_shard_of_its_question():
    [outgoing] = recorded(PushResponse(b"m"), pubsub_topic="/waku/2/rs/16/64")
    row = OutboundReply.objects.get(pk=outgoing.id)
    assert row.pubsub_topic == "/waku/2/rs/16/64"
    assert row.content_topic == wire.content_topic(wire.partitioned_name(EPHEMERAL.pub33))
    assert (row.state, row.message_type, row.part) == (State.PENDING, MessageType.RESPONSE, 0)
    assert (row.due_at, row.created_at) == (NOW + LEASE, NOW)
    assert decode(bytes(row.payload), [EPHEMERAL], EPHEMERAL).body == PushResponse(b"m")


def test_an_envelope_gets_one_reply_and_a_second_one_in_its_batch_stops_no_other():
    replies = [reply(PushResponse(b"m"), envelope_hash=envelope_hash) for envelope_hash in (b"e" * 32, b"f" * 32)]
    first = record([replies[0], *replies], now=NOW).outgoing()
    assert recorded(PushResponse(b"other")) == []
    assert sorted(row.pk for row in OutboundReply.objects.all()) == sorted(outgoing.id for outgoing in first)
    assert len(first) == 2


def test_a_return_address_is_the_author_and_the_shard():
    answer = Answer("waku", b"e" * 32, return_address(EPHEMERAL.pub33, PUBSUB_TOPIC), b"m", ())
    assert reply_to(answer) == reply(PushResponse(b"m", ()))


def test_a_batch_costs_one_statement():
    replies = [reply(PushResponse(b"m"), envelope_hash=bytes([number]) * 32) for number in range(50)]
    with statements() as sent:
        assert len(record(replies, now=NOW).outgoing()) == 50
    assert len(sent) == 1


@pytest.mark.parametrize(
    ("installations", "entries", "parts"),
    [(20, 0, 1), (1, 2000, 1), (3, 2000, 3), (6, 600, 2), (5, 1000, 3), (20, 2000, MAX_PARTS)],
)
def test_a_long_answer_is_split_so_that_every_node_carries_each_part(installations, entries, parts):
    infos = tuple(info(number, entries) for number in range(installations))
    assert len(recorded(QueryResponse(b"q" * 32, success=True, info=infos))) == parts
    answers = [decoded.body for decoded in replies_to(EPHEMERAL)]
    assert [each for answer in answers for each in answer.info] == list(infos[: MAX_PARTS if entries == 2000 else None])
    assert {(answer.message_id, answer.success) for answer in answers} == {(b"q" * 32, True)}
    assert sorted(OutboundReply.objects.values_list("part", flat=True)) == list(range(parts))
    rows = OutboundReply.objects.all()
    messages = [WakuMessage(row.payload, row.content_topic, row.timestamp_ns) for row in rows]
    assert all(len(serialize_message(message)) <= NWAKU_LIMIT_BYTES for message in messages)
