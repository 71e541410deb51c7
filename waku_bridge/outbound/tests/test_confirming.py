"""Confirmation: published replies are queried at the stores, and published again only while that can help.

The tests use development nodes with real faults, and the batches of a worker process. Only its clock is moved.
"""

import time
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import connection

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


def fresh(reply):
    return OutboundReply.objects.get(pk=reply.pk)


def gossiped(source, target, reply):
    """Wait until the other node has the reply, because gossip is not instantaneous."""
    deadline = time.monotonic() + 10
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
    clock.goes(ASKED_AFTER)
    process.works()
    assert [row.state for row in OutboundReply.objects.all()] == [State.CONFIRMED]
    assert fresh(kept).state == State.CONFIRMED


def test_a_reply_that_is_discarded_is_published_again_and_leaves_no_row_when_it_is_given_up(start, clock, published):
    nodes = start(1)
    lose_the_next(nodes[0])
    reply, process = published(*nodes, is_discarded=True)
    clock.goes(ASKED_AFTER)
    process.works()
    assert fresh(reply).repeat_count == 1
    nodes[0].stop()
    clock.goes(GIVE_UP_AFTER.total_seconds() + LATE.total_seconds())
    process.works()
    clock.goes(publishing.GIVE_UP_AFTER.total_seconds())
    process.works()
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
def test_a_reply_that_needs_no_confirmation_ends_when_a_node_takes_it_and_is_published_once(
    is_discarded, start, clock, published
):
    nodes = start(1)
    lose_the_next(nodes[0])
    at = clock.at
    _, process = published(*nodes, needs_confirmation=False, is_discarded=is_discarded)
    rows = OutboundReply.objects.values_list("state", "payload", "published_at", "node", "confirmed_at", "ended_on")
    expected = [] if is_discarded else [(State.UNCONFIRMED, None, at, nodes[0].url, None, at.date())]
    for _ in range(3):
        assert list(rows) == expected
        clock.goes(ASKED_AFTER)
        process.works()
    assert nodes[0].stats()["published"] == 1
    assert not OutboundReply.objects.filter(models.LOST_REPLIES).exists()


def test_a_reply_that_needs_no_confirmation_is_offered_again_until_a_node_takes_it(start, clock, published):
    nodes = start(1)
    nodes[0].fails(publish_fails=2)
    reply, process = published(*nodes, needs_confirmation=False)
    for wait in (0, 10, 20):
        assert fresh(reply).state == State.PENDING if wait < 20 else State.UNCONFIRMED
        clock.goes(wait)
        process.works()
    assert fresh(reply).state == State.UNCONFIRMED


# Replies that the stores have -----------------------------------------------------------------------------------------


def test_a_reply_that_a_store_has_is_confirmed_and_its_payload_dropped(start, clock, published):
    reply, process = published(*(nodes := start(1)))
    clock.goes(2)
    process.works()
    assert fresh(reply).state == State.PUBLISHED
    clock.goes(3)
    process.works()
    row = fresh(reply)
    assert (row.state, row.payload, row.confirmed_at) == (State.CONFIRMED, None, clock.at)
    assert nodes[0].has(row.message_hash)
    assert State(row.state).is_terminal


def test_the_store_of_another_node_confirms_a_reply(start, clock, published):
    first, second = start(2)
    reply, process = published(first, second)
    gossiped(first, second, reply)
    clock.goes(ASKED_AFTER)
    process.works()
    assert fresh(reply).state == State.CONFIRMED


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
        make_reply(state="published", at=clock.at, published_at=clock.at, node="x", message_hash=number.to_bytes(32))
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
        make_reply(state="published", at=clock.at, published_at=clock.at, node="x", message_hash=number.to_bytes(32))
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
    reply = make_reply(state="published", at=clock.at, published_at=clock.at, node="x", message_hash=bytes(32))
    process = OutboxProcess([], [store := Store()])
    late = Checked(reply.pk, bytes(32), "x", 0, clock.at, reply.envelope_hash)
    process.outbox.confirmations.expect([late], at=clock.at)
    clock.goes(GIVE_UP_AFTER.total_seconds() + 1)
    process.works()
    assert (fresh(reply).state, store.asked) == (State.UNCONFIRMED, [])


