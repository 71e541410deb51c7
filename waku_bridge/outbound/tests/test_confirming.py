"""Replies that a node took are looked for at the stores, and published again only while that can help.

Against real development nodes with real faults; only the clock of the use cases is moved.
"""

import time
from datetime import timedelta

import pytest
from django.utils import timezone

from tests.factories import make_reply
from waku_bridge import tasks
from waku_bridge.models import OutboundReply
from waku_bridge.node import Busy
from waku_bridge.outbound import Nodes, confirm, confirming, hand_out_left_behind, publish
from waku_bridge.outbound.confirming import HASHES_PER_QUERY, MAX_REPEATS, Verdict, judge

NOW = timezone.now()
PATIENCE = timedelta(seconds=30)
SECOND_NS = 10**9
State = OutboundReply.State
pytestmark = pytest.mark.django_db


def nodes(*devnodes):
    return Nodes(node.waku for node in devnodes)


def published(*devnodes, **fields):
    """A reply that these nodes were given, the first of them first."""
    reply = make_reply(at=NOW, **fields)
    publish([reply.pk], nodes(*devnodes), now=NOW)
    return reply


def fresh(reply):
    return OutboundReply.objects.get(pk=reply.pk)


def after(seconds):
    return NOW + timedelta(seconds=seconds)


def gossiped(source, target, reply):
    """Wait until the other node has it: gossip is not instantaneous."""
    deadline = time.monotonic() + 10
    while not target.has(fresh(reply).message_hash):
        assert time.monotonic() < deadline, "no gossip"
        time.sleep(0.02)


def lose_the_next(node):
    """As nwaku's relay route does when no peer listens: OK, and the message is nowhere."""
    node.fails(lightpush_absent=1, no_peers=1)


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
        ({"taker": True, "other": False}, Verdict.MISSING),  # it told nobody
        ({"other": False, "third": True}, Verdict.CONFIRMED),
    ],
)
def test_judges_by_what_stores_say_and_by_the_taker_only_when_it_is_alone(known_by, verdict):
    assert judge("taker", known_by) == verdict


# What the stores have -------------------------------------------------------------------------------------------------


def test_a_reply_that_a_store_has_is_confirmed_and_forgotten(start):
    [node] = start(1)
    reply = published(node)
    assert confirm(nodes(node), now=after(2)) == []
    assert fresh(reply).state == State.PUBLISHED
    assert confirm(nodes(node), now=after(4)) == []
    row = fresh(reply)
    assert (row.state, row.payload, row.confirmed_at) == (State.CONFIRMED, None, after(4))
    assert node.has(row.message_hash)
    assert State(row.state).is_terminal


def test_another_store_says_that_the_network_has_it(start):
    first, second = start(2)
    reply = published(first, second)
    gossiped(first, second, reply)
    confirm(nodes(first, second), now=after(4))
    assert fresh(reply).state == State.CONFIRMED


def test_many_replies_are_asked_for_together(django_assert_max_num_queries):
    class Store:
        url = name = "http://store"
        asked = ()

        async def known(self, hashes):
            self.asked = (*self.asked, len(hashes))
            return set(hashes)

    for number in range(HASHES_PER_QUERY + 50):
        make_reply(state="published", at=NOW, published_at=NOW, node="x", message_hash=number.to_bytes(32))
    store = Store()
    with django_assert_max_num_queries(2):
        confirm(Nodes([store]), now=after(4))
    assert store.asked == (HASHES_PER_QUERY, 50)
    assert OutboundReply.objects.filter(state=State.CONFIRMED).count() == HASHES_PER_QUERY + 50


# What they lack -------------------------------------------------------------------------------------------------------


def test_a_lost_publication_is_repeated_with_the_same_bytes(start):
    [node] = start(1)
    lose_the_next(node)
    reply = published(node)
    lost = fresh(reply)
    assert (lost.state, node.has(lost.message_hash)) == (State.PUBLISHED, False)
    assert confirm(nodes(node), now=after(4)) == [reply.pk]
    assert fresh(reply).state == State.PENDING
    publish([reply.pk], nodes(node), now=after(4))
    again = fresh(reply)
    assert (again.message_hash, again.timestamp_ns) == (lost.message_hash, lost.timestamp_ns)
    assert node.has(again.message_hash)
    assert confirm(nodes(node), now=after(20)) == []
    assert (fresh(reply).state, fresh(reply).repeat_count) == (State.CONFIRMED, 1)


