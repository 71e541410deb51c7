"""Confirmation: published replies are queried at the stores, and published again only while that can help.

The tests use development nodes with real faults, and the batches of a worker process. Only its clock is moved.
"""

import time
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models import F

from tests.rig.delivering import fresh
from tests.rig.rows import make_reply
from tests.rig.statements import statements
from waku_bridge import models
from waku_bridge.models import OutboundReply
from waku_bridge.node import Busy
from waku_bridge.outbound import Nodes, confirming, publishing
from waku_bridge.outbound.confirming import (
    GIVE_UP_AFTER,
    HASHES_PER_QUERY,
    LATE,
    MAX_REPEATS,
    Checked,
    Verdict,
    judge,
    record_verdicts,
    take_up_unconfirmed,
)
from waku_bridge.outbound.publishing import claim_pending, give_up, record_refused
from waku_bridge.outbound.recording import Outgoing
from waku_bridge.outbound.tests.conftest import OutboxProcess

SECOND_NS = 10**9
# A reply is queried 3 seconds after it was published, together with those of the last 2 seconds.
ASKED_AFTER = 5
State = OutboundReply.State
pytestmark = pytest.mark.django_db


@pytest.fixture
def published(clock):
    """Return a function that publishes a reply through these nodes, in order: ``published(*nodes, stores=nodes)``.

    It returns the reply and the process that published it.
    """

    def publish(*devnodes, stores=None, **fields):
        process = OutboxProcess(wakus(devnodes), wakus(devnodes if stores is None else stores))
        reply = make_reply(at=clock.at, **fields)
        process.works()
        return reply, process

    return publish


def wakus(devnodes):
    return [node.waku for node in devnodes]


def make_published(clock, number=0, **fields):
    fields = {"node": "x", "message_hash": number.to_bytes(32)} | fields
    return make_reply(state="published", at=clock.at, published_at=clock.at, **fields)


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


def test_a_reply_that_is_discarded_is_confirmed_and_leaves_no_row(start, clock, published):
    (_, process), kept = published(*start(1), is_discarded=True), make_reply(at=clock.at)
    process.works()
    clock.goes(ASKED_AFTER, process)
    assert [row.state for row in OutboundReply.objects.all()] == [State.CONFIRMED]
    assert fresh(kept).state == State.CONFIRMED


def test_a_reply_that_is_discarded_is_published_again_and_leaves_no_row_when_it_is_given_up(start, clock, published):
    nodes = start(1)
    lose_the_next(nodes[0])
    reply, process = published(*nodes, is_discarded=True)
    clock.goes(ASKED_AFTER, process)
    assert fresh(reply).repeat_count == 1
    nodes[0].stop()
    clock.goes(GIVE_UP_AFTER.total_seconds() + LATE.total_seconds(), process)
    clock.goes(publishing.GIVE_UP_AFTER.total_seconds(), process)
    assert not OutboundReply.objects.exists()


def test_an_error_to_an_unproven_key_that_no_node_took_leaves_no_row_and_is_given_up_early(clock):
    make_reply(at=clock.at, is_discarded=True, needs_confirmation=False)
    kept = make_reply(at=clock.at)
    for wait, given_up in ((59, 0), (1, 1), (3539, 0), (1, 1)):
        clock.goes(wait)
        assert give_up(limit=10, now=clock.at) == given_up
    assert [(row.pk, row.state) for row in OutboundReply.objects.all()] == [(kept.pk, State.ABANDONED)]


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
        clock.goes(ASKED_AFTER, process)
    assert nodes[0].stats()["published"] == 1
    assert not OutboundReply.objects.filter(models.LOST_REPLIES).exists()


# Replies that the stores have -----------------------------------------------------------------------------------------


def test_a_reply_that_a_store_has_is_confirmed_and_its_payload_dropped(start, clock, published):
    reply, process = published(*(nodes := start(1)))
    clock.goes(2, process)
    assert fresh(reply).state == State.PUBLISHED
    clock.goes(3, process)
    row = fresh(reply)
    assert (row.state, row.payload, row.confirmed_at) == (State.CONFIRMED, None, clock.at)
    assert nodes[0].has(row.message_hash)
    assert State(row.state).is_terminal


