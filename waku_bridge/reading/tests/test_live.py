"""The live path: pages are stored, and no message is lost when a node, Redis or the database fails."""

import asyncio
import os
from dataclasses import replace

import psycopg
import pytest
from django.core.cache import cache
from django.db import InterfaceError, OperationalError
from django.utils import timezone

from kit.batches.batch import CHANNEL
from kit.processes.leader import Term
from tests.rig.conversation import CLIENT, PUBSUB_TOPIC
from tests.rig.databases import notices
from tests.rig.logs import capture_logs
from waku_bridge.dialect import Unreachable, to_json
from waku_bridge.inbox import inbox
from waku_bridge.query_topics import listen_to
from waku_bridge.reading import live
from waku_bridge.reading.live import IDLE_SECONDS, MIN_SECONDS, Ring
from waku_bridge.reading.pages import LongestPage, Page
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
        await insert(envelopes, *args)
        inserted.append([envelope.hash for envelope in envelopes])
        if len(inserted) == 1:
            await asyncio.to_thread(listen_to, [CLIENT.key_hash], now=timezone.now())
        await world.session.execute("SELECT 1")  # it brings the new topic

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


@pytest.mark.parametrize("failures", [0, 1])
async def test_a_node_that_forgot_the_shard_is_subscribed_again(world, failures):
    world.devnode.unsubscribe(PUBSUB_TOPIC)
    world.break_node(subscribe_fails=failures)
    reader = world.live()
    *_, pause = await world.read(reader, times=failures + 1)
    [ours] = world.publish(message())
    await world.read(reader)
    assert 0 < pause <= IDLE_SECONDS
    assert world.new == [ours]


async def test_what_a_broken_answer_and_a_full_cache_have_lost_is_found_in_the_store(world):
    ours = world.publish(*messages(3, seconds_ago=5))
    world.break_node(cut_after_drain=1)
    await world.read(times=2)
    assert world.new == []
    ours += world.publish(*messages(RING_CAPACITY + 10, seconds_ago=5))
    with capture_logs() as logs:
        [pause] = await world.read()
    assert "ring_filling_up" in [entry["event"] for entry in logs]
    assert pause == 0.0
    await world.walk()
    assert set(await world.paths()) == set(ours)


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


async def test_a_bridge_stops_although_the_database_does_not_take_its_page(world, monkeypatch):
    """The next one finds it in the store."""
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
    world.term = Term(asyncio.Event())
    await world.walk()
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
        await world.intake.take(Page(reader, now, page))
    assert len(await world.paths()) == 4
    await world.intake.take(Page(reader, now, page))
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


# The pause before the next read of a cache ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capacity", "page", "elapsed", "pause"),
    [
        (200, 0, 1.0, IDLE_SECONDS),
        (120, 0, 1.0, 0.2),  # a burst of 300 per second fills half of it in that time
        (60, 0, 1.0, 0.1),
        (12, 0, 1.0, 0.02),
        (60, 1, 0.15, 0.1),  # 7 per second, and a burst may follow
        (200, 1, 0.15, IDLE_SECONDS),
        (50, 20, 0.15, 0.0375),  # 133 per second: a tenth of the ring
        (50, 5, 0.01, 0.01),  # 500 per second
        (50, 25, 0.15, 0.0),  # half full
        (50, 50, 0.15, 0.0),
        (10_000, 75, 0.15, MIN_SECONDS),  # 500 per second fill little of a large cache
        (10_000, 4_000, 0.05, 0.0125),
    ],
)
def test_a_fuller_cache_is_read_sooner(capacity, page, elapsed, pause):
    assert Ring(capacity).next_read(page, page, elapsed) == pytest.approx(pause)


@pytest.mark.parametrize("rate", [20, 250, 500])
def test_a_burst_in_an_idle_moment_does_not_overflow_a_cache_of_fifty(rate):
    """Each read and its commit take ten milliseconds."""
    ring, pause = Ring(50), IDLE_SECONDS
    for _ in range(100):
        pause = ring.next_read(0, 0, pause)
    for _ in range(200):
        page = round(rate * (pause + 0.01))
        assert page < 50
        pause = ring.next_read(page, page, pause + 0.01)


@pytest.mark.parametrize(("pages", "fill"), [([0], 0.0), ([25], 0.5), ([50], 1.0), ([51], 0.5), ([1000, 100], 0.05)])
def test_the_fill_of_a_cache_follows_from_the_page_and_its_capacity(pages, fill):
    ring = Ring(50)
    assert [ring.fill(page) for page in pages][-1] == fill
