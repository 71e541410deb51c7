"""Confirmation: published replies are queried at the stores, and published again only while that can help.

The tests use development nodes with real faults, and the batches of a worker process. Only its clock is moved.
"""

import asyncio
import secrets
import time
from datetime import timedelta

import pytest

from kit.buckets.bucket import Limit
from kit.http import call_on_loop, submit
from tests.rig.conversation import EPHEMERAL
from tests.rig.delivering import fresh
from tests.rig.rows import CONTENT_TOPIC, PUBSUB_TOPIC, make_reply
from tests.rig.statements import statements
from waku_bridge import models
from waku_bridge.codec.wire import message_hash
from waku_bridge.dialect import Busy
from waku_bridge.messages import PushResponse, WakuMessage
from waku_bridge.models import OutboundReply
from waku_bridge.node import Nodes
from waku_bridge.outbound import outbox, sending
from waku_bridge.outbound.outbox import ASK_AGAIN_AFTER, CHECK_AFTER, UNANSWERED_FOR, Reply, record
from waku_bridge.outbound.sending import HASHES_PER_QUERY, LEASE, MAX_REPEATS, Verdict, judge
from waku_bridge.outbound.tests.conftest import OutboxProcess

SECOND_NS = 10**9
REPEAT_ASKED_AFTER = 6  # seconds
State = OutboundReply.State
pytestmark = pytest.mark.django_db


@pytest.fixture
def published(clock):
    """Return a function that decides on a reply and sends it through these nodes, in order:
    ``published(*nodes, stores=nodes)``. It returns the reply, or None if it is over without a row, and the process.
    """

    def publish(*devnodes, stores=None, **fields):
        process = OutboxProcess(wakus(devnodes), wakus(devnodes if stores is None else stores))
        process.replies.append(new_reply(**fields))
        process.works()
        return OutboundReply.objects.last(), process

    return publish


def new_reply(**fields):
    return Reply(secrets.token_bytes(32), PUBSUB_TOPIC, EPHEMERAL.pub33, PushResponse(b"m"), **fields)


def wakus(devnodes):
    return [node.waku for node in devnodes]


def make_published(clock, *, age_seconds=0, **fields):
    """Make a reply whose publication every node has lost. It is due."""
    timestamp_ns, payload = time.time_ns() - age_seconds * SECOND_NS, secrets.token_bytes(200)
    own = {"payload": payload, "timestamp_ns": timestamp_ns, "node": "x", "attempt_count": 1}
    own["message_hash"] = message_hash(PUBSUB_TOPIC, WakuMessage(payload, CONTENT_TOPIC, timestamp_ns))
    return make_reply(**{"state": "published", "at": clock.at, "published_at": clock.at} | own | fields)


def message_of(reply):
    return WakuMessage(bytes(reply.payload), reply.content_topic, reply.timestamp_ns)


def gossiped(source, target, reply):
    """Wait until the other node has the reply, because gossip is not instantaneous."""
    deadline = time.monotonic() + 60
    while not target.has(fresh(reply).message_hash):
        assert time.monotonic() < deadline, "no gossip"
        time.sleep(0.02)


def lose_the_next(node):
    """Lose the next message: the node returns OK, and no store has the message."""
    node.fails(archive_refuses=1)


# The verdict ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known_by", "verdict"),
    [
        ({}, Verdict.UNKNOWN),
        ({"other": True}, Verdict.CONFIRMED),
        ({"other": False}, Verdict.MISSING),
        ({"taker": True}, Verdict.CONFIRMED),
        ({"taker": False}, Verdict.MISSING),
        ({"taker": True, "other": True}, Verdict.CONFIRMED),
        ({"taker": False, "other": True}, Verdict.CONFIRMED),
        ({"taker": True, "other": False}, Verdict.MISSING),  # it has forwarded the message to no peer
        ({"other": False, "third": True}, Verdict.CONFIRMED),
    ],
)
def test_the_verdict_follows_the_stores_and_the_taker_only_when_no_other_store_answered(known_by, verdict):
    assert judge("taker", known_by) == verdict


# Replies that are discarded -------------------------------------------------------------------------------------------


def test_a_reply_that_is_discarded_is_confirmed_and_leaves_no_row(start, published):
    [node] = start(1)
    published(node, is_discarded=True)
    kept, _ = published(node)
    assert [(row.pk, row.state) for row in OutboundReply.objects.all()] == [(kept.pk, State.CONFIRMED)]


