"""The live path: pages are stored, and no message is lost when a node, Redis or the database fails."""

import asyncio
import os
from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest
from django.core.cache import cache
from django.db import InterfaceError, OperationalError
from django.utils import timezone
from structlog.testing import capture_logs

from kit.db.clock import clock
from kit.processes.leader import Term
from tests.rig.conversation import CLIENT, PUBSUB_TOPIC
from tests.rig.rows import make_watermark
from waku_bridge.inbox import inbox
from waku_bridge.inbox.inbox import Path
from waku_bridge.models import DeadLetter, InboundEnvelope
from waku_bridge.node import NodeError, Unreachable, to_json
from waku_bridge.node.config_check import pages as page_lengths
from waku_bridge.node.config_check.readings import LongestPage
from waku_bridge.node.config_check.rules import about_clock
from waku_bridge.node.config_check.saved import NOTICES
from waku_bridge.query_topics import listen_to
from waku_bridge.reading import live
from waku_bridge.reading.live import LastRead, clock_of
from waku_bridge.reading.pace import IDLE_SECONDS
from waku_bridge.reading.tests.conftest import FOREIGN, QUERIED, RING_CAPACITY, listening, message, messages

NODE = "http://node.example:8645"


async def read(world, reader, times=1):
    return [await reader._read_once(world.term) for _ in range(times)]


def failing(world, monkeypatch, *errors):
    """Have the database fail with each of these errors in turn."""
    errors, execute = list(errors), world.session.execute

    async def fail(*statement, **options):
        if errors:
            raise errors.pop(0)
        return await execute(*statement, **options)

    monkeypatch.setattr(world.session, "execute", fail)
    return errors


def test_all_new_envelopes_of_a_page_are_stored(run):
    async def scenario(world):
        ours = world.publish(*messages(3), message(FOREIGN))[:3]
        pauses = await read(world, world.live(), times=2)
        assert await world.paths() == dict.fromkeys(ours, "live")
        assert world.new == ours
        assert 0 < pauses[1] <= IDLE_SECONDS

    run(scenario)


def test_a_page_is_announced_once_and_only_with_new_envelopes(run):
    async def scenario(world):
        known, last = messages(3), message()
        async with listening() as heard:
            for each in (known, known, [message(FOREIGN)], [], [*known, last]):
                page = [to_json(one) for one in each]
                await read(world, world.live(Answering(page)))
            async with asyncio.timeout(10):
                while len(heard) < 2:  # noqa: ASYNC110 - the database has no events
                    await asyncio.sleep(0.01)
        assert len(heard) == 2, "the first page and the last one, whose announcement follows all others"
        assert len(world.new) == 4

    run(scenario)


def test_a_query_about_a_user_registered_before_the_page_was_fetched_is_taken(run):
    async def scenario(world):
        await asyncio.to_thread(listen_to, [CLIENT.key_hash], now=timezone.now())
        [query, _] = world.publish(message(QUERIED), message(FOREIGN))
        await read(world, world.live())
        assert world.new == [query]

    run(scenario)


def test_a_page_is_selected_again_for_topics_that_become_ours_meanwhile(run, monkeypatch):
    """Anybody can register at any time."""

    async def scenario(world):
        inserted = []
        insert = world.intake._insert

        async def register_and_insert(envelopes, *args):
            new = await insert(envelopes, *args)
            inserted.append([envelope.hash for envelope in envelopes])
            if len(inserted) == 1:
                await asyncio.to_thread(listen_to, [CLIENT.key_hash], now=timezone.now())
            await world.session.execute("SELECT 1")  # it brings the new topic
            return new

        monkeypatch.setattr(world.intake, "_insert", register_and_insert)
        own, query = world.publish(message(), message(QUERIED))
        await world.live()._read_once(world.term)
        assert inserted == [[own], [query]]
        assert world.new == [own, query]

    run(scenario)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (None, "malformed"),
        ({"contentTopic": 5}, "malformed"),
        (to_json(message()) | {"payload": "no base64!"}, "malformed"),
        (to_json(message()) | {"version": 0}, "wrong_version"),
        (to_json(message()) | {"timestamp": 1}, "wrong_time"),
        (to_json(message()) | {"payload": ""}, "wrong_size"),
    ],
)
def test_an_unreadable_message_becomes_a_dead_letter_and_others_of_its_page_are_taken(run, broken, reason):
    async def scenario(world):
        good = [to_json(each) for each in messages(2)]
        reader = world.live(Answering([good[0], broken, good[1]], [broken]))
        await read(world, reader, times=2)
        assert len(world.new) == 2
        letter = await asyncio.to_thread(DeadLetter.objects.get)
        assert (letter.reason, letter.path) == (reason, "live")

    run(scenario)


class Answering:
    """A node that answers reads with these answers in turn."""

    url = "http://127.0.0.1:1"
    skew_seconds = None

    def __init__(self, *answers):
        self.answers = list(answers)

    async def read(self, _pubsub_topic):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def subscribe(self, _pubsub_topic):
        return None


