"""Backfill: the last minutes of a new topic are read."""

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from django.utils import timezone

from tests.rig.conversation import CLIENT
from tests.rig.rows import make_watermark
from waku_bridge.codec.wire import topic_of_number
from waku_bridge.query_topics import listen_to
from waku_bridge.reading import stores
from waku_bridge.reading.tests.conftest import FOREIGN, QUERIED, message, messages, until


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(stores, "SETTLE", timedelta())


@asynccontextmanager
async def filling(world):
    filler = world.store()
    running = asyncio.create_task(filler._read_requested(world.term))
    yield filler
    world.stopped.set()
    async with asyncio.timeout(60):
        await running


async def test_a_query_that_was_read_before_its_target_was_registered_is_found(world):
    """Both paths took it for a message to others, and the store is not asked for it again."""
    [query] = world.publish(message(QUERIED))
    world.archive(*messages(5, FOREIGN))
    await asyncio.to_thread(make_watermark, node=world.url)
    await world.read()
    await world.walk()
    assert await world.paths() == {}

    async with filling(world) as filler:
        world.query_topics._on_new = filler.request
        await asyncio.to_thread(listen_to, [CLIENT.key_hash], now=timezone.now())
        await world.session.execute("SELECT 1")  # it brings the new topic
        await world.holds(query)
    assert await world.paths() == {query: "backfill"}
    assert world.new == [query]


async def test_a_backfill_queries_ten_topics_at_most_and_everything_when_there_are_many(world):
    def asked(count):
        return until(lambda: asyncio.sleep(0.02, len(world.node.asked) == count), f"{count} queries")

    async with filling(world) as filler:
        filler.request([topic_of_number(number) for number in range(25)])
        await asked(3)
        assert [len(asked["contentTopics"].split(",")) for asked in world.node.asked] == [10, 10, 5]
        world.node.asked.clear()
        filler.request([topic_of_number(number) for number in range(stores.MANY_TOPICS + 1)])
        await asked(1)
        assert "contentTopics" not in world.node.asked[0]


async def test_a_backfill_that_failed_is_repeated_and_reads_nothing_beyond_its_reach(world):
    await asyncio.to_thread(listen_to, [CLIENT.key_hash], now=timezone.now())
    world.archive(message(QUERIED, seconds_ago=stores.BACKFILL.total_seconds() + 10))
    ours = world.archive(*messages(120, QUERIED, seconds_ago=stores.BACKFILL.total_seconds() - 10))
    world.break_node(store_no_peer=1, store_cursor_not_found=1)
    async with filling(world) as filler:
        filler.request([QUERIED])
        await world.holds(*ours)
    assert set(await world.paths()) == set(ours)


async def test_under_a_flood_of_registrations_everything_is_read_once_a_period(world):
    filler = world.store()
    wave = [topic_of_number(number) for number in range(stores.MANY_TOPICS + 1)]
    filler.request(wave)
    assert await filler._attempt(filler._read_topics(world.term)) == 0.0
    asked = len(world.node.asked)
    for _ in range(10):
        filler.request(wave)
        assert 0 < await filler._attempt(filler._read_topics(world.term)) <= stores.EVERYTHING_PERIOD_SECONDS
    assert len(world.node.asked) == asked
    filler._everything_again_at = 0.0
    assert await filler._attempt(filler._read_topics(world.term)) == 0.0
    assert len(world.node.asked) == 2 * asked
    assert not filler._requested_at