def test_a_reply_that_is_discarded_is_published_again_and_leaves_no_row_when_it_is_given_up(start, clock, published):
    [node] = start(1)
    lose_the_next(node)
    reply, process = published(node, is_discarded=True)
    assert reply.repeat_count == 1
    node.stop()
    clock.goes(UNANSWERED_FOR.total_seconds(), process)
    assert not OutboundReply.objects.exists()


def test_an_error_to_an_unproven_key_that_no_node_took_leaves_no_row_and_is_given_up_early(clock):
    for age in (59, 60):
        make_reply(at=clock.at - timedelta(seconds=age), is_discarded=True, needs_confirmation=False)
    for age in (3599, 3600):
        make_reply(at=clock.at - timedelta(seconds=age))
    OutboxProcess([]).works()
    assert list(OutboundReply.objects.order_by("pk").values_list("state", flat=True)) == [
        *(State.PENDING, State.PENDING, State.ABANDONED),
    ]


# Replies that need no confirmation ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_discarded", [False, True])
def test_a_reply_that_needs_no_confirmation_ends_when_a_node_takes_it(is_discarded, start, clock, published):
    nodes = start(1)
    lose_the_next(nodes[0])
    at = clock.at
    _, process = published(*nodes, needs_confirmation=False, is_discarded=is_discarded)
    rows = OutboundReply.objects.values_list("state", "payload", "published_at", "node", "confirmed_at", "ended_on")
    expected = [] if is_discarded else [(State.UNCONFIRMED, None, at, nodes[0].url, None, at.date())]
    for _ in range(3):
        assert list(rows) == expected
        clock.goes(LEASE.total_seconds(), process)
    assert nodes[0].stats()["published"] == 1
    assert not OutboundReply.objects.filter(models.LOST_REPLIES).exists()


# Replies that the stores have -----------------------------------------------------------------------------------------


def test_a_reply_that_a_store_has_is_confirmed_and_its_payload_dropped(start, clock, published):
    [node] = start(1)
    row, _ = published(node)
    assert (row.state, row.payload, row.confirmed_at, row.published_at) == (State.CONFIRMED, None, clock.at, clock.at)
    assert (row.node, row.attempt_count, row.ended_on) == (node.url, 1, clock.at.date())
    assert node.has(row.message_hash)


class Store:
    """A store that has every message."""

    url = name = "http://store"

    def __init__(self):
        self.asked = []

    async def known(self, hashes):
        self.asked.append(len(hashes))
        return set(hashes)


class HangingStore(Store):
    """A store, and a node, that keeps each call back until it answers."""

    def __init__(self):
        super().__init__()
        self._is_up = asyncio.Event()

    def answers(self):
        call_on_loop(self._is_up.set)

    async def publish(self, _pubsub_topic, _message):
        await self._is_up.wait()

    async def known(self, hashes):
        await self._is_up.wait()
        return await super().known(hashes)


def test_many_replies_are_in_one_query(clock):
    for _ in range(HASHES_PER_QUERY + 50):
        make_published(clock)
    process = OutboxProcess([], [store := Store()])
    with statements() as sent:
        process.works()
    assert store.asked == [HASHES_PER_QUERY, 50]
    assert OutboundReply.objects.filter(state=State.CONFIRMED).count() == HASHES_PER_QUERY + 50
    assert len(sent) < HASHES_PER_QUERY  # none for each reply


def test_a_process_has_a_limited_number_of_overdue_replies_under_way(clock, monkeypatch):
    monkeypatch.setattr(outbox, "MAX_UNDER_WAY", 3)
    for _ in range(5):
        make_published(clock)
    process = OutboxProcess([], [store := HangingStore()])
    for _ in range(3):
        process.process_batch()
        clock.goes(2 * LEASE.total_seconds())
    assert process.sends.under_way == 3
    store.answers()
    process.works()
    assert OutboundReply.objects.filter(state=State.CONFIRMED).count() == 5