def test_after_the_archive_window_it_is_a_new_message_with_the_same_content(start):
    [node] = start(1)
    lose_the_next(node)
    reply = published(node, timestamp_ns=time.time_ns() - 14 * SECOND_NS)
    lost = fresh(reply)
    confirm(nodes(node), now=after(4))
    OutboundReply.objects.update(timestamp_ns=lost.timestamp_ns - 2 * SECOND_NS)
    publish([reply.pk], nodes(node), now=after(4))
    again = fresh(reply)
    assert again.message_hash != lost.message_hash
    assert (again.payload, again.content_topic) == (lost.payload, lost.content_topic)
    assert time.time_ns() - again.timestamp_ns < 10 * SECOND_NS
    confirm(nodes(node), now=after(20))
    assert fresh(reply).state == State.CONFIRMED
    assert node.stats()["archived"] == 1


def test_what_the_taker_kept_for_itself_goes_out_by_another_node(start):
    first, second = start(2)
    first.fails(gossip_lost=1)
    reply = published(first, second)
    assert first.has(fresh(reply).message_hash)
    both = nodes(first, second)
    assert confirm(both, now=after(4)) == [reply.pk]
    publish([reply.pk], both, now=after(4))
    assert fresh(reply).node == second.url
    confirm(both, now=after(20))
    assert fresh(reply).state == State.CONFIRMED


def test_where_every_node_refuses_a_repetition_the_stores_decide(start):
    """A node may say that it reached nobody because everybody has seen it: a store that was late has it then."""
    [node] = start(1)
    node.fails(archive_delay_ms=300)
    reply = published(node)
    confirm(nodes(node), now=after(4))
    node.fails(no_peers=True)
    publish([reply.pk], nodes(node), now=after(4))
    assert fresh(reply).state == State.PUBLISHED
    gossiped(node, node, reply)
    confirm(nodes(node), now=after(20))
    assert fresh(reply).state == State.CONFIRMED
    assert node.stats()["published"] == 1


def test_nothing_is_published_again_for_ever(start):
    [node] = start(1)
    node.fails(archive_refuses=True)
    reply = published(node)
    at, checks = after(4), 0
    while not State(fresh(reply).state).is_terminal:
        publish(confirm(nodes(node), now=at), nodes(node), now=at)
        at, checks = at + timedelta(seconds=60), checks + 1
        assert checks < 100
    row = fresh(reply)
    assert (row.state, row.payload, row.repeat_count) == (State.UNCONFIRMED, None, MAX_REPEATS)
    assert row.attempt_count == MAX_REPEATS + 1


def test_each_repetition_is_given_more_time(start):
    [node] = start(1)
    node.fails(archive_refuses=True)
    reply = published(node)
    at, waits = NOW, []
    for _ in range(MAX_REPEATS + 1):
        waits.append(round((fresh(reply).next_attempt_at - fresh(reply).published_at).total_seconds()))
        at = max(at, fresh(reply).next_attempt_at)
        publish(confirm(nodes(node), now=at), nodes(node), now=at)
    assert waits == [3, 6, 12, 24, 48]


def test_when_all_is_lost_only_some_go_out_again_at_once(start, monkeypatch):
    monkeypatch.setattr(confirming, "MAX_REPEATS_PER_RUN", 2)
    [node] = start(1)
    for number in range(5):
        make_reply(state="published", at=NOW, published_at=NOW, node=node.url, message_hash=number.to_bytes(32))
    assert len(confirm(nodes(node), now=after(4))) == 2
    assert confirm(nodes(node), now=after(5)) == []
    assert len(confirm(nodes(node), now=after(20))) == 2
    assert confirm(nodes(node), now=after(70)) != []
    assert OutboundReply.objects.filter(state=State.PUBLISHED).count() == 0


def test_what_finds_no_room_within_a_minute_is_given_up(start, monkeypatch):
    monkeypatch.setattr(confirming, "MAX_REPEATS_PER_RUN", 0)
    [node] = start(1)
    node.fails(archive_refuses=True)
    reply = published(node)
    assert confirm(nodes(node), now=after(4)) == []
    assert fresh(reply).state == State.PUBLISHED
    assert confirm(nodes(node), now=after(70)) == []
    assert (fresh(reply).state, fresh(reply).payload) == (State.UNCONFIRMED, None)


# Stores that do not answer --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["store_no_peer", "store_rate_limited", "store_too_many_requests"])
def test_a_store_that_refuses_says_nothing_and_nothing_is_repeated(start, fault):
    node, store = start(2)
    store.fails(**{fault: True})
    reply = published(node)
    for seconds in (4, 15, 30, 45):
        assert confirm(nodes(store), now=after(seconds)) == []
        assert fresh(reply).state == State.PUBLISHED
    assert confirm(nodes(store), now=after(70)) == []
    assert (fresh(reply).state, fresh(reply).payload) == (State.UNCONFIRMED, None)
    assert node.stats()["published"] == 1


def test_a_store_that_is_away_says_nothing_and_one_that_is_back_is_believed(start):
    node, store = start(2)
    store.stop()
    reply = published(node)
    assert confirm(nodes(store), now=after(4)) == []
    assert fresh(reply).state == State.PUBLISHED
    assert confirm(nodes(node), now=after(20)) == []
    assert fresh(reply).state == State.CONFIRMED