def test_a_reply_that_got_the_id_of_another_after_a_fail_over_is_not_closed_for_it(clock):
    reply = make_reply(state="published", at=clock.at, published_at=clock.at, next_attempt_at=clock.at + LATE)
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


def test_a_lost_publication_is_repeated_with_the_same_bytes(start, clock, published):
    [node] = start(1)
    lose_the_next(node)
    reply, process = published(node)
    lost = fresh(reply)
    assert (lost.state, node.has(lost.message_hash)) == (State.PUBLISHED, False)
    clock.goes(ASKED_AFTER)
    process.works()
    again = fresh(reply)
    assert (again.message_hash, again.timestamp_ns) == (lost.message_hash, lost.timestamp_ns)
    assert (again.state, again.published_at) == (State.PUBLISHED, clock.at)
    assert node.has(again.message_hash)
    clock.goes(6 + 2)
    process.works()
    assert (fresh(reply).state, fresh(reply).repeat_count) == (State.CONFIRMED, 1)


def test_after_the_archive_window_a_repeated_reply_is_a_new_message_with_the_same_content(start, clock, published):
    [node] = start(1)
    lose_the_next(node)
    reply, process = published(node, timestamp_ns=time.time_ns() - 14 * SECOND_NS)
    lost = fresh(reply)
    OutboundReply.objects.update(timestamp_ns=lost.timestamp_ns - 2 * SECOND_NS)
    clock.goes(ASKED_AFTER)
    process.works()
    again = fresh(reply)
    assert again.message_hash != lost.message_hash
    assert (again.payload, again.content_topic) == (lost.payload, lost.content_topic)
    assert time.time_ns() - again.timestamp_ns < 10 * SECOND_NS
    clock.goes(6 + 2)
    process.works()
    assert fresh(reply).state == State.CONFIRMED
    assert node.stats()["archived"] == 1


def test_a_reply_that_its_node_did_not_forward_is_published_by_another_node(start, clock, published):
    first, second = start(2)
    first.fails(gossip_lost=1)
    reply, process = published(first, second)
    assert first.has(fresh(reply).message_hash)
    clock.goes(ASKED_AFTER)
    process.works()
    assert fresh(reply).node == second.url
    clock.goes(6 + 2)
    process.works()
    assert fresh(reply).state == State.CONFIRMED


def test_where_every_node_refuses_a_repetition_the_stores_decide(start, clock, published):
    """A store may have been late with the message."""
    [node] = start(1)
    node.fails(archive_delay_ms=300)
    reply, process = published(node)
    node.fails(no_peers=True)
    clock.goes(ASKED_AFTER)
    process.works()
    assert fresh(reply).state == State.PUBLISHED
    gossiped(node, node, reply)
    clock.goes(20)
    process.works()
    assert fresh(reply).state == State.CONFIRMED
    assert node.stats()["published"] == 1


def test_repetitions_of_a_reply_have_a_limit(start, clock, published):
    [node] = start(1)
    node.fails(archive_refuses=True)
    reply, process = published(node)
    checks = 0
    while not State(fresh(reply).state).is_terminal:
        clock.goes(60)
        process.works()
        checks += 1
        assert checks < 100
    row = fresh(reply)
    assert (row.state, row.payload, row.repeat_count) == (State.UNCONFIRMED, None, MAX_REPEATS)
    assert row.attempt_count == MAX_REPEATS + 1


def test_each_repetition_waits_longer_for_its_query(start, clock, published):
    [node] = start(1)
    node.fails(archive_refuses=True)
    reply, process = published(node)
    waits = []
    for _ in range(MAX_REPEATS + 1):
        waits.append(round((fresh(reply).next_attempt_at - fresh(reply).published_at).total_seconds()))
        clock.goes_to(fresh(reply).next_attempt_at + timedelta(seconds=2))
        process.works()
    assert waits == [3, 6, 12, 24, 48]