# Replies that the stores lack -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("age_seconds", [0, 16])
def test_a_lost_publication_is_repeated_with_the_same_bytes_while_stores_take_them(start, clock, age_seconds):
    [node] = start(1)
    lost = make_published(clock, age_seconds=age_seconds, node=node.url)
    process = OutboxProcess(wakus([node]), wakus([node]))
    process.works()
    again = fresh(lost)
    assert (again.payload, again.content_topic) == (lost.payload, lost.content_topic)
    is_same = age_seconds == 0
    assert (again.message_hash == lost.message_hash, again.timestamp_ns == lost.timestamp_ns) == (is_same, is_same)
    assert time.time_ns() - again.timestamp_ns < 10 * SECOND_NS
    assert (again.state, again.published_at) == (State.PUBLISHED, clock.at)
    clock.goes(REPEAT_ASKED_AFTER, process)
    assert (fresh(lost).state, fresh(lost).repeat_count, fresh(lost).attempt_count) == (State.CONFIRMED, 1, 2)
    assert node.stats()["archived"] == 1


def test_where_every_node_refuses_a_repetition_the_stores_decide(start, clock):
    """A store may have been late with the message."""
    [node] = start(1)
    reply = make_published(clock, node=node.url)
    node.fails(no_peers=True)
    process = OutboxProcess(wakus([node]), wakus([node]))
    process.works()
    row = fresh(reply)
    assert (row.state, row.repeat_count, row.due_at) == (State.PUBLISHED, 1, clock.at + CHECK_AFTER)
    node.fails(no_peers=False)
    submit(node.waku.publish(reply.pubsub_topic, message_of(reply))).result()
    clock.goes(CHECK_AFTER.total_seconds(), process)
    assert (fresh(reply).state, node.stats()["published"]) == (State.CONFIRMED, 1)


def test_repetitions_of_a_reply_have_a_limit_and_each_waits_longer_for_its_query(start, clock, published):
    [node] = start(1)
    node.fails(archive_refuses=True)
    reply, process = published(node)
    waits = []
    for _ in range(MAX_REPEATS):
        waits.append(round((fresh(reply).due_at - fresh(reply).published_at).total_seconds()))
        clock.goes_to(fresh(reply).due_at, process)
    assert waits == [6, 12, 24, 48]
    row = fresh(reply)
    assert (row.state, row.payload, row.repeat_count) == (State.UNCONFIRMED, None, MAX_REPEATS)
    assert row.attempt_count == MAX_REPEATS + 1
    assert OutboundReply.objects.filter(models.LOST_REPLIES).count() == 1


def test_a_limited_number_of_lost_replies_is_repeated_at_a_time(start, clock, monkeypatch):
    monkeypatch.setattr(sending, "REPEATS", (Limit(2, 1e6),))
    [node] = start(1)
    replies = [make_published(clock, node=node.url) for _ in range(5)]
    process = OutboxProcess(wakus([node]), wakus([node]))
    process.works()
    assert sorted(fresh(reply).due_at - clock.at for reply in replies) == [
        *[2 * CHECK_AFTER] * 2,
        *[ASK_AGAIN_AFTER] * 3,
    ]
    clock.goes(UNANSWERED_FOR.total_seconds(), process)
    assert node.stats()["published"] == 2
    states = OutboundReply.objects.order_by("state").values_list("state", flat=True)
    assert list(states) == [State.CONFIRMED] * 2 + [State.UNCONFIRMED] * 3


# Stores that do not answer --------------------------------------------------------------------------------------------


REFUSALS = ["store_no_peer", "store_rate_limited", "store_too_many_requests"]


@pytest.mark.parametrize("trouble", [*REFUSALS, "unreachable", "no store"])
def test_a_reply_without_a_verdict_is_closed_after_a_minute(start, clock, published, trouble):
    node, store = start(2)
    if trouble == "unreachable":
        store.stop()
    else:
        store.fails(**dict.fromkeys({trouble} & {*REFUSALS}, True))
    reply, process = published(node, stores=[] if trouble == "no store" else [store])
    for _ in range(4):
        clock.goes(12, process)
        assert fresh(reply).state == State.PUBLISHED
    clock.goes(22, process)
    assert (fresh(reply).state, fresh(reply).payload) == (State.UNCONFIRMED, None)
    assert node.stats()["published"] == 1


def test_a_store_that_limits_our_rate_gets_no_query_for_a_minute(monkeypatch):
    seconds = 1000.0
    monkeypatch.setattr("waku_bridge.node.monotonic", lambda: seconds)
    stores = Nodes([Store()])
    stores.failed(stores.in_order()[0], Busy("slow down"))
    seconds += 59
    assert stores.trusted() == []
    seconds += 1
    assert len(stores.trusted()) == 1