class Store:
    """A store that has every message."""

    url = name = "http://store"

    def __init__(self):
        self.asked = []

    async def known(self, hashes):
        self.asked.append(len(hashes))
        return set(hashes)


def test_many_replies_are_in_one_query(clock, monkeypatch):
    monkeypatch.setattr(confirming, "LIMIT", HASHES_PER_QUERY + 50)
    for number in range(HASHES_PER_QUERY + 50):
        make_published(clock, number)
    process = OutboxProcess([], [store := Store()])
    clock.goes(LATE.total_seconds())
    with statements() as sent:
        process.works()
    assert store.asked == [HASHES_PER_QUERY, 50]
    assert OutboundReply.objects.filter(state=State.CONFIRMED).count() == HASHES_PER_QUERY + 50
    assert len(sent) < HASHES_PER_QUERY  # none for each reply


# Replies that the stores lack -----------------------------------------------------------------------------------------


def test_slow_stores_are_queried_once_for_each_reply_and_not_for_ever(clock, monkeypatch):
    """A process does not take over a reply that is in its own memory, also when it is late with the query."""
    monkeypatch.setattr(confirming, "LIMIT", 3)
    for number in range(5):
        make_published(clock, number)
    process = OutboxProcess([], [Store()])
    confirmations = process.outbox.confirmations
    monkeypatch.setattr(confirmations, "ask", lambda **_: None)  # the store has not answered yet
    for _ in range(5):
        clock.goes(2 * LATE.total_seconds())
        process.process_batch()
    assert (len(confirmations._due), confirmations.capacity()) == (3, 0)


def test_the_limit_of_replies_to_take_over_holds_for_every_plan_of_postgresql(clock):
    """A plan may run the subquery once for each row of the table. It must not choose other rows each time."""
    with connection.cursor() as cursor:
        for plan in ("hashjoin", "mergejoin", "hashagg", "sort", "material"):
            cursor.execute(f"SET LOCAL enable_{plan} = off")
    for state in [State.PUBLISHED, State.PENDING] * 5:
        make_reply(state=state, at=clock.at, published_at=clock.at, node="x", message_hash=bytes(32))
    clock.goes(2 * LATE.total_seconds())
    assert len(take_up_unconfirmed(limit=3, now=clock.at)) == 3
    assert len(claim_pending(limit=3, now=clock.at)) == 3
    clock.goes(publishing.GIVE_UP_AFTER.total_seconds())
    assert give_up(limit=3, now=clock.at) == 3


def test_a_reply_that_waited_too_long_for_the_stores_is_closed_without_a_query(clock):
    reply = make_published(clock)
    process = OutboxProcess([], [store := Store()])
    late = Checked(reply.pk, bytes(32), "x", 0, clock.at, reply.envelope_hash)
    process.outbox.confirmations.expect([late], at=clock.at)
    clock.goes(GIVE_UP_AFTER.total_seconds() + 1, process)
    assert (fresh(reply).state, store.asked) == (State.UNCONFIRMED, [])


def test_a_reply_that_got_the_id_of_another_after_a_fail_over_is_not_closed_for_it(clock):
    reply = make_published(clock, next_attempt_at=clock.at + LATE)
    other = Checked(reply.pk, bytes(32), "x", MAX_REPEATS, clock.at - GIVE_UP_AFTER, bytes(32))
    young = replace(other, repeat_count=0, published_at=clock.at)
    for verdict in Verdict:
        assert record_verdicts([(other, verdict)], now=clock.at) == []
        record_verdicts([(young, verdict)], now=clock.at)
    assert (fresh(reply).state, fresh(reply).payload) == (State.PUBLISHED, reply.payload)


