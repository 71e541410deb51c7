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

from kit.batches.batch import CHANNEL
from kit.db.clock import clock
from kit.processes.leader import Term
from tests.rig.conversation import CLIENT, PUBSUB_TOPIC
from tests.rig.databases import notices
from tests.rig.rows import make_watermark
from waku_bridge.inbox import inbox
from waku_bridge.inbox.inbox import Path
from waku_bridge.node import NodeError, Unreachable, to_json
from waku_bridge.query_topics import listen_to
from waku_bridge.reading import live
from waku_bridge.reading.pace import IDLE_SECONDS, LongestPage
from waku_bridge.reading.tests.conftest import FOREIGN, QUERIED, RING_CAPACITY, message, messages, until


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


def failing(world, monkeypatch, *errors):
    """Have the database fail with each of these errors in turn."""
    errors, execute = list(errors), world.session.execute

    async def fail(*statement, **options):
        if errors:
            raise errors.pop(0)
        return await execute(*statement, **options)

    monkeypatch.setattr(world.session, "execute", fail)
    return errors


@pytest.fixture
def walker(world):
    """Return the reader of a store that was read a moment ago. Live readers of the test may have it search at once."""
    make_watermark(node=world.url)
    walker = world.walker(period_seconds=60)
    world.suspect = lambda since: walker.suspect(since=since)
    return walker


async def test_a_page_is_announced_once_and_only_with_new_envelopes(world):
    with notices(CHANNEL) as announced:
        known, last = messages(3), message()
        for each in (known, known, [message(FOREIGN)], [], [*known, last]):
            [pause] = await world.read(world.live(Answering([to_json(one) for one in each])))
            assert 0 < pause <= IDLE_SECONDS
        assert len(announced()) == 2, "the first page and the last one"
    assert len(world.new) == 4


async def test_a_page_is_selected_again_for_topics_that_become_ours_meanwhile(world, monkeypatch):
    """Anybody can register at any time."""
    inserted, insert = [], world.intake._insert

    async def register_and_insert(envelopes, *args):
        new = await insert(envelopes, *args)
        inserted.append([envelope.hash for envelope in envelopes])
        if len(inserted) == 1:
            await asyncio.to_thread(listen_to, [CLIENT.key_hash], now=timezone.now())
        await world.session.execute("SELECT 1")  # it brings the new topic
        return new

    monkeypatch.setattr(world.intake, "_insert", register_and_insert)
    own, query = world.publish(message(), message(QUERIED))
    await world.read()
    assert inserted == [[own], [query]]
    assert world.new == [own, query]


async def test_the_lengths_of_pages_are_noted_for_the_config_check(world):
    cache.clear()
    await world.read(world.live(Answering([to_json(message(FOREIGN))] * 50, [])), times=2)
    assert live.LONGEST_PAGE.read(Answering.url) == LongestPage(50, 1)
    cache.clear()


# What breaks ----------------------------------------------------------------------------------------------------------


async def test_the_stores_are_searched_at_once_after_an_answer_was_lost(world, walker):
    await world.walk(walker)
    ours = world.publish(*messages(3))
    world.break_node(cut_after_drain=1)
    await world.read(world.live(suspect=world.suspect), times=2)
    assert world.new == []

    await world.walk(walker)
    assert await world.paths() == dict.fromkeys(ours, "store")


async def test_searches_for_a_node_that_breaks_every_answer_are_few_and_search_no_time_twice(world, monkeypatch):
    await world.read(world.live(Answering(*[NodeError("broken")] * 10)), times=10)
    assert len(world.suspected) == 1

    world.suspected.clear()
    monkeypatch.setattr(live, "SEARCH_PERIOD_SECONDS", 0.0)
    reader = world.live(Answering(*[NodeError("broken")] * 4))
    reader._read_at = clock.now() - timedelta(hours=1)
    began_at = clock.now()
    await world.read(reader, times=4)
    first, *others = world.suspected
    assert first < began_at - timedelta(minutes=59)
    assert began_at <= others[0] <= others[1] <= others[2] <= clock.now()


