"""The live path: what a page brings, and how nothing is lost when something breaks."""

import asyncio
from datetime import timedelta

import psycopg
import pytest
from django.core.cache import cache
from django.db import InterfaceError, OperationalError
from django.utils import timezone
from structlog.testing import capture_logs

from tests.conversation import CLIENT, PUBSUB_TOPIC
from tests.factories import make_watermark
from waku_bridge.models import DeadLetter, InboundEnvelope, StoreWindow
from waku_bridge.node import NodeError, Unreachable, to_json
from waku_bridge.node.watch import pages as page_lengths
from waku_bridge.node.watch.readings import LongestPage
from waku_bridge.query_topics import listen_to
from waku_bridge.reading import live, windows
from waku_bridge.reading.leases import Term
from waku_bridge.reading.pace import IDLE_SECONDS
from waku_bridge.reading.tests.conftest import FOREIGN, QUERIED, RING_CAPACITY, message, messages


async def read(world, reader, times=1):
    return [await reader._read_once(world.term) for _ in range(times)]


async def lost_replies(world):
    return await asyncio.to_thread(lambda: list(StoreWindow.objects.filter(reason="lost_reply")))


def failing(world, monkeypatch, *errors):
    """The database is away as often as there are errors."""
    errors, refresh = list(errors), world.query_topics.refresh

    def fail():
        if errors:
            raise errors.pop(0)
        refresh()

    monkeypatch.setattr(world.query_topics, "refresh", fail)
    return errors


def test_stores_a_page_and_enqueues_what_is_new(run):
    async def scenario(world):
        ours = world.publish(*messages(3), message(FOREIGN))[:3]
        pauses = await read(world, world.live(), times=2)
        assert await world.paths() == dict.fromkeys(ours, "live")
        assert world.enqueued == ours
        assert pauses[1] == IDLE_SECONDS

    run(scenario)


def test_takes_a_query_for_somebody_who_registered_before_the_page_was_fetched(run):
    async def scenario(world):
        await asyncio.to_thread(listen_to, [CLIENT.key_hash], now=timezone.now())
        [query, _] = world.publish(message(QUERIED), message(FOREIGN))
        await read(world, world.live())
        assert world.enqueued == [query]

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
def test_what_cannot_be_read_becomes_a_dead_letter_and_its_neighbours_are_taken(run, broken, reason):
    async def scenario(world):
        good = [to_json(each) for each in messages(2)]
        reader = world.live(Answering([good[0], broken, good[1]], [broken]))
        await read(world, reader, times=2)
        assert len(world.enqueued) == 2
        letter = await asyncio.to_thread(DeadLetter.objects.get)
        assert (letter.reason, letter.path) == (reason, "live")

    run(scenario)


class Answering:
    """A node that answers reads with these, in turn."""

    url = "http://127.0.0.1:1"

    def __init__(self, *answers):
        self.answers = list(answers)

    async def read(self, _pubsub_topic):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def subscribe(self, _pubsub_topic):
        return None


def test_the_watch_learns_how_long_pages_are(run):
    async def scenario(world):
        reader = world.live(Answering([to_json(message(FOREIGN))] * 50, []))
        await read(world, reader, times=2)
        assert page_lengths.longest(Answering.url) == LongestPage(50, 1)

    cache.clear()
    run(scenario)
    cache.clear()


# What breaks ----------------------------------------------------------------------------------------------------------


def test_the_store_is_searched_at_once_for_a_reply_that_was_lost(run):
    async def scenario(world):
        await asyncio.to_thread(make_watermark, node=world.url)
        ours = world.publish(*messages(3))
        world.break_node(cut_after_drain=1)
        reader = world.live()
        await read(world, reader)
        [window] = await lost_replies(world)
        assert window.start_at < timezone.now() < window.end_at
        await read(world, reader)
        assert world.enqueued == []

        await world.walker()._go_once(world.term)
        assert await world.paths() == dict.fromkeys(ours, "store")
        assert await lost_replies(world) == []

    run(scenario)


def test_a_request_that_never_left_has_drained_nothing(run):
    async def scenario(world):
        await asyncio.to_thread(make_watermark, node=world.url)
        reader = world.live(Answering(*[Unreachable("away")] * 3))
        await read(world, reader, times=3)
        assert await lost_replies(world) == []

    run(scenario)


def test_what_came_while_the_node_was_away_is_searched_once_it_is_back(run):
    """It restarted, and its cache with it."""

    async def scenario(world):
        await asyncio.to_thread(make_watermark, node=world.url)
        reader = world.live(Answering(Unreachable("away"), []))
        await read(world, reader, times=2)
        assert len(await lost_replies(world)) == 1

    run(scenario)


def test_a_node_that_breaks_every_answer_is_not_searched_with_every_answer(run):
    async def scenario(world):
        await asyncio.to_thread(make_watermark, node=world.url)
        reader = world.live(Answering(*[NodeError("broken")] * 10))
        await read(world, reader, times=10)
        assert len(await lost_replies(world)) == 1

    run(scenario)