def test_a_refused_reply_does_not_change_one_that_got_its_id_after_a_fail_over(clock):
    reply = make_reply(state="pending", at=clock.at, published_at=clock.at)
    refused = Outgoing(reply.pk, "", "", b"", 0, clock.at)
    for envelope_hash, state in ((bytes(32), State.PENDING), (reply.envelope_hash, State.PUBLISHED)):
        record_refused([refused._replace(envelope_hash=envelope_hash)], now=clock.at)
        assert fresh(reply).state == state


@pytest.mark.parametrize("is_old", [False, True])
def test_a_lost_publication_is_repeated_with_the_same_bytes_while_stores_take_them(start, clock, published, is_old):
    [node] = start(1)
    lose_the_next(node)
    reply, process = published(node, timestamp_ns=time.time_ns() - 14 * SECOND_NS * is_old)
    OutboundReply.objects.update(timestamp_ns=F("timestamp_ns") - 2 * SECOND_NS * is_old)
    lost = fresh(reply)
    assert (lost.state, node.has(lost.message_hash)) == (State.PUBLISHED, False)
    clock.goes(ASKED_AFTER, process)
    again = fresh(reply)
    assert (again.payload, again.content_topic) == (lost.payload, lost.content_topic)
    assert (again.message_hash == lost.message_hash, again.timestamp_ns == lost.timestamp_ns) == (
        not is_old,
        not is_old,
    )
    assert time.time_ns() - again.timestamp_ns < 10 * SECOND_NS
    assert (again.state, again.published_at) == (State.PUBLISHED, clock.at)
    clock.goes(6 + 2, process)
    assert (fresh(reply).state, fresh(reply).repeat_count) == (State.CONFIRMED, 1)
    assert node.stats()["archived"] == 1


def test_where_every_node_refuses_a_repetition_the_stores_decide(start, clock, published):
    """A store may have been late with the message."""
    [node] = start(1)
    node.fails(archive_delay_ms=300)
    reply, process = published(node)
    node.fails(no_peers=True)
    clock.goes(ASKED_AFTER, process)
    assert fresh(reply).state == State.PUBLISHED
    gossiped(node, node, reply)
    clock.goes(20, process)
    assert fresh(reply).state == State.CONFIRMED
    assert node.stats()["published"] == 1


def test_repetitions_of_a_reply_have_a_limit_and_each_waits_longer_for_its_query(start, clock, published):
    [node] = start(1)
    node.fails(archive_refuses=True)
    reply, process = published(node)
    waits = []
    for _ in range(MAX_REPEATS + 1):
        waits.append(round((fresh(reply).next_attempt_at - fresh(reply).published_at).total_seconds()))
        clock.goes_to(fresh(reply).next_attempt_at + timedelta(seconds=2), process)
    assert waits == [3, 6, 12, 24, 48]
    row = fresh(reply)
    assert (row.state, row.payload, row.repeat_count) == (State.UNCONFIRMED, None, MAX_REPEATS)
    assert row.attempt_count == MAX_REPEATS + 1


def test_a_batch_repeats_a_limited_number_of_lost_replies(start, clock, monkeypatch):
    monkeypatch.setattr(confirming, "MAX_REPEATS_PER_RUN", 2)
    [node] = start(1)
    for number in range(5):
        make_published(clock, number, node=node.url)
    process = OutboxProcess(wakus([node]), wakus([node]))
    repeated = []
    for seconds in (LATE.total_seconds(), 1, 3, 4, 60):
        clock.goes(seconds, process)
        repeated.append(node.stats()["published"])
    assert repeated == [2, 2, 4, 5, 5]


# Stores that do not answer --------------------------------------------------------------------------------------------


REFUSALS = ["store_no_peer", "store_rate_limited", "store_too_many_requests"]