def test_a_batch_repeats_a_limited_number_of_lost_replies(start, clock, monkeypatch):
    monkeypatch.setattr(confirming, "MAX_REPEATS_PER_RUN", 2)
    [node] = start(1)
    for number in range(5):
        make_reply(
            state="published", at=clock.at, published_at=clock.at, node=node.url, message_hash=number.to_bytes(32)
        )
    process = OutboxProcess(wakus([node]), wakus([node]))
    repeated = []
    for seconds in (LATE.total_seconds(), 1, 3, 4, 60):
        clock.goes(seconds)
        process.works()
        repeated.append(node.stats()["published"])
    assert repeated == [2, 2, 4, 5, 5]


def test_a_lost_reply_that_cannot_be_repeated_within_a_minute_is_given_up(start, clock, published, monkeypatch):
    monkeypatch.setattr(confirming, "MAX_REPEATS_PER_RUN", 0)
    [node] = start(1)
    node.fails(archive_refuses=True)
    reply, process = published(node)
    clock.goes(ASKED_AFTER)
    process.works()
    assert fresh(reply).state == State.PUBLISHED
    clock.goes(60)
    process.works()
    assert (fresh(reply).state, fresh(reply).payload) == (State.UNCONFIRMED, None)


# Stores that do not answer --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["store_no_peer", "store_rate_limited", "store_too_many_requests"])
def test_a_store_that_refuses_a_query_leads_to_no_repetition(start, clock, published, fault):
    node, store = start(2)
    store.fails(**{fault: True})
    reply, process = published(node, stores=[store])
    for _ in range(4):
        clock.goes(12)
        process.works()
        assert fresh(reply).state == State.PUBLISHED
    clock.goes(22)
    process.works()
    assert (fresh(reply).state, fresh(reply).payload) == (State.UNCONFIRMED, None)
    assert node.stats()["published"] == 1


def test_an_unreachable_store_leads_to_no_verdict_until_it_is_back(start, clock, published):
    node, store = start(2)
    store.stop()
    reply, process = published(node, stores=[store])
    clock.goes(ASKED_AFTER)
    process.works()
    assert fresh(reply).state == State.PUBLISHED
    clock.goes(20)
    OutboxProcess([], wakus([node])).works()
    assert fresh(reply).state == State.CONFIRMED


def test_a_store_that_failed_a_moment_ago_gets_no_query(start, clock, published):
    [node] = start(1)
    node.fails(store_no_peer=1)
    reply, process = published(node)
    for _ in "12":
        clock.goes(ASKED_AFTER)
        process.works()
        assert fresh(reply).state == State.PUBLISHED


def test_a_store_that_limits_our_rate_gets_no_query_for_a_minute(monkeypatch):
    seconds = 1000.0
    monkeypatch.setattr("waku_bridge.node.client.monotonic", lambda: seconds)
    stores = Nodes([Store()])
    stores.failed(stores.in_order()[0], Busy("slow down"))
    seconds += 59
    assert stores.trusted() == []
    seconds += 1
    assert len(stores.trusted()) == 1


def test_without_any_store_replies_are_closed_after_a_minute(start, clock, published):
    reply, process = published(*start(1), stores=[])
    clock.goes(ASKED_AFTER)
    process.works()
    assert fresh(reply).state == State.PUBLISHED
    clock.goes(60)
    process.works()
    assert fresh(reply).state == State.UNCONFIRMED


def test_two_stores_are_queried_and_the_taker_only_when_there_are_no_others(start, clock, published):
    taker, second, third = start(3)
    reply, process = published(taker, stores=[taker, second, third])
    for other in (second, third):
        gossiped(taker, other, reply)
    taker.fails(store_no_peer=1)
    clock.goes(ASKED_AFTER)
    process.works()
    assert fresh(reply).state == State.CONFIRMED
    assert taker.faults()["store_no_peer"] == 1  # no query reached this fault