def test_a_store_that_failed_a_moment_ago_is_left_alone(start):
    [node] = start(1)
    node.fails(store_no_peer=1)
    stores, reply = nodes(node), published(node)
    confirm(stores, now=after(4))
    confirm(stores, now=after(20))
    assert fresh(reply).state == State.PUBLISHED


def test_a_store_that_limits_us_is_left_alone_for_a_minute(monkeypatch):
    class Store:
        url = name = "http://store"

    clock = 1000.0
    monkeypatch.setattr("waku_bridge.outbound.nodes.monotonic", lambda: clock)
    stores = Nodes([Store()])
    stores.failed(stores.in_order()[0], Busy("slow down"))
    clock += 59
    assert stores.trusted() == []
    clock += 1
    assert len(stores.trusted()) == 1


def test_without_any_store_replies_are_closed_after_a_minute(start):
    [node] = start(1)
    reply = published(node)
    assert confirm(Nodes([]), now=after(4)) == []
    assert fresh(reply).state == State.PUBLISHED
    confirm(Nodes([]), now=after(70))
    assert fresh(reply).state == State.UNCONFIRMED


def test_two_stores_are_asked_and_the_taker_only_when_there_are_no_others(start):
    taker, second, third = start(3)
    reply = published(taker)
    for other in (second, third):
        gossiped(taker, other, reply)
    taker.fails(store_no_peer=True)
    stores = nodes(taker, second, third)
    confirm(stores, now=after(4))
    assert fresh(reply).state == State.CONFIRMED
    assert len(stores.trusted()) == 3  # the taker was not asked: it would have failed


# Nodes that fail ------------------------------------------------------------------------------------------------------


def test_when_the_first_node_is_down_the_second_publishes_and_confirms(start):
    first, second = start(2)
    first.stop()
    both = nodes(first, second)
    reply = make_reply(at=NOW)
    publish([reply.pk], both, now=NOW)
    assert (fresh(reply).state, fresh(reply).node) == (State.PUBLISHED, second.url)
    confirm(both, now=after(4))
    assert fresh(reply).state == State.CONFIRMED


def test_a_node_without_peers_has_not_published(start):
    first, second = start(2)
    first.fails(no_peers=True)
    alone = make_reply(at=NOW)
    publish([alone.pk], nodes(first), now=NOW)
    assert fresh(alone).state == State.PENDING
    assert published(first, second).pk
    assert OutboundReply.objects.get(state=State.PUBLISHED).node == second.url
    assert first.stats()["published"] == 0


def test_an_answer_that_got_lost_makes_no_second_message(start):
    first, second = start(2)
    first.fails(cut_after_publish=1)
    reply = published(first, second)
    assert fresh(reply).node == second.url
    gossiped(second, first, reply)
    assert (first.stats()["archived"], second.stats()["archived"]) == (1, 1)


# Crashes --------------------------------------------------------------------------------------------------------------


def test_a_repetition_whose_queue_entry_was_lost_is_found_by_the_sweep(start):
    [node] = start(1)
    lose_the_next(node)
    reply = published(node)
    assert confirm(nodes(node), now=after(4)) == [reply.pk]
    assert hand_out_left_behind(now=after(5), limit=10, patience=PATIENCE) == []
    assert hand_out_left_behind(now=after(14), limit=10, patience=PATIENCE) == [reply.pk]
    publish([reply.pk], nodes(node), now=after(14))
    assert node.has(fresh(reply).message_hash)


def test_a_worker_that_dies_between_node_and_database_repeats_the_same_bytes(start):
    [node] = start(1)
    reply = published(node)
    before = fresh(reply)
    # As the claim left it: the node has it, and nobody wrote that down.
    OutboundReply.objects.update(state=State.PENDING, published_at=None, message_hash=None, node="")
    OutboundReply.objects.update(next_attempt_at=after(10))
    assert hand_out_left_behind(now=after(30), limit=10, patience=PATIENCE) == [reply.pk]
    publish([reply.pk], nodes(node), now=after(30))
    assert fresh(reply).message_hash == before.message_hash
    assert node.stats()["archived"] == 1


def test_asking_twice_publishes_once(start):
    [node] = start(1)
    lose_the_next(node)
    reply = published(node)
    assert confirm(nodes(node), now=after(4)) == [reply.pk]
    assert confirm(nodes(node), now=after(4)) == []
    publish([reply.pk, reply.pk], nodes(node), now=after(4))
    publish([reply.pk], nodes(node), now=after(4))
    assert node.stats()["published"] == 1


def test_the_task_runs_where_no_node_is_configured():
    reply = make_reply(state="published", at=NOW, published_at=NOW - timedelta(minutes=2), message_hash=b"h" * 32)
    tasks.confirm_replies()
    assert fresh(reply).state == State.UNCONFIRMED