def test_two_stores_are_queried_and_the_taker_only_when_there_are_no_others(start, clock):
    taker, second, third = start(3)
    reply = make_published(clock, node=taker.url)
    submit(taker.waku.publish(reply.pubsub_topic, message_of(reply))).result()
    for other in (second, third):
        gossiped(taker, other, reply)
    taker.fails(store_no_peer=1)
    OutboxProcess(wakus([taker]), wakus([taker, second, third])).works()
    assert fresh(reply).state == State.CONFIRMED
    assert taker.node.faults.store_no_peer == 1  # no query reached this fault


def test_a_fault_of_ours_during_a_query_leads_to_no_verdict(clock):
    class Broken(Store):
        async def known(self, hashes):
            if not self.asked:
                self.asked = [0]
                raise KeyError
            return await super().known(hashes)

    reply = make_published(clock)
    process = OutboxProcess([], [Broken()])
    process.works()
    assert fresh(reply).state == State.PUBLISHED
    clock.goes(ASK_AGAIN_AFTER.total_seconds(), process)
    assert fresh(reply).state == State.CONFIRMED


def test_a_send_that_hangs_ends_before_its_lease_and_its_publication_is_recorded(start, clock, monkeypatch):
    monkeypatch.setattr(sending, "TIMEOUT_SECONDS", 0.5)
    [node] = start(1)
    process = OutboxProcess([node.waku], [store := HangingStore()])
    process.replies.append(new_reply())
    process.works()
    store.answers()
    reply = OutboundReply.objects.get()
    assert (reply.state, reply.node, reply.published_at) == (State.PUBLISHED, node.url, clock.at)
    assert reply.due_at == clock.at + CHECK_AFTER


# Nodes that fail ------------------------------------------------------------------------------------------------------


def test_a_reply_waits_for_the_peers_of_the_only_node_whose_store_would_confirm_it(start, clock, published):
    """Relay answers OK without peers, and keeps the message in the store of the node itself."""
    [node] = start(1)
    node.fails(no_peers=True)
    reply, process = published(node)
    assert fresh(reply).state == State.PENDING
    assert node.stats()["archived"] == 0
    node.fails(no_peers=False)
    clock.goes(10, process)
    assert (fresh(reply).state, node.stats()["published"]) == (State.CONFIRMED, 1)


@pytest.mark.parametrize(("fault", "by_first"), [({"no_peers": True}, 0), ({"cut_after_publish": 1}, 1)])
def test_a_node_without_peers_or_with_a_lost_answer_makes_no_second_message(start, published, fault, by_first):
    first, second = start(2)
    first.fails(**fault)
    reply, _ = published(first, second, stores=[])
    assert (fresh(reply).node, first.stats()["published"]) == (second.url, by_first)
    gossiped(second, first, reply)
    assert (first.stats()["archived"], second.stats()["archived"]) == (1, 1)


# Crashes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("was_published", [False, True])
def test_what_a_dead_worker_left_is_published_only_if_no_store_has_it(start, clock, was_published):
    [node] = start(1)
    [outgoing] = record([new_reply()], now=clock.at).outgoing()
    if was_published:
        submit(node.waku.publish(outgoing.pubsub_topic, outgoing.message)).result()
    other = OutboxProcess(wakus([node]), wakus([node]))
    clock.goes(LEASE.total_seconds() - 0.1, other)
    assert OutboundReply.objects.get().state == State.PENDING
    clock.goes(0.1, other)
    row = OutboundReply.objects.get()
    assert (row.state, bytes(row.message_hash)) == (State.CONFIRMED, outgoing.hash)  # the same bytes
    assert (row.published_at is not None, row.payload) == (True, None)
    assert (row.attempt_count, node.stats()["published"]) == (0 if was_published else 1, 1)


def test_two_workers_repeat_a_lost_reply_once(start, clock):
    [node] = start(1)
    make_published(clock, node=node.url)
    processes = [OutboxProcess(wakus([node]), wakus([node])) for _ in range(2)]
    for process in (*processes, *processes):
        process.process_batch()
    for process in processes:
        process.works()
    assert node.stats()["published"] == 1


def test_a_process_that_is_to_stop_waits_until_its_replies_are_offered_and_for_no_store(clock):
    process = OutboxProcess([node := HangingStore()], [store := HangingStore()])
    process.replies.append(new_reply())
    process.process_batch()
    assert any(step.is_under_way() for step in process.steps)
    node.answers()
    deadline = time.monotonic() + 20
    while any(step.is_under_way() for step in process.steps):
        assert time.monotonic() < deadline, "it waits for a store"
        time.sleep(0.01)
    store.answers()
    process.works()