def test_an_outage_is_searched_once_however_long_a_node_breaks_its_answers(run, monkeypatch):
    """Each search begins where the one before ended, but for what a store may take in late."""
    monkeypatch.setattr(live, "SEARCH_PERIOD_SECONDS", 0.0)

    async def scenario(world):
        await asyncio.to_thread(make_watermark, node=world.url)
        reader = world.live(Answering(*[NodeError("broken")] * 4))
        reader._read_at = timezone.now() - timedelta(hours=1)
        await read(world, reader, times=4)
        first, *others = sorted(await lost_replies(world), key=lambda window: window.end_at)
        assert first.end_at - first.start_at > timedelta(hours=1)
        assert [window.start_at for window in others] == [
            before.end_at - windows.AHEAD - windows.OVERLAP for before in (first, *others[:-1])
        ]

    run(scenario)


def test_subscribes_again_when_the_node_forgot_the_shard_and_searches_what_it_forgot(run):
    async def scenario(world):
        await asyncio.to_thread(make_watermark, node=world.url)
        world.devnode.ring.unsubscribe(PUBSUB_TOPIC)
        reader = world.live()
        assert await read(world, reader) == [IDLE_SECONDS]
        [ours] = world.publish(message())
        await read(world, reader)
        assert world.enqueued == [ours]
        assert len(await lost_replies(world)) == 1

    run(scenario)


def test_a_subscription_that_fails_is_tried_again(run):
    async def scenario(world):
        world.devnode.ring.unsubscribe(PUBSUB_TOPIC)
        world.break_node(subscribe_fails=1)
        reader = world.live()
        await read(world, reader, times=2)
        [ours] = world.publish(message())
        await read(world, reader, times=2)
        assert world.enqueued == [ours]

    run(scenario)


def test_a_full_cache_is_an_alarm_and_a_search(run):
    async def scenario(world):
        await asyncio.to_thread(make_watermark, node=world.url)
        world.publish(*messages(RING_CAPACITY + 10))
        with capture_logs() as logs:
            [pause] = await read(world, world.live())
        assert "ring_filling_up" in [entry["event"] for entry in logs]
        assert pause == 0.0
        assert len(await lost_replies(world)) == 1
        await world.walker()._go_once(world.term)
        assert len(await world.paths()) == RING_CAPACITY + 10

    run(scenario, relay_cache_capacity=RING_CAPACITY)


def test_waits_longer_for_a_node_that_stays_away_and_says_so_once(run):
    async def scenario(world):
        reader = world.live(Answering(*[Unreachable("away")] * 12))
        with capture_logs() as logs:
            pauses = await read(world, reader, times=12)
        assert 0.1 < pauses[0] < 1
        assert 5 <= pauses[-1] <= 10
        assert [entry["event"] for entry in logs] == ["node_lost"]

    run(scenario)


def test_reads_a_go_waku_node(run):
    async def scenario(world):
        world.break_node(go_waku=True)
        reader = world.live()
        await read(world, reader)  # null for nothing
        [ours] = world.publish(message())
        await read(world, reader)
        assert world.enqueued == [ours]

    run(scenario)


def test_a_page_survives_an_outage_of_the_database(run, monkeypatch):
    async def scenario(world):
        failing(world, monkeypatch, psycopg.OperationalError(), OperationalError(), InterfaceError())
        [ours] = world.publish(message())
        await read(world, world.live())
        assert world.enqueued == [ours]

    run(scenario)


def test_a_page_survives_the_loss_of_the_lease_that_comes_with_an_outage_of_the_database(run, monkeypatch):
    async def scenario(world):
        failing(world, monkeypatch, OperationalError(), OperationalError())
        [ours] = world.publish(message())
        world.term.end()
        await read(world, world.live())
        assert world.enqueued == [ours]

    run(scenario)


def test_a_page_that_the_database_does_not_take_keeps_no_bridge_from_stopping(run, monkeypatch):
    """The walker finds it in the store."""

    async def scenario(world):
        await asyncio.to_thread(make_watermark, node=world.url)
        errors = failing(world, monkeypatch, *[OperationalError()] * 1000)
        [ours] = world.publish(message())
        reading = asyncio.create_task(world.live().run(world.term))
        await asyncio.sleep(0.3)
        with capture_logs() as logs:
            world.stopped.set()
            world.term.end()
            async with asyncio.timeout(5):
                await reading
        assert [entry["event"] for entry in logs] == ["page_left_to_the_store"]

        errors.clear()
        await world.walker()._go_once(Term(asyncio.Event()))
        assert await world.paths() == {ours: "store"}

    run(scenario)


def test_reading_goes_on_while_redis_is_away(run, settings):
    settings.CACHES = {"default": settings.CACHES["default"] | {"LOCATION": "redis://127.0.0.1:1/0"}}

    async def scenario(world):
        [ours] = world.publish(message())
        await read(world, world.live())
        assert world.enqueued == [ours]

    run(scenario)


def test_two_nodes_bring_a_message_once(run):
    async def scenario(world):
        page = [to_json(message())]
        for _ in range(2):
            await read(world, world.live(Answering(page)))
        assert len(world.enqueued) == 1
        assert await asyncio.to_thread(InboundEnvelope.objects.count) == 1

    run(scenario)