def test_the_lengths_of_pages_are_noted_for_the_config_check(run):
    async def scenario(world):
        reader = world.live(Answering([to_json(message(FOREIGN))] * 50, []))
        await read(world, reader, times=2)
        assert page_lengths.longest(Answering.url) == LongestPage(50, 1)

    cache.clear()
    run(scenario)
    cache.clear()


# What breaks ----------------------------------------------------------------------------------------------------------


def test_the_stores_are_searched_at_once_after_an_answer_was_lost(run):
    async def scenario(world):
        await asyncio.to_thread(make_watermark, node=world.url)
        walker = world.walker(period_seconds=60)
        await walker._go_once(world.term)
        ours = world.publish(*messages(3))
        world.break_node(cut_after_drain=1)
        reader = world.live(suspect=lambda since: walker.suspect(since=since))
        await read(world, reader, times=2)
        assert world.new == []

        await walker._go_once(world.term)
        assert await world.paths() == dict.fromkeys(ours, "store")

    run(scenario)


def test_after_an_outage_of_the_node_the_stores_are_searched_since_the_last_good_read(run):
    """A node that restarted has lost its cache. One that went on without us has a full cache."""

    async def scenario(world):
        reader = world.live(Answering(Unreachable("away"), []))
        reader._read_at = last_read_at = timezone.now() - timedelta(minutes=10)
        await read(world, reader, times=2)
        assert world.suspected == [last_read_at]

    run(scenario)


def test_searches_for_a_node_that_breaks_every_answer_are_limited(run):
    async def scenario(world):
        await read(world, world.live(Answering(*[NodeError("broken")] * 10)), times=10)
        assert len(world.suspected) == 1

    run(scenario)


def test_each_search_during_an_outage_begins_where_the_last_one_ended(run, monkeypatch):
    """So no time is searched twice while a node breaks its answers."""
    monkeypatch.setattr(live, "SEARCH_PERIOD_SECONDS", 0.0)

    async def scenario(world):
        reader = world.live(Answering(*[NodeError("broken")] * 4))
        reader._read_at = clock.now() - timedelta(hours=1)
        began_at = clock.now()
        await read(world, reader, times=4)
        first, *others = world.suspected
        assert first < began_at - timedelta(minutes=59)
        assert began_at <= others[0] <= others[1] <= others[2] <= clock.now()

    run(scenario)


def test_a_node_that_forgot_the_shard_is_subscribed_again_and_the_stores_are_searched(run):
    async def scenario(world):
        world.devnode.ring.unsubscribe(PUBSUB_TOPIC)
        reader = world.live()
        assert await read(world, reader) == [IDLE_SECONDS]
        [ours] = world.publish(message())
        await read(world, reader)
        assert world.new == [ours]
        assert len(world.suspected) == 1

    run(scenario)


def test_a_subscription_that_fails_is_repeated(run):
    async def scenario(world):
        world.devnode.ring.unsubscribe(PUBSUB_TOPIC)
        world.break_node(subscribe_fails=1)
        reader = world.live()
        await read(world, reader, times=2)
        [ours] = world.publish(message())
        await read(world, reader, times=2)
        assert world.new == [ours]

    run(scenario)


def test_a_full_cache_is_logged_and_lost_messages_are_found_in_the_store(run):
    async def scenario(world):
        await asyncio.to_thread(make_watermark, node=world.url)
        walker = world.walker()
        world.publish(*messages(RING_CAPACITY + 10))
        with capture_logs() as logs:
            [pause] = await read(world, world.live(suspect=lambda since: walker.suspect(since=since)))
        assert "ring_filling_up" in [entry["event"] for entry in logs]
        assert pause == 0.0
        await walker._go_once(world.term)
        assert len(await world.paths()) == RING_CAPACITY + 10

    run(scenario, relay_cache_capacity=RING_CAPACITY)


def test_an_unreachable_node_is_read_every_half_second_for_ever_and_logged_once(run, monkeypatch):
    """After the first ten seconds, that is. During them the pace is the usual one."""
    monkeypatch.setattr(live, "USUAL_PACE_SECONDS", 0.0)

    async def scenario(world):
        reader = world.live(Answering(*[Unreachable("away")] * 40))
        with capture_logs() as logs:
            pauses = await read(world, reader, times=40)
        assert set(pauses) == {live.RETRY_SECONDS} == {0.5}
        assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == ["node_lost"]

    run(scenario)


def test_reads_a_go_waku_node(run):
    async def scenario(world):
        world.break_node(go_waku=True)
        reader = world.live()
        await read(world, reader)  # an empty page is null
        [ours] = world.publish(message())
        await read(world, reader)
        assert world.new == [ours]

    run(scenario)


def test_a_page_survives_an_outage_of_the_database(run, monkeypatch):
    async def scenario(world):
        failing(world, monkeypatch, psycopg.OperationalError(), OperationalError(), InterfaceError())
        [ours] = world.publish(message())
        await read(world, world.live())
        assert world.new == [ours]

    run(scenario)


def test_a_page_survives_the_loss_of_the_lock_that_comes_with_an_outage_of_the_database(run, monkeypatch):
    async def scenario(world):
        failing(world, monkeypatch, OperationalError(), OperationalError())
        [ours] = world.publish(message())
        world.term.ended.set()
        await read(world, world.live())
        assert world.new == [ours]

    run(scenario)


