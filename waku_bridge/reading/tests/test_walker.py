"""The store path, on a real store and a real database."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest
from django.db import OperationalError
from django.utils import timezone
from structlog.testing import capture_logs

from tests.rig.conversation import CLIENT, PUBSUB_TOPIC
from tests.rig.rows import make_watermark, make_window
from waku_bridge.codec.topics import message_hash
from waku_bridge.models import StoreWatermark, StoreWindow
from waku_bridge.node import StoreEntry, StorePage, to_json
from waku_bridge.node.client import BUSY_SECONDS
from waku_bridge.query_topics import listen_to
from waku_bridge.reading.store.store_pages import HASHES_PER_QUERY, PagePosition
from waku_bridge.reading.store.walker import MAX_SECONDS
from waku_bridge.reading.store.windows import AHEAD, OVERLAP, SETTLE, Window
from waku_bridge.reading.tests import conftest
from waku_bridge.reading.tests.conftest import FOREIGN, QUERIED

HOUR = 3600
# Age of a message in seconds that a pass reads: younger ones are left to the next pass.
FRESH = SETTLE.total_seconds() + 2


def message(*topic, seconds_ago=FRESH):
    return conftest.message(*topic, seconds_ago=seconds_ago)


def messages(count, *topic, seconds_ago=FRESH):
    return conftest.messages(count, *topic, seconds_ago=seconds_ago)


async def watermark(world, *, seconds_ago=0.0, late_seconds_ago=0.0):
    """Note that the store was read before. Otherwise its last hour is searched first."""
    now = timezone.now()
    return await asyncio.to_thread(
        make_watermark,
        node=world.url,
        at=now - timedelta(seconds=seconds_ago),
        late_searched_at=now - timedelta(seconds=late_seconds_ago),
    )


async def windows_left():
    return await asyncio.to_thread(lambda: list(StoreWindow.objects.order_by("pk")))


async def go(world, walker, times=1):
    return [await walker._go_once(world.term) for _ in range(times)]


async def go_until_done(world, walker):
    """Run passes until no window of the past is pending."""
    async with asyncio.timeout(30):
        while True:
            await walker._go_once(world.term)
            if not await windows_left():
                return


def test_a_pass_brings_missed_messages_and_leaves_out_those_for_others(run):
    async def scenario(world):
        await watermark(world)
        ours = world.archive(*messages(3), *messages(2, seconds_ago=50))
        world.archive(*messages(5, FOREIGN))
        await go(world, world.walker())
        assert await world.paths() == dict.fromkeys(ours, "store")
        assert sorted(world.new) == sorted(ours)

    run(scenario)


def test_a_message_of_both_paths_is_taken_once(run):
    async def scenario(world):
        await watermark(world)
        ours = world.publish(*messages(4))
        await world.live()._read_once(world.term)
        ours += world.archive(message())
        walker = world.walker()
        await go(world, walker, times=3)
        world.devnode.restart()
        await world.live()._read_once(world.term)
        assert sorted(world.new) == sorted(ours)
        assert sorted((await world.paths()).values()) == ["live"] * 4 + ["store"]

    run(scenario)


def test_messages_that_were_read_live_are_not_fetched_again_ours_or_not(run):
    async def scenario(world):
        await watermark(world)
        world.publish(*messages(4), *messages(4, FOREIGN))
        await world.live()._read_once(world.term)
        await go(world, world.walker())
        assert [asked["includeData"] for asked in world.node.asked] == ["false"]

    run(scenario)


def test_two_passes_read_each_message_once(run):
    async def scenario(world):
        await watermark(world)
        walker = world.walker()
        await go(world, walker)
        await asyncio.sleep(0.1)
        await go(world, walker)
        first, second = ([asked[name] for name in ("startTime", "endTime")] for asked in world.node.asked)
        assert first[0] < first[1] < second[0] == first[1] + 1 < second[1]

    run(scenario)


def test_a_pass_reads_all_pages_of_a_window(run):
    async def scenario(world):
        await watermark(world)
        ours = world.archive(*messages(350))
        await go(world, world.walker())
        assert len(await world.paths()) == len(ours)

    run(scenario)


def test_only_unknown_messages_are_fetched_by_their_hashes(run):
    async def scenario(world):
        await watermark(world)
        world.publish(*messages(49, FOREIGN))
        await world.live()._read_once(world.term)
        [new] = world.archive(message())
        await go(world, world.walker())
        page, fetch = world.node.asked
        assert page["includeData"] == "false"
        assert fetch["hashes"] == f"0x{new.hex()}"

    run(scenario)


def test_queries_name_no_content_topics_and_are_bounded_in_time_and_size(run):
    async def scenario(world):
        await watermark(world)
        world.archive(*messages(99, FOREIGN))
        await go(world, world.walker(), times=2)
        assert all("contentTopics" not in asked for asked in world.node.asked)
        assert [len(asked["hashes"].split(",")) for asked in world.node.asked if "hashes" in asked] == [50, 49]

    run(scenario)


def test_pages_are_requested_with_messages_where_most_are_unknown(run):
    async def scenario(world):
        await watermark(world)
        world.archive(*messages(300, FOREIGN))
        await go(world, world.walker())
        assert [asked["includeData"] for asked in world.node.asked if "cursor" in asked] == ["true", "true"]

    run(scenario)


def test_a_message_that_the_store_inserts_late_is_found_a_minute_after_a_possible_loss(run):
    """The message is older than those that were read, and inserted afterwards, so no cursor would find it."""

    async def scenario(world):
        await watermark(world)
        walker = world.walker(period_seconds=0.0)
        await go(world, walker)
        walker.suspect(since=timezone.now() - OVERLAP - timedelta(seconds=10))
        await go(world, walker)
        [late] = world.archive(message(seconds_ago=OVERLAP.total_seconds() + 5))
        walker._settled_at = 0.0
        await go(world, walker)
        assert late in await world.paths()
        assert walker._suspect.start_at > timezone.now() - OVERLAP - timedelta(seconds=1), "the rest is settled later"

    run(scenario)


def test_a_message_that_only_the_store_had_has_the_time_around_it_read_again(run):
    async def scenario(world):
        await watermark(world)
        walker = world.walker(period_seconds=0.0)
        await go(world, walker)
        walker._suspect = None
        await go(world, walker)
        assert walker._suspect is None
        world.archive(message())
        await asyncio.to_thread(lambda: StoreWatermark.objects.update(watermark_at=timezone.now() - 2 * SETTLE))
        await go(world, walker)
        assert walker._suspect.start_at < timezone.now() - OVERLAP
        assert walker._suspect.end_at > timezone.now() + AHEAD - timedelta(seconds=10)

    run(scenario)


def test_without_late_messages_an_old_message_is_read_once_more(run):
    async def scenario(world):
        await watermark(world, late_seconds_ago=620)
        [late] = world.archive(message(seconds_ago=70 * 60))
        world.archive(message(seconds_ago=HOUR))
        await go_until_done(world, world.walker())
        assert set(await world.paths()) == {late}

    run(scenario)


def test_a_message_that_another_store_delivers_an_hour_late_is_found(run):
    async def scenario(world):
        await watermark(world, late_seconds_ago=2 * HOUR)
        [late] = world.archive(message(seconds_ago=HOUR))
        [too_late] = world.archive(message(seconds_ago=2 * HOUR))
        await go_until_done(world, world.walker())
        assert set(await world.paths()) == {late}
        assert too_late

    run(scenario)


def test_the_last_hour_of_a_store_that_was_never_read_is_searched(run):
    async def scenario(world):
        [old] = world.archive(message(seconds_ago=HOUR))
        await go_until_done(world, world.walker())
        assert old in await world.paths()

    run(scenario)


# Outages --------------------------------------------------------------------------------------------------------------


def test_after_an_outage_fresh_messages_come_first_and_then_missed_ones_newest_first(run):
    async def scenario(world):
        await watermark(world, seconds_ago=HOUR)
        [old] = world.archive(message(seconds_ago=HOUR))
        [younger] = world.archive(message(seconds_ago=HOUR / 2))
        [fresh] = world.archive(message())
        await go_until_done(world, world.walker(period_seconds=0.0))
        assert world.new == [fresh, younger, old]

    run(scenario)


def test_catching_up_goes_on_after_a_restart(run):
    async def scenario(world):
        await watermark(world, seconds_ago=HOUR)
        ours = world.archive(*messages(450, seconds_ago=HOUR / 2))
        first = world.walker(period_seconds=0.0)
        pending = await first._pass(world.term)  # notes the window
        while len(world.new) < 250:
            pending = await first._catch_up(pending)
        [noted] = await windows_left()
        assert noted.cursor
        world.node.asked.clear()

        await go_until_done(world, world.walker())
        assert len(await world.paths()) == len(ours)
        again = [asked for asked in world.node.asked if asked.get("cursor") == noted.cursor]
        assert again, "the second walker went on where the first one was"

    run(scenario)


def test_a_gap_is_noted_in_the_commit_that_moves_the_watermark(run):
    async def scenario(world):
        row = await watermark(world, seconds_ago=HOUR)
        await world.walker()._pass(world.term)
        [window] = await windows_left()
        assert window.reason == "outage"
        assert abs((window.start_at - row.watermark_at).total_seconds() + 90) < 1
        moved = await asyncio.to_thread(StoreWatermark.objects.get)
        assert (timezone.now() - moved.watermark_at).total_seconds() < 30

    run(scenario)


def test_a_gap_that_is_too_old_to_recover_is_logged(run):
    async def scenario(world):
        await watermark(world, seconds_ago=3 * HOUR)
        with capture_logs() as logs:
            await go(world, world.walker(recovery=timedelta(hours=1)))
        [shown] = [entry for entry in logs if entry["event"] == "store_gap_unrecoverable"]
        assert shown["log_level"] == "error"
        assert abs(shown["seconds"] - 2 * HOUR - 90) < 30

    run(scenario)


def test_an_interrupted_pass_moves_no_watermark(run):
    async def scenario(world):
        row = await watermark(world, seconds_ago=100)
        world.archive(*messages(150))
        world.break_node(store_cursor_stuck=True)
        await go(world, world.walker())
        assert (await asyncio.to_thread(StoreWatermark.objects.get)).watermark_at == row.watermark_at

    run(scenario)


# Faults of the store --------------------------------------------------------------------------------------------------


def test_a_lost_cursor_restarts_the_window(run):
    async def scenario(world):
        await watermark(world)
        ours = world.archive(*messages(250))
        world.break_node(store_cursor_not_found=2)
        await go(world, world.walker())
        assert len(await world.paths()) == len(ours)

    run(scenario)


def test_a_lost_cursor_restarts_the_slice_of_the_past_from_its_beginning(run):
    async def scenario(world):
        row = await watermark(world)
        now = timezone.now()
        ours = world.archive(*messages(250, seconds_ago=600))
        start, end = now - timedelta(seconds=620), now - timedelta(seconds=580)
        await asyncio.to_thread(make_window, row, start_at=start, end_at=end, cursor="0x" + "ab" * 32)
        await go_until_done(world, world.walker())
        assert len(await world.paths()) == len(ours)

    run(scenario)


@pytest.mark.parametrize("fault", ["store_no_peer", "store_rate_limited", "store_too_many_requests"])
def test_a_store_that_limits_our_rate_is_read_again_after_a_while(run, fault):
    async def scenario(world):
        await watermark(world)
        [ours] = world.archive(message())
        world.break_node(**{fault: 1})
        walker = world.walker()
        refused, _ = await go(world, walker, times=2)
        if fault == "store_no_peer":
            assert 0 < refused <= MAX_SECONDS
        else:
            assert refused > BUSY_SECONDS
        assert ours in await world.paths()

    run(scenario)


@pytest.mark.parametrize("fault", ["store_cursor_stuck", "store_cursor_circles"])
def test_a_store_whose_cursors_do_not_lead_on_does_not_cause_an_endless_loop(run, fault):
    async def scenario(world):
        await watermark(world)
        ours = world.archive(*messages(250))
        world.break_node(**{fault: True})
        async with asyncio.timeout(10):
            await go(world, walker := world.walker())
        world.break_node(**{fault: False})
        await go(world, walker)
        assert len(await world.paths()) == len(ours)

    run(scenario)


def test_a_slice_of_the_past_whose_cursors_go_in_a_circle_is_begun_again(run):
    async def scenario(world):
        row = await watermark(world)
        ours = world.archive(*messages(250, seconds_ago=600))
        start, end = (timezone.now() - timedelta(seconds=ago) for ago in (620, 580))
        await asyncio.to_thread(make_window, row, start_at=start, end_at=end)
        world.break_node(store_cursor_circles=2)
        async with asyncio.timeout(20):
            with capture_logs() as logs:
                await go_until_done(world, world.walker())
        assert len(await world.paths()) == len(ours)
        assert "store_lost" in [entry["event"] for entry in logs]

    run(scenario)


@pytest.mark.parametrize("is_kept", [False, True])
def test_an_empty_page_after_a_cursor_moves_no_watermark_over_messages(run, is_kept):
    """The store has 150 messages, and answers the second page with an empty list and without a cursor."""

    async def scenario(world):
        row = await watermark(world, seconds_ago=100)
        ours = world.archive(*messages(150, seconds_ago=5))
        world.break_node(store_page_empty=is_kept or 1)
        walker = world.walker()
        with capture_logs() as logs:
            await go(world, walker)
        assert {"store_lost_the_place", *(["store_lost"] if is_kept else [])} <= {entry["event"] for entry in logs}
        moved = (await asyncio.to_thread(StoreWatermark.objects.get)).watermark_at > row.watermark_at
        assert moved is not is_kept

        world.break_node(store_page_empty=False)
        await go(world, walker)
        assert set(await world.paths()) == set(ours)

    run(scenario)


def test_duplicates_on_a_page_are_taken_once(run):
    async def scenario(world):
        await watermark(world)
        ours = world.archive(*messages(90))
        world.break_node(store_duplicates=True)
        await go(world, world.walker(), times=2)
        assert sorted(world.new) == sorted(ours)

    run(scenario)


def test_a_page_that_the_database_did_not_take_is_read_again(run, monkeypatch):
    async def scenario(world):
        await watermark(world)
        ours = world.archive(*messages(10))
        walker = world.walker()
        with monkeypatch.context() as broken:
            broken.setattr(world.intake, "_insert", failing)
            await go(world, walker)
        assert await world.paths() == {}
        await go(world, walker)
        assert len(await world.paths()) == len(ours)

    run(scenario)


async def failing(*_args):
    raise OperationalError


class Telling:
    """A store that answers every query with these pages in turn."""

    url = "http://127.0.0.1:1"

    def __init__(self, *pages):
        self.pages = list(pages)

    async def store_page(self, **_params):
        return self.pages.pop(0) if self.pages else StorePage()


@pytest.mark.parametrize("nonsense", [None, 5, {}, {"contentTopic": None}, {"contentTopic": "x" * 10_000}])
def test_invalid_entries_do_not_stop_the_rest_of_a_page(run, nonsense):
    async def scenario(world):
        good = message()
        entries = [
            StoreEntry(b"", PUBSUB_TOPIC, nonsense),
            StoreEntry(b"", PUBSUB_TOPIC, to_json(good)),
            StoreEntry(b"\1" * 32, "/waku/2/rs/16/64", to_json(message())),
        ]
        pages = world.walker(Telling(StorePage(tuple(entries))))._pages
        window = Window(timezone.now(), timezone.now())
        assert await pages.read(window, PagePosition(with_messages=True), loop="fast") is None
        assert world.new == [message_hash(PUBSUB_TOPIC, good)]

    run(scenario)


class HalfNameless:
    """A store of two messages that returns the hash of one of them."""

    url = "http://127.0.0.1:1"

    def __init__(self, named, nameless):
        self.named = StoreEntry(message_hash(PUBSUB_TOPIC, named), PUBSUB_TOPIC, to_json(named))
        self.nameless = StoreEntry(b"", PUBSUB_TOPIC, to_json(nameless))

    async def store_page(self, *, includeData, hashes="", **_others):  # noqa: N803 - the name on the wire
        entries = (self.named,) if hashes else (self.named, self.nameless)
        return StorePage(entries if includeData == "true" else tuple(replace(each, message=None) for each in entries))


def test_a_message_without_a_hash_is_taken_in(run):
    """It cannot be fetched by its hash, so its page is requested again, with all its messages."""

    async def scenario(world):
        named, nameless = messages(2)
        pages = world.walker(HalfNameless(named, nameless))._pages
        assert await pages.read(Window(timezone.now(), timezone.now()), PagePosition(), loop="fast") is None
        assert world.new == [message_hash(PUBSUB_TOPIC, each) for each in (named, nameless)]

    run(scenario)


class Misnaming:
    """A store of one message, which it returns under the hash of another one."""

    url = "http://127.0.0.1:1"

    def __init__(self, real, garbage):
        self._entry = StoreEntry(message_hash(PUBSUB_TOPIC, real), PUBSUB_TOPIC, to_json(garbage))
        self.fetched = 0

    async def store_page(self, *, includeData, **_others):  # noqa: N803 - the name on the wire
        self.fetched += includeData == "true"
        return StorePage((self._entry if includeData == "true" else replace(self._entry, message=None),))


@pytest.mark.parametrize("topic", [conftest.PERSONAL, FOREIGN])
@pytest.mark.parametrize("with_messages", [True, False])
def test_a_message_under_a_wrong_hash_is_fetched_once_there_and_taken_from_another_store(run, topic, with_messages):
    async def scenario(world):
        await watermark(world)
        real = message()
        [ours] = world.archive(real)
        store = Misnaming(real, message(topic))
        pages = world.walker(store)._pages
        for _ in range(3):
            await pages.read(
                Window(timezone.now(), timezone.now()), PagePosition(with_messages=with_messages), loop="fast"
            )
        assert with_messages or store.fetched == 1
        await go(world, world.walker())
        assert ours in await world.paths()

    run(scenario)


class Sparing(conftest.Watched):
    """A store that returns ten of the requested messages at once, and never a certain one."""

    def __init__(self, world, withheld):
        super().__init__(world.url, world.client)
        self._withheld = withheld

    async def store_page(self, **params):
        page = await super().store_page(**params)
        if "hashes" not in params:
            return page
        given = [entry for entry in page.entries if entry.message_hash != self._withheld]
        return replace(page, entries=tuple(given[:10]))


def test_a_store_that_returns_few_messages_at_once_is_queried_until_it_returns_none(run):
    async def scenario(world):
        await watermark(world)
        ours = world.archive(*messages(60))
        with capture_logs() as logs:
            await go(world, world.walker(Sparing(world, ours[30])))
        assert set(await world.paths()) == {*ours} - {ours[30]}
        assert [each["count"] for each in logs if each["event"] == "store_withholds_messages"] == [1]

    run(scenario)


def test_a_message_for_a_topic_that_became_ours_before_the_page_was_read_is_taken(run):
    async def scenario(world):
        await watermark(world)
        await asyncio.to_thread(listen_to, [CLIENT.key_hash], now=timezone.now())
        [query] = world.archive(message(QUERIED))
        await go(world, world.walker())
        assert query in await world.paths()

    run(scenario)


def test_the_walker_ends_with_its_term(run):
    async def scenario(world):
        await watermark(world)
        running = asyncio.create_task(world.walker().run(world.term))
        await asyncio.sleep(0.1)
        world.term.ended.set()
        async with asyncio.timeout(5):
            await running

    run(scenario)


# Another database ----------------------------------------------------------------------------------------------------


async def fail_over(world, *lost):
    """End the connection and remove these envelopes, as if a standby without them was promoted."""
    [(pid,)] = await world.session.execute("SELECT pg_backend_pid()")
    async with await psycopg.AsyncConnection.connect(**conftest.parameters(), autocommit=True) as other:
        for table in ("waku_bridge_inboundenvelope", "waku_bridge_envelopehash"):
            await other.execute(f"DELETE FROM {table} WHERE hash = ANY (%s::bytea[])", [list(lost)])
        await other.execute("SELECT pg_terminate_backend(%s)", [pid])
    with suppress(psycopg.Error):
        await world.session.execute("SELECT 1")


def test_messages_that_only_the_old_primary_had_are_read_again(run):
    async def scenario(world):
        await watermark(world)
        lost = world.publish(*messages(4))
        await world.live()._read_once(world.term)
        await go(world, world.walker())
        await fail_over(world, *lost)
        assert await world.paths() == {}
        await go(world, world.walker())
        assert await world.paths() == dict.fromkeys(lost, "store")

    run(scenario)


class FailingOver(conftest.Watched):
    """A store that makes the database fail over during one of its answers."""

    def __init__(self, world, *lost, during=1):
        super().__init__(world.url, world.client)
        self._world, self._lost, self._during = world, lost, during

    async def store_page(self, **params):
        page = await super().store_page(**params)
        if len(self.asked) == self._during:
            await fail_over(self._world, *self._lost)
        return page


def test_a_pass_that_began_at_the_old_primary_moves_no_watermark(run):
    async def scenario(world):
        row = await watermark(world, seconds_ago=60)
        lost = world.publish(*messages(4))
        await world.live()._read_once(world.term)
        walker = world.walker(FailingOver(world, *lost))
        await go(world, walker)
        await asyncio.to_thread(row.refresh_from_db)
        assert row.watermark_at < timezone.now() - timedelta(seconds=50)
        await go_until_done(world, walker)
        await go(world, walker)
        assert await world.paths() == dict.fromkeys(lost, "store")

    run(scenario)


def test_after_a_failover_a_walker_goes_back_as_far_as_after_a_start(run):
    async def scenario(world):
        await watermark(world)
        walker = world.walker()
        await go(world, walker)
        await asyncio.sleep(0.1)
        await go(world, walker)
        _, usual = [asked["startTime"] for asked in world.node.asked]
        await fail_over(world)
        await asyncio.sleep(0.1)  # the period of passes
        await go(world, walker)
        assert world.node.asked[2]["startTime"] < usual

    run(scenario)


def test_the_hashes_of_a_page_before_a_failover_are_not_remembered_after_it(run):
    """The two queries for hashes are answered before and after the fail-over."""

    async def scenario(world):
        await watermark(world, seconds_ago=60)
        ours = world.archive(*messages(HASHES_PER_QUERY + 10))
        store = FailingOver(world, *ours, during=3)  # a page, fifty of its messages, the other ten
        walker = world.walker(store)
        await go(world, walker)
        await go_until_done(world, walker)
        await go(world, walker)
        assert await world.paths() == dict.fromkeys(ours, "store")

    run(scenario)


def test_a_slice_of_the_past_that_began_at_the_old_primary_is_not_finished(run):
    """Its first page is lost with the old primary, and its last one is stored in the new one."""

    async def scenario(world):
        row = await watermark(world)
        ours = world.archive(*messages(150, seconds_ago=600))
        now = timezone.now()
        start, end = now - timedelta(seconds=620), now - timedelta(seconds=580)
        await asyncio.to_thread(make_window, row, start_at=start, end_at=end)
        walker = world.walker(FailingOver(world, *ours, during=3))  # what is fresh, and two pages
        pending = await walker._pass(world.term)
        pending = await walker._catch_up(pending)
        assert len(await world.paths()) == 100
        with pytest.raises(psycopg.OperationalError, match="ended meanwhile"):
            await walker._catch_up(pending)
        assert await windows_left()
        await asyncio.to_thread(lambda: StoreWindow.objects.update(cursor=""))  # the page was turned in the last second
        await go_until_done(world, walker)
        assert await world.paths() == dict.fromkeys(ours, "store")

    run(scenario)