def test_a_fault_of_ours_during_a_query_leads_to_no_verdict(clock):
    class Broken(Store):
        async def known(self, hashes):
            if not self.asked:
                self.asked = [0]
                raise KeyError
            return await super().known(hashes)

    make_reply(state="published", at=clock.at, published_at=clock.at, node="x", message_hash=b"h" * 32)
    process = OutboxProcess([], [Broken()])
    clock.goes(LATE.total_seconds())
    process.works()
    assert OutboundReply.objects.get().state == State.PUBLISHED
    clock.goes(ASKED_AFTER)
    process.works()
    assert OutboundReply.objects.get().state == State.CONFIRMED


# Nodes that fail ------------------------------------------------------------------------------------------------------


def test_when_the_first_node_is_down_the_second_publishes_and_confirms(start, clock, published):
    first, second = start(2)
    first.stop()
    reply, process = published(first, second)
    assert (fresh(reply).state, fresh(reply).node) == (State.PUBLISHED, second.url)
    clock.goes(ASKED_AFTER)
    process.works()
    assert fresh(reply).state == State.CONFIRMED


def test_a_node_without_peers_has_not_published(start, published):
    first, second = start(2)
    first.fails(no_peers=True)
    reply, _ = published(first, second)
    assert fresh(reply).node == second.url
    assert first.stats()["published"] == 0


def test_a_reply_waits_for_the_peers_of_the_only_node_whose_store_would_confirm_it(start, clock, published):
    """Relay answers OK without peers, and keeps the message in the store of the node itself."""
    [node] = start(1)
    node.fails(no_peers=True)
    reply, process = published(node)
    assert fresh(reply).state == State.PENDING
    assert node.stats()["archived"] == 0
    node.fails(no_peers=False)
    for seconds in (10, ASKED_AFTER):
        clock.goes(seconds)
        process.works()
    assert (fresh(reply).state, node.stats()["published"]) == (State.CONFIRMED, 1)


def test_a_lost_answer_of_a_node_makes_no_second_message(start, published):
    first, second = start(2)
    first.fails(cut_after_publish=1)
    reply, _ = published(first, second)
    assert fresh(reply).node == second.url
    gossiped(second, first, reply)
    assert (first.stats()["archived"], second.stats()["archived"]) == (1, 1)


# Crashes --------------------------------------------------------------------------------------------------------------


def test_another_worker_queries_a_reply_when_its_own_worker_does_not(start, clock, published):
    [node] = start(1)
    reply, _ = published(node)
    other = OutboxProcess([], wakus([node]))
    clock.goes(3 + LATE.total_seconds() - 0.1)
    other.works()
    assert fresh(reply).state == State.PUBLISHED
    clock.goes(0.1)
    other.works()
    assert fresh(reply).state == State.CONFIRMED


def test_a_reply_that_its_worker_queries_is_not_taken_over(start, clock, published):
    node, store = start(2)
    store.stop()
    reply, process = published(node, stores=[store])
    for _ in range(5):
        clock.goes(LATE.total_seconds())
        process.works()
        OutboxProcess([], wakus([node])).works()
        assert fresh(reply).state == State.PUBLISHED


def test_a_repetition_whose_worker_dies_is_published_by_another(start, clock, published):
    [node] = start(1)
    lose_the_next(node)
    reply, _ = published(node)
    OutboundReply.objects.update(state=State.PENDING, repeat_count=1, next_attempt_at=clock.at)
    OutboxProcess(wakus([node])).works()
    assert node.has(fresh(reply).message_hash)


def test_a_worker_that_dies_between_node_and_database_repeats_the_same_bytes(start, clock, published):
    [node] = start(1)
    reply, _ = published(node)
    before = fresh(reply)
    # The state after a claim whose worker died: the node has the message, and the row does not show it.
    OutboundReply.objects.update(state=State.PENDING, published_at=None, message_hash=None, node="")
    OutboundReply.objects.update(next_attempt_at=clock.at + timedelta(seconds=10))
    clock.goes(10)
    OutboxProcess(wakus([node])).works()
    assert fresh(reply).message_hash == before.message_hash
    assert node.stats()["archived"] == 1


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