@pytest.mark.parametrize("failures", [0, 1])
async def test_a_node_that_forgot_the_shard_is_subscribed_again_and_the_stores_are_searched(world, failures):
    world.devnode.unsubscribe(PUBSUB_TOPIC)
    world.break_node(subscribe_fails=failures)
    reader = world.live()
    *_, pause = await world.read(reader, times=failures + 1)
    [ours] = world.publish(message())
    await world.read(reader)
    assert (pause, world.new, world.suspected != []) == (IDLE_SECONDS, [ours], True)


async def test_a_full_cache_is_logged_and_lost_messages_are_found_in_the_store(world, walker):
    world.publish(*messages(RING_CAPACITY + 10))
    with capture_logs() as logs:
        [pause] = await world.read(world.live(suspect=world.suspect))
    assert "ring_filling_up" in [entry["event"] for entry in logs]
    assert pause == 0.0
    await world.walk(walker)
    assert len(await world.paths()) == RING_CAPACITY + 10


async def test_an_unreachable_node_is_read_every_half_second_for_ever_and_logged_once(world, monkeypatch):
    """After the first ten seconds, that is. During them the pace is the usual one."""
    monkeypatch.setattr(live, "USUAL_PACE_SECONDS", 0.0)
    with capture_logs() as logs:
        pauses = await world.read(world.live(Answering(*[Unreachable("away")] * 40)), times=40)
    assert set(pauses) == {live.RETRY_SECONDS} == {0.5}
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == ["node_lost"]


@pytest.mark.parametrize("is_lock_lost", [False, True])
async def test_a_page_survives_an_outage_of_the_database_which_takes_the_lock(world, monkeypatch, is_lock_lost):
    failing(world, monkeypatch, psycopg.OperationalError(), OperationalError(), InterfaceError())
    [ours] = world.publish(message())
    if is_lock_lost:
        world.term.ended.set()
    await world.read()
    assert world.new == [ours]


async def test_a_bridge_stops_although_the_database_does_not_take_its_page(world, walker, monkeypatch):
    """The walker finds it in the store."""
    errors = failing(world, monkeypatch, *[OperationalError()] * 1000)
    [ours] = world.publish(message(seconds_ago=5))
    reading = asyncio.create_task(world.live().run(world.term))
    await asyncio.sleep(0.3)
    with capture_logs() as logs:
        world.stopped.set()
        world.term.ended.set()
        async with asyncio.timeout(30):
            await reading
    assert logs[-1]["event"] == "page_left_to_the_store"

    errors.clear()
    await walker._go_once(Term(asyncio.Event()))
    assert await world.paths() == {ours: "store"}


async def test_reading_goes_on_while_redis_is_unreachable(world, settings):
    settings.CACHES = {"default": settings.CACHES["default"] | {"LOCATION": "redis://127.0.0.1:1/0"}}
    [ours] = world.publish(message())
    await world.read()
    assert world.new == [ours]


async def test_ten_reads_that_fail_in_a_row_cost_no_message_of_a_small_cache(world):
    """A cache of 50 overflows in 2.5 s at 20 messages a second, and no store takes those of a clock 45 s behind."""
    reading = asyncio.create_task(world.live(ring_capacity=20 * RING_CAPACITY).run(world.term))
    world.break_node(read_fails=10)
    sent = []
    for _ in range(70):
        sent += world.publish(message(seconds_ago=45))
        await asyncio.sleep(1 / 20)
    await until(
        lambda: asyncio.sleep(0, not world.devnode.faults.read_fails and not len(world.devnode.ring)), "drained"
    )
    world.term.ended.set()
    await reading
    assert await world.paths() == dict.fromkeys(sent, "live")


async def test_a_large_page_is_stored_in_parts_with_a_commit_each(world, monkeypatch):
    """In one statement, a page of 180 MB would exceed every timeout and be repeated for ever."""
    monkeypatch.setattr(inbox, "SLICE_BYTES", 300_000)
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


def test_an_envelope_larger_than_a_part_is_a_part_by_itself(monkeypatch):
    monkeypatch.setattr(inbox, "SLICE_BYTES", 8)
    envelopes = [
        inbox.Envelope(bytes([number]) * 32, PUBSUB_TOPIC, replace(message(), payload=bytes(size)))
        for number, size in enumerate([5, 3, 9, 1, 1, 12, 0])
    ]
    parts = [[len(envelope.message.payload) for envelope in part] for part in inbox.slices(envelopes[::-1])]
    assert parts == [[5, 3], [9], [1, 1], [12], [0]]