def test_a_bridge_stops_although_the_database_does_not_take_its_page(run, monkeypatch):
    """The walker finds it in the store."""

    async def scenario(world):
        await asyncio.to_thread(make_watermark, node=world.url)
        errors = failing(world, monkeypatch, *[OperationalError()] * 1000)
        [ours] = world.publish(message(seconds_ago=5))
        reading = asyncio.create_task(world.live().run(world.term))
        await asyncio.sleep(0.3)
        with capture_logs() as logs:
            world.stopped.set()
            world.term.ended.set()
            async with asyncio.timeout(5):
                await reading
        assert logs[-1]["event"] == "page_left_to_the_store"

        errors.clear()
        await world.walker()._go_once(Term(asyncio.Event()))
        assert await world.paths() == {ours: "store"}

    run(scenario)


def test_reading_goes_on_while_redis_is_unreachable(run, settings):
    settings.CACHES = {"default": settings.CACHES["default"] | {"LOCATION": "redis://127.0.0.1:1/0"}}

    async def scenario(world):
        [ours] = world.publish(message())
        await read(world, world.live())
        assert world.new == [ours]

    run(scenario)


def test_a_message_of_two_nodes_is_stored_once(run):
    async def scenario(world):
        page = [to_json(message())]
        for _ in range(2):
            await read(world, world.live(Answering(page)))
        assert len(world.new) == 1
        assert await asyncio.to_thread(InboundEnvelope.objects.count) == 1

    run(scenario)


def test_ten_reads_that_fail_in_a_row_cost_no_message_of_a_small_cache(run):
    """A cache of 50 overflows in 2.5 s at 20 messages a second, and no store takes those of a clock 45 s behind."""

    async def scenario(world):
        reading = asyncio.create_task(world.live(ring_capacity=20 * RING_CAPACITY).run(world.term))
        world.break_node(read_fails=10)
        sent = []
        for _ in range(70):
            sent += world.publish(message(seconds_ago=45))
            await asyncio.sleep(1 / 20)
        while world.devnode.faults.read_fails or len(world.devnode.ring):  # noqa: ASYNC110 - a ring has no events
            await asyncio.sleep(0.05)
        world.term.ended.set()
        await reading
        assert await world.paths() == dict.fromkeys(sent, "live")

    run(scenario, relay_cache_capacity=RING_CAPACITY)


def test_a_large_page_is_stored_in_parts_with_a_commit_each(run, monkeypatch):
    """In one statement, a page of 180 MB would exceed every timeout and be repeated for ever."""
    monkeypatch.setattr(inbox, "SLICE_BYTES", 300_000)

    async def scenario(world):
        sizes, execute = [], world.session.execute

        async def fail_at_the_third(sql, values=(), **options):
            if sql == inbox.INSERT:
                sizes.append(sum(map(len, values[4])))
                if len(sizes) == 3:
                    raise psycopg.OperationalError("the database does not answer")
            return await execute(sql, values, **options)

        monkeypatch.setattr(world.session, "execute", fail_at_the_third)
        hashes = world.publish(*(message(payload=os.urandom(120_000)) for _ in range(10)))
        page, now = await world.node.read(PUBSUB_TOPIC), timezone.now()
        reader = world.live().reader
        with pytest.raises(psycopg.OperationalError):
            await world.intake.take(page, reader, path=Path.LIVE, received_at=now)
        assert len(await world.paths()) == 4
        await world.intake.take(page, reader, path=Path.LIVE, received_at=now)
        assert set(await world.paths()) == set(hashes)
        assert max(sizes) <= 300_000

    run(scenario)


def test_an_envelope_larger_than_a_part_is_a_part_by_itself(monkeypatch):
    monkeypatch.setattr(inbox, "SLICE_BYTES", 8)
    envelopes = [
        inbox.Envelope(bytes([number]) * 32, PUBSUB_TOPIC, replace(message(), payload=bytes(size)))
        for number, size in enumerate([5, 3, 9, 1, 1, 12, 0])
    ]
    parts = [[len(envelope.message.payload) for envelope in part] for part in inbox.slices(envelopes[::-1])]
    assert parts == [[5, 3], [9], [1, 1], [12], [0]]


@pytest.mark.parametrize(
    ("skew_seconds", "problems"),
    [
        (
            None,
            ["its clock is 12 s ahead of ours"],
        ),  # the node does not report the time, so the finding of the check stands
        (0.5, []),  # it was corrected since the check
        (-30.0, ["its clock is 30 s behind ours"]),
    ],
)
def test_the_clock_of_the_last_read_overrides_the_finding_of_the_config_check(skew_seconds, problems):
    cache.clear()
    NOTICES.note(NODE, [about_clock(12.0)], known=None, now=clock.now())
    read = LastRead(clock.now(), skew_seconds)
    (peer,) = NOTICES.peers({NODE: True}, is_blind=False, seen={NODE: clock_of(read)})
    assert [found.problem for found, _since in peer.complaints] == problems
