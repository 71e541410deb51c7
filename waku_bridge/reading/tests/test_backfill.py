"""Backfill: the last minutes of a new topic are read."""

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from django.utils import timezone

from tests.rig.conversation import CLIENT, PUBSUB_TOPIC
from tests.rig.rows import make_watermark
from waku_bridge.codec.topics import of_number
from waku_bridge.query_topics import listen_to
from waku_bridge.reading.store import backfill
from waku_bridge.reading.store.backfill import Backfill
from waku_bridge.reading.tests.conftest import FOREIGN, QUERIED, message, messages

REACH = timedelta(minutes=5)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(backfill, "SETTLE_SECONDS", 0.05)


@asynccontextmanager
async def filling(world):
    filler = Backfill([world.node], [PUBSUB_TOPIC], world.intake, reach=REACH)
    running = asyncio.create_task(filler.run(world.term))
    yield filler
    world.stopped.set()
    async with asyncio.timeout(10):
        await running


async def until(is_so):
    async with asyncio.timeout(10):
        while not await is_so():  # noqa: ASYNC110 - the database has no events
            await asyncio.sleep(0.02)


def test_a_query_that_was_read_before_its_target_was_registered_is_found(run):
    """The live path and the walker both took it for a message to others, and the walker does not fetch it again."""

    async def scenario(world):
        [query] = world.publish(message(QUERIED))
        world.archive(*messages(5, FOREIGN))
        await asyncio.to_thread(make_watermark, node=world.url)
        live, walker = world.live(), world.walker()
        await live._read_once(world.term)
        await walker._go_once(world.term)
        assert await world.paths() == {}

        async with filling(world) as filler:
            world.query_topics._on_new = filler.request
            await asyncio.to_thread(listen_to, [CLIENT.key_hash], now=timezone.now())
            await world.session.execute("SELECT 1")  # it brings the new topic
            await until(lambda: _is_there(world, query))
        assert await world.paths() == {query: "backfill"}
        assert world.new == [query]

    run(scenario)


async def _is_there(world, digest):
    return digest in await world.paths()


def test_a_backfill_queries_ten_topics_at_most_and_everything_when_there_are_many(run):
    async def scenario(world):
        async with filling(world) as filler:
            filler.request([of_number(number) for number in range(25)])
            await until(lambda: _asked(world, 3))
            assert [len(asked["contentTopics"].split(",")) for asked in world.node.asked] == [10, 10, 5]
            world.node.asked.clear()
            filler.request([of_number(number) for number in range(backfill.MANY_TOPICS + 1)])
            await until(lambda: _asked(world, 1))
            assert "contentTopics" not in world.node.asked[0]

    run(scenario)


async def _asked(world, count):
    return len(world.node.asked) == count


def test_a_backfill_that_failed_is_repeated(run):
    async def scenario(world):
        await asyncio.to_thread(listen_to, [CLIENT.key_hash], now=timezone.now())
        ours = world.archive(*messages(120, QUERIED))
        world.break_node(store_no_peer=1, store_cursor_not_found=1)
        async with filling(world) as filler:
            filler.request([QUERIED])
            await until(lambda: _are_there(world, len(ours)))

    run(scenario)


async def _are_there(world, count):
    return len(await world.paths()) == count


def test_a_message_older_than_the_reach_of_a_backfill_is_not_read(run):
    async def scenario(world):
        await asyncio.to_thread(listen_to, [CLIENT.key_hash], now=timezone.now())
        world.archive(message(QUERIED, seconds_ago=REACH.total_seconds() + 10))
        [young] = world.archive(message(QUERIED, seconds_ago=REACH.total_seconds() - 10))
        async with filling(world) as filler:
            filler.request([QUERIED])
            await until(lambda: _is_there(world, young))
        assert set(await world.paths()) == {young}

    run(scenario)


def test_under_a_flood_of_registrations_everything_is_read_once_a_period(run):
    async def scenario(world):
        [store] = Backfill([world.node], [PUBSUB_TOPIC], world.intake, reach=REACH)._stores
        wave = [of_number(number) for number in range(backfill.MANY_TOPICS + 1)]
        store.request(wave, timezone.now())
        assert await store._fill(world.term) == 0.0
        asked = len(world.node.asked)
        for _ in range(10):
            store.request(wave, timezone.now())
            assert 0 < await store._fill(world.term) <= backfill.EVERYTHING_PERIOD_SECONDS
        assert len(world.node.asked) == asked
        assert not store._waiting  # one reading of everything replaces them
        store._everything_again_at = 0.0
        assert await store._fill(world.term) == 0.0
        assert len(world.node.asked) == 2 * asked

    run(scenario)