@pytest.mark.parametrize("trouble", [*REFUSALS, "unreachable", "no store", "no repetition"])
def test_a_reply_without_a_verdict_is_closed_after_a_minute(start, clock, published, monkeypatch, trouble):
    node, store = start(2)
    if trouble == "unreachable":
        store.stop()
    elif trouble == "no repetition":  # others are repeated before it
        monkeypatch.setattr(confirming, "MAX_REPEATS_PER_RUN", 0)
        store.fails(archive_refuses=True)
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
    monkeypatch.setattr("waku_bridge.node.client.monotonic", lambda: seconds)
    stores = Nodes([Store()])
    stores.failed(stores.in_order()[0], Busy("slow down"))
    seconds += 59
    assert stores.trusted() == []
    seconds += 1
    assert len(stores.trusted()) == 1


def test_two_stores_are_queried_and_the_taker_only_when_there_are_no_others(start, clock, published):
    taker, second, third = start(3)
    reply, process = published(taker, stores=[taker, second, third])
    for other in (second, third):
        gossiped(taker, other, reply)
    taker.fails(store_no_peer=1)
    clock.goes(ASKED_AFTER, process)
    assert fresh(reply).state == State.CONFIRMED
    assert taker.node.faults.store_no_peer == 1  # no query reached this fault


def test_a_fault_of_ours_during_a_query_leads_to_no_verdict(clock):
    class Broken(Store):
        async def known(self, hashes):
            if not self.asked:
                self.asked = [0]
                raise KeyError
            return await super().known(hashes)

    make_published(clock)
    process = OutboxProcess([], [Broken()])
    clock.goes(LATE.total_seconds(), process)
    assert OutboundReply.objects.get().state == State.PUBLISHED
    clock.goes(ASKED_AFTER, process)
    assert OutboundReply.objects.get().state == State.CONFIRMED


# Nodes that fail ------------------------------------------------------------------------------------------------------


def test_a_reply_waits_for_the_peers_of_the_only_node_whose_store_would_confirm_it(start, clock, published):
    """Relay answers OK without peers, and keeps the message in the store of the node itself."""
    [node] = start(1)
    node.fails(no_peers=True)
    reply, process = published(node)
    assert fresh(reply).state == State.PENDING
    assert node.stats()["archived"] == 0
    node.fails(no_peers=False)
    for seconds in (10, ASKED_AFTER):
        clock.goes(seconds, process)
    assert (fresh(reply).state, node.stats()["published"]) == (State.CONFIRMED, 1)


@pytest.mark.parametrize(("fault", "by_first"), [({"no_peers": True}, 0), ({"cut_after_publish": 1}, 1)])
def test_a_node_without_peers_or_with_a_lost_answer_makes_no_second_message(start, published, fault, by_first):
    first, second = start(2)
    first.fails(**fault)
    reply, _ = published(first, second)
    assert (fresh(reply).node, first.stats()["published"]) == (second.url, by_first)
    gossiped(second, first, reply)
    assert (first.stats()["archived"], second.stats()["archived"]) == (1, 1)


# Crashes --------------------------------------------------------------------------------------------------------------


def test_another_worker_queries_a_reply_when_its_own_worker_does_not(start, clock, published):
    [node] = start(1)
    reply, _ = published(node)
    other = OutboxProcess([], wakus([node]))
    clock.goes(3 + LATE.total_seconds() - 0.1, other)
    assert fresh(reply).state == State.PUBLISHED
    clock.goes(0.1, other)
    assert fresh(reply).state == State.CONFIRMED


def test_a_reply_that_its_worker_queries_is_not_taken_over(start, clock, published):
    node, store = start(2)
    store.stop()
    reply, process = published(node, stores=[store])
    for _ in range(5):
        clock.goes(LATE.total_seconds(), process)
        OutboxProcess([], wakus([node])).works()
        assert fresh(reply).state == State.PUBLISHED


def test_queries_by_two_workers_lead_to_one_repetition(start, clock, published):
    [node] = start(1)
    lose_the_next(node)
    _, process = published(node)
    clock.goes(3 + LATE.total_seconds())
    other = OutboxProcess(wakus([node]), wakus([node]))
    for each in (other, process, other):
        each.process_batch()
    for each in (other, process):
        each.works()
    assert node.stats()["published"] == 2
