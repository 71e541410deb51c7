"""The store path, on a real store and a real database."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from django.db import OperationalError
from django.utils import timezone
from structlog.testing import capture_logs

from kit.db.connections import connection_parameters
from tests.rig.conversation import PUBSUB_TOPIC
from tests.rig.rows import make_watermark, make_window
from waku_bridge.models import StoreWatermark, StoreWindow
from waku_bridge.node import StoreEntry, to_json
from waku_bridge.node.client import BUSY_SECONDS
from waku_bridge.reading.store import progress
from waku_bridge.reading.store.progress import Reason, StoreProgress
from waku_bridge.reading.store.store_pages import HASHES_PER_QUERY, PagePosition
from waku_bridge.reading.store.walker import MAX_SECONDS
from waku_bridge.reading.store.windows import OVERLAP, SETTLE, Plan, Window
from waku_bridge.reading.tests import conftest
from waku_bridge.reading.tests.conftest import FOREIGN

HOUR = 3600
BEGAN, AN_HOUR = datetime(2026, 1, 1, tzinfo=UTC), timedelta(hours=1)
# Age of a message in seconds that a pass reads: younger ones are left to the next pass.
FRESH = SETTLE.total_seconds() + 2


def message(*topic, seconds_ago=FRESH):
    return conftest.message(*topic, seconds_ago=seconds_ago)


def messages(count, *topic, seconds_ago=FRESH):
    return conftest.messages(count, *topic, seconds_ago=seconds_ago)


def ago(seconds):
    return timezone.now() - timedelta(seconds=seconds)


@pytest.fixture(autouse=True)
def mark(world):
    """Note that the store was read a moment ago. Otherwise its last hour is searched first."""
    return make_watermark(node=world.url, at=timezone.now(), late_searched_at=timezone.now())


async def was_read(seconds_ago):
    """Let the store have been read last at that time."""
    await asyncio.to_thread(StoreWatermark.objects.update, watermark_at=ago(seconds_ago))


async def watermark():
    return (await asyncio.to_thread(StoreWatermark.objects.get)).watermark_at


async def windows_left():
    return await asyncio.to_thread(lambda: list(StoreWindow.objects.order_by("pk")))


async def walk_to_the_end(world, walker=None):
    """Make passes until no window of the past is pending."""
    walker = walker or world.walker()
    async with asyncio.timeout(30):
        while await world.walk(walker) and await windows_left():
            pass


async def failing(*_args):
    raise OperationalError


@pytest.mark.parametrize(
    ("count", "faults", "is_healed"),
    [
        (250, {}, False),
        (90, {"store_duplicates": True}, False),  # on a full page they take the place of others
        (250, {"store_cursor_not_found": 2}, False),
        (250, {"store_cursor_stuck": True}, True),
        (250, {"store_cursor_circles": True}, True),
    ],
)
async def test_a_pass_brings_all_that_was_missed_once_and_nothing_for_others(world, count, faults, is_healed):
    ours = world.archive(*messages(count), *messages(2, seconds_ago=50))
    world.archive(*messages(5, FOREIGN))
    world.break_node(**faults)
    walker = world.walker()
    async with asyncio.timeout(10):  # no endless loop
        await world.walk(walker)
    if is_healed:
        world.break_node(**dict.fromkeys(faults, False))
        await world.walk(walker)
    assert await world.paths() == dict.fromkeys(ours, "store")
    assert sorted(world.new) == sorted(ours)


async def test_a_message_of_both_paths_is_taken_once(world):
    ours = world.publish(*messages(4))
    await world.read()
    ours += world.archive(message())
    await world.walk(world.walker(), times=3)
    world.devnode.restart()
    await world.read()
    assert sorted(world.new) == sorted(ours)
    assert sorted((await world.paths()).values()) == ["live"] * 4 + ["store"]


async def test_only_messages_that_were_not_read_live_are_fetched_ours_or_not(world):
    world.publish(*messages(20), *messages(29, FOREIGN))
    await world.read()
    [new] = world.archive(message())
    await world.walk()
    page, fetch = world.node.asked
    assert page["includeData"] == "false"
    assert fetch["hashes"] == f"0x{new.hex()}"


@pytest.mark.parametrize(("count", "asked"), [(99, ["hashes", 50, 49]), (300, ["hashes", 50, 50, "whole", "whole"])])
async def test_queries_are_bounded_and_ask_for_all_where_most_is_unknown(world, count, asked):
    def kind(query):
        return len(query["hashes"].split(",")) if "hashes" in query else kinds[query["includeData"]]

    kinds = {"false": "hashes", "true": "whole"}
    world.archive(*messages(count, FOREIGN))
    await world.walk()
    assert list(map(kind, world.node.asked)) == asked
    assert all("contentTopics" not in query for query in world.node.asked)


@pytest.mark.parametrize("doubt", ["a live read failed", "only the store had a message"])
async def test_what_the_store_inserts_late_is_found_a_minute_after_a_doubt(world, doubt):
    """The message is older than those that were read, and inserted afterwards, so no cursor would find it."""
    walker = world.walker(period_seconds=0.0)
    await world.walk(walker)
    if doubt == "a live read failed":
        walker.suspect(since=timezone.now() - OVERLAP - timedelta(seconds=10))
    else:
        await was_read(seconds_ago=30)
        world.archive(message())
    await world.walk(walker)
    [late] = world.archive(message(seconds_ago=OVERLAP.total_seconds() + 5))
    walker._settled_at = 0.0
    await world.walk(walker)
    assert late in await world.paths()


@pytest.mark.parametrize(
    ("late_searched", "found", "left"),
    [
        (620, [70 * 60], [HOUR]),  # without late messages each old message is read once more
        (2 * HOUR, [HOUR], [2 * HOUR]),  # another store delivers an hour late
        (None, [HOUR], []),  # the store was never read
    ],
)
async def test_the_past_is_searched_for_messages_that_come_late(world, late_searched, found, left):
    if late_searched is None:
        await asyncio.to_thread(StoreWatermark.objects.all().delete)
    else:
        await asyncio.to_thread(StoreWatermark.objects.update, late_searched_at=ago(late_searched))
    ours = world.archive(*(message(seconds_ago=age) for age in found))
    world.archive(*(message(seconds_ago=age) for age in left))
    await walk_to_the_end(world)
    assert set(await world.paths()) == set(ours)


# Outages --------------------------------------------------------------------------------------------------------------


async def test_after_an_outage_fresh_messages_come_first_and_then_missed_ones_newest_first(world):
    await was_read(seconds_ago=HOUR)
    ages = (FRESH, HOUR / 2, HOUR)
    ours = world.archive(*(message(seconds_ago=age) for age in ages))
    await walk_to_the_end(world, world.walker(period_seconds=0.0))
    assert world.new == ours


async def test_catching_up_goes_on_after_a_restart(world):
    await was_read(seconds_ago=HOUR)
    ours = world.archive(*messages(450, seconds_ago=HOUR / 2))
    first = world.walker(period_seconds=0.0)
    pending = await first._pass(world.term)  # notes the window
    while len(world.new) < 250:
        pending = await first._catch_up(pending)
    [noted] = await windows_left()
    assert (noted.reason, bool(noted.cursor)) == ("outage", True)
    world.node.asked.clear()

    await walk_to_the_end(world)
    assert len(await world.paths()) == len(ours)
    again = [asked for asked in world.node.asked if asked.get("cursor") == noted.cursor]
    assert again, "the second walker went on where the first one was"


async def test_a_gap_that_is_too_old_to_recover_is_logged(world):
    await was_read(seconds_ago=3 * HOUR)
    with capture_logs() as logs:
        await world.walk(world.walker(recovery=timedelta(hours=1)))
    [shown] = [entry for entry in logs if entry["event"] == "store_gap_unrecoverable"]
    assert shown["log_level"] == "error"
    assert abs(shown["seconds"] - 2 * HOUR - 90) < 30


# Faults of the store --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cursor", "faults"), [("0x" + "ab" * 32, {}), ("", {"store_cursor_circles": 2})])
async def test_a_slice_of_the_past_whose_cursor_leads_nowhere_is_begun_again(world, mark, cursor, faults):
    ours = world.archive(*messages(250, seconds_ago=600))
    await asyncio.to_thread(make_window, mark, start_at=ago(620), end_at=ago(580), cursor=cursor)
    world.break_node(**faults)
    with capture_logs() as logs:
        await walk_to_the_end(world)
    assert len(await world.paths()) == len(ours)
    assert "store_lost" in [entry["event"] for entry in logs]


@pytest.mark.parametrize("fault", ["store_no_peer", "store_rate_limited", "store_too_many_requests"])
async def test_a_store_that_limits_our_rate_is_read_again_after_a_while(world, fault):
    [ours] = world.archive(message())
    world.break_node(**{fault: 1})
    refused, _ = await world.walk(world.walker(), times=2)
    assert 0 < refused <= MAX_SECONDS if fault == "store_no_peer" else refused > BUSY_SECONDS
    assert ours in await world.paths()


@pytest.mark.parametrize("is_kept", [False, True])
async def test_an_empty_page_after_a_cursor_moves_no_watermark_over_messages(world, is_kept):
    """The store has 150 messages, and answers the second page with an empty list and without a cursor."""
    await was_read(seconds_ago=100)
    before = await watermark()
    ours = world.archive(*messages(150))
    world.break_node(store_page_empty=is_kept or 1)
    walker = world.walker()
    with capture_logs() as logs:
        await world.walk(walker)
    assert {"store_lost_the_place", *(["store_lost"] if is_kept else [])} <= {entry["event"] for entry in logs}
    assert (await watermark() > before) is not is_kept

    world.break_node(store_page_empty=False)
    await world.walk(walker)
    assert set(await world.paths()) == set(ours)


async def test_a_page_that_the_database_did_not_take_is_read_again(world, monkeypatch):
    ours = world.archive(*messages(10))
    walker = world.walker()
    with monkeypatch.context() as broken:
        broken.setattr(world.intake, "_insert", failing)
        await world.walk(walker)
    assert await world.paths() == {}
    await world.walk(walker)
    assert len(await world.paths()) == len(ours)


async def test_invalid_entries_do_not_stop_the_rest_of_a_page(world):
    async def add_nonsense(page, _params):
        raws = [None, 5, {}, {"contentTopic": None}, {"contentTopic": "x" * 10_000}]
        other_shard = StoreEntry(b"\1" * 32, "/waku/2/rs/16/64", to_json(message()))
        entries = (*(StoreEntry(b"", PUBSUB_TOPIC, raw) for raw in raws), *page.entries, other_shard)
        return replace(page, entries=entries)

    [good] = world.archive(message())
    world.node.change = add_nonsense
    pages = world.walker()._pages
    window = Window(ago(60), timezone.now())
    assert await pages.read(window, PagePosition(with_messages=True), loop="fast") is None
    assert world.new == [good]


async def test_a_message_without_a_hash_is_taken_in(world):
    """It cannot be fetched by its hash, so its page is requested again, with all its messages."""

    async def conceal(page, _params):
        return replace(page, entries=(page.entries[0], *(replace(each, message_hash=b"") for each in page.entries[1:])))

    ours = world.archive(*messages(2))
    world.node.change = conceal
    await world.walk()
    assert sorted(world.new) == sorted(ours)


@pytest.mark.parametrize("topic", [conftest.PERSONAL, FOREIGN])
@pytest.mark.parametrize("with_messages", [True, False])
async def test_a_message_under_a_wrong_hash_is_fetched_once_and_taken_from_another_store(world, topic, with_messages):
    async def misname(page, _params):
        return replace(page, entries=tuple(replace(each, message=each.message and garbage) for each in page.entries))

    garbage, window = to_json(message(topic)), Window(ago(60), timezone.now())
    [ours] = world.archive(message())
    world.node.change = misname
    pages = world.walker()._pages
    for _ in range(3):
        await pages.read(window, PagePosition(with_messages=with_messages), loop="fast")
    assert with_messages or [asked["includeData"] for asked in world.node.asked].count("true") == 1
    honest = conftest.Watched(world.url.replace("127.0.0.1", "localhost"), world.client)
    await world.walker(honest)._pages.read(window, PagePosition(), loop="fast")
    assert ours in await world.paths()


async def test_a_store_that_returns_few_messages_at_once_is_queried_until_it_returns_none(world):
    async def withhold(page, params):
        given = [entry for entry in page.entries if entry.message_hash != ours[30]]
        return replace(page, entries=tuple(given[:10])) if "hashes" in params else page

    ours = world.archive(*messages(60))
    world.node.change = withhold
    with capture_logs() as logs:
        await world.walk()
    assert set(await world.paths()) == {*ours} - {ours[30]}
    assert [each["count"] for each in logs if each["event"] == "store_withholds_messages"] == [1]


# Another database -----------------------------------------------------------------------------------------------------


async def fail_over(world, *lost):
    """End the connection and remove these envelopes, as if a standby without them was promoted."""
    [(pid,)] = await world.session.execute("SELECT pg_backend_pid()")
    async with await psycopg.AsyncConnection.connect(**connection_parameters(), autocommit=True) as other:
        for table in ("waku_bridge_inboundenvelope", "waku_bridge_envelopehash"):
            await other.execute(f"DELETE FROM {table} WHERE hash = ANY (%s::bytea[])", [list(lost)])
        await other.execute("SELECT pg_terminate_backend(%s)", [pid])
    with suppress(psycopg.Error):
        await world.session.execute("SELECT 1")


def fail_over_during(world, number, *lost):
    """Have the database fail over during this answer of the store."""

    async def change(page, _params):
        if len(world.node.asked) == number:
            await fail_over(world, *lost)
        return page

    world.node.change = change


async def test_messages_that_only_the_old_primary_had_are_read_again(world):
    lost = world.publish(*messages(4))
    await world.read()
    await world.walk()
    await fail_over(world, *lost)
    assert await world.paths() == {}
    await world.walk()
    assert await world.paths() == dict.fromkeys(lost, "store")


async def test_a_pass_that_began_at_the_old_primary_moves_no_watermark(world):
    await was_read(seconds_ago=60)
    lost = world.publish(*messages(4))
    await world.read()
    fail_over_during(world, 1, *lost)
    await world.walk(walker := world.walker())
    assert await watermark() < ago(50)
    await walk_to_the_end(world, walker)
    await world.walk(walker)
    assert await world.paths() == dict.fromkeys(lost, "store")


async def test_the_hashes_of_a_page_before_a_failover_are_not_remembered_after_it(world):
    """The two queries for hashes are answered before and after the fail-over."""
    await was_read(seconds_ago=60)
    ours = world.archive(*messages(HASHES_PER_QUERY + 10))
    fail_over_during(world, 3, *ours)  # a page, fifty of its messages, the other ten
    await world.walk(walker := world.walker())
    await walk_to_the_end(world, walker)
    await world.walk(walker)
    assert await world.paths() == dict.fromkeys(ours, "store")


async def test_a_slice_of_the_past_that_began_at_the_old_primary_is_not_finished(world, mark):
    """Its first page is lost with the old primary, and its last one is stored in the new one."""
    ours = world.archive(*messages(150, seconds_ago=600))
    await asyncio.to_thread(make_window, mark, start_at=ago(620), end_at=ago(580))
    fail_over_during(world, 3, *ours)  # what is fresh, and two pages
    walker = world.walker()
    pending = await walker._pass(world.term)
    pending = await walker._catch_up(pending)
    assert len(await world.paths()) == 100
    with pytest.raises(psycopg.OperationalError, match="ended meanwhile"):
        await walker._catch_up(pending)
    assert await windows_left()
    await asyncio.to_thread(StoreWindow.objects.update, cursor="")  # the page was turned in the last second
    await walk_to_the_end(world, walker)
    assert await world.paths() == dict.fromkeys(ours, "store")


# Progress -------------------------------------------------------------------------------------------------------------


async def test_the_windows_of_a_store_that_comes_and_goes_are_merged_by_reason(world):
    store = StoreProgress(world.session, world.url, PUBSUB_TOPIC)
    late = Window(BEGAN - AN_HOUR, BEGAN)
    await store.advance(await store.load(), Plan(watermark_at=BEGAN, fresh=late, missed=late, late=late))
    searched_at = (await store.load()).late_searched_at
    for number in range(3 * progress.MAX_WINDOWS):
        missed = Window(BEGAN + number * AN_HOUR, BEGAN + (number + 0.5) * AN_HOUR)
        plan = Plan(watermark_at=missed.end_at, fresh=missed, missed=missed)
        pending = await store.advance(await store.load(), plan)
        assert len(pending) <= progress.MAX_WINDOWS + 1
    *outages, found = pending
    assert {each.reason for each in outages} == {Reason.OUTAGE}
    assert outages[0].window.end_at == missed.end_at, "newest first"
    assert outages[-1].window.start_at == BEGAN - AN_HOUR
    assert (found.reason, found.window) == (Reason.LATE, late)
    assert (await store.load()).late_searched_at == searched_at
