"""The store path, on a real store and a real database."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib import import_module

import psycopg
import pytest
from django.db import OperationalError, connection, transaction
from django.utils import timezone

from kit.db.base import connection_parameters
from kit.http import Backoff
from tests.rig.conversation import PUBSUB_TOPIC
from tests.rig.logs import capture_logs
from tests.rig.rows import make_watermark
from waku_bridge.dialect import StoreEntry, to_json
from waku_bridge.models import StoreWatermark
from waku_bridge.node import BUSY_SECONDS
from waku_bridge.reading.pages import Reader
from waku_bridge.reading.stores import EPOCH, FAST, HASHES_PER_QUERY, MAX_SECONDS, MINUTE, SLOW, TIERS, Marks, Window
from waku_bridge.reading.tests import conftest
from waku_bridge.reading.tests.conftest import FOREIGN

HOUR, DAY = 3600, 86_400
NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
TICK = 1e-6
FRESH = 5  # age of a message in seconds that the fast tier reads


def message(*topic, seconds_ago=FRESH):
    return conftest.message(*topic, seconds_ago=seconds_ago)


def messages(count, *topic, seconds_ago=FRESH):
    return conftest.messages(count, *topic, seconds_ago=seconds_ago)


def ago(seconds):
    return timezone.now() - timedelta(seconds=seconds)


@pytest.fixture(autouse=True)
def _mark(world):
    """Note that the store was read a moment ago. Otherwise it is read from an hour ago."""
    make_watermark(node=world.url, at=ago(100), late_searched_at=ago(100))


async def was_read(seconds_ago, **fields):
    """Let the store have been read last at that time."""
    await asyncio.to_thread(StoreWatermark.objects.update, watermark_at=ago(seconds_ago), **fields)


async def watermark():
    return (await asyncio.to_thread(StoreWatermark.objects.get)).watermark_at


async def failing(*_args):
    raise OperationalError


def events(logs):
    return [entry["event"] for entry in logs]


# What is read when ----------------------------------------------------------------------------------------------------


def next_window(tier, until, now=NOW):
    marks = Marks(None, Reader("store", "http://one", PUBSUB_TOPIC), recovery=timedelta(days=2))
    marks._until = {tier: until}
    return marks.next_window(tier, now)


@pytest.mark.parametrize(
    ("tier", "until", "window"),
    [
        (FAST, -3, None),  # no time has passed
        (FAST, -6, (-6, -3)),
        (FAST, -100, (-100, -40)),  # a minute at a time
        (FAST, -HOUR, (-180, -120)),  # the minute tier reads the rest
        (MINUTE, -75, (-75, -60)),
        (MINUTE, -HOUR, (-HOUR, -HOUR + 60)),
        (MINUTE, -30 * DAY, (-2 * DAY, -2 * DAY + 60)),  # no further than hashes are remembered
        (SLOW, -75 * 60, (-75 * 60, -74 * 60)),
        (SLOW, -65 * 60, None),
        (MINUTE, -30, None),  # the clock was corrected by half a minute: it waits
        (FAST, HOUR, (-180, -120)),  # the clock was ahead for an unknown time: everything is read again
        (MINUTE, HOUR, (-2 * DAY, -2 * DAY + 60)),
    ],
)
def test_a_tier_reads_what_has_reached_its_age_since_it_read_last(tier, until, window):
    found = next_window(tier, NOW + timedelta(seconds=until))
    at = window and [NOW + timedelta(seconds=seconds) for seconds in window]
    assert found == (at and Window(at[0] + timedelta(microseconds=1), at[1]))


def test_windows_leave_nothing_out_between_them_and_nanoseconds_are_exact():
    first = next_window(FAST, NOW - timedelta(seconds=6.5))
    second = next_window(FAST, first.end_at, NOW + timedelta(seconds=1))
    assert second.nanoseconds[0] == first.nanoseconds[1] + 1
    odd = Window(EPOCH, datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=UTC))
    assert odd.nanoseconds == (0, 1767225600_123456_999)


@pytest.mark.parametrize(("tier", "age"), [(MINUTE, 70), (SLOW, 70 * 60)])
async def test_what_a_store_inserts_late_is_found_when_it_has_the_age_of_the_next_tier(world, tier, age):
    """The store was read beyond its timestamp before it came, so no cursor would find it."""
    store = world.store()
    await was_read(100, late_searched_at=ago(600))
    for earlier in TIERS[: TIERS.index(tier)]:
        await world.walk(store, earlier)
    [late] = world.archive(message(seconds_ago=age))
    for earlier in TIERS[: TIERS.index(tier)]:
        await world.walk(store, earlier)
    assert await world.paths() == {}
    assert await world.walk(store, tier) == tier.period.total_seconds()
    assert await world.paths() == {late: "store"}


async def test_a_tier_reads_no_message_twice_also_after_a_restart(world):
    await was_read(300, late_searched_at=ago(700))
    for tier in TIERS:
        await world.walk(tier=tier)
    asked = {(query["startTime"], query["endTime"]) for query in world.node.asked}
    assert len(asked) == len(world.node.asked)
    world.node.asked.clear()
    for tier in (MINUTE, SLOW):
        await world.walk(tier=tier)
    assert all(end - start < 10**9 for start, end in ((q["startTime"], q["endTime"]) for q in world.node.asked))


async def test_a_store_that_was_never_read_is_read_from_an_hour_ago(world):
    await asyncio.to_thread(StoreWatermark.objects.all().delete)
    [ours], _ = world.archive(message(seconds_ago=HOUR)), world.archive(message(seconds_ago=2 * HOUR))
    for tier in TIERS:
        await world.walk(tier=tier)
    assert set(await world.paths()) == {ours}


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
async def test_a_tier_brings_all_that_was_missed_once_and_nothing_for_others(world, count, faults, is_healed):
    ours = world.archive(*messages(count), *messages(2, seconds_ago=50))
    world.archive(*messages(5, FOREIGN))
    world.break_node(**faults)
    store = world.store()
    for _ in range(3):
        await world.walk(store)
    if is_healed:
        world.break_node(**dict.fromkeys(faults, False))
        await world.walk(store)
    assert await world.paths() == dict.fromkeys(ours, "store")
    assert sorted(world.new) == sorted(ours)


async def test_a_message_of_both_paths_is_taken_once(world):
    ours = world.publish(*messages(4))
    await world.read()
    ours += world.archive(message())
    for tier in (FAST, MINUTE, FAST):
        await world.walk(tier=tier)
    world.devnode.restart()
    await world.read()
    assert sorted(world.new) == sorted(ours)
    assert sorted((await world.paths()).values()) == ["live"] * 4 + ["store"]


async def test_only_messages_that_were_not_read_live_are_fetched_ours_or_not(world):
    world.publish(*messages(20), *messages(29, FOREIGN))
    await world.read()
    [new] = world.archive(message())
    await world.walk()
    *_, page, fetch = world.node.asked
    assert page["includeData"] == "false"
    assert fetch["hashes"] == f"0x{new.hex()}"


@pytest.mark.parametrize(("count", "asked"), [(99, ["hashes", 50, 49]), (300, ["hashes", 50, 50, "whole", "whole"])])
async def test_queries_are_bounded_and_ask_for_all_where_most_is_unknown(world, count, asked):
    def kind(query):
        return len(query["hashes"].split(",")) if "hashes" in query else kinds[query["includeData"]]

    kinds = {"false": "hashes", "true": "whole"}
    await was_read(80)  # a first window without a message, up to twenty seconds ago
    world.archive(*messages(count, FOREIGN))
    await world.walk()
    assert list(map(kind, world.node.asked[1:])) == asked
    assert all("contentTopics" not in query for query in world.node.asked)


# Outages --------------------------------------------------------------------------------------------------------------


async def test_after_an_outage_the_watermark_walks_on_while_new_messages_come(world):
    await was_read(seconds_ago=HOUR)
    ages = (HOUR - 10, HOUR / 2, FRESH)
    ours = world.archive(*(message(seconds_ago=age) for age in ages))
    store = world.store()
    with capture_logs() as logs:
        await world.step(store, MINUTE)
        await world.walk(store, FAST)
        await world.walk(store, MINUTE)
    assert world.new == [ours[0], ours[2], ours[1]]
    assert await watermark() > ago(65)
    assert [event for event in events(logs) if "caught" in event or "catching" in event] == [
        *("store_catching_up", "store_caught_up")
    ]


async def test_a_query_that_hangs_holds_up_its_own_tier_alone(world):
    async def hang(page, params):
        if params.get("startTime", 2**63) < (EPOCH + (ago(200) - EPOCH)).timestamp() * 10**9:
            await asyncio.Event().wait()
        return page

    await was_read(seconds_ago=HOUR)
    [ours] = world.archive(message())
    world.node.change = hang
    reading = asyncio.create_task(world.store().run(world.term))
    await world.holds(ours)
    assert await watermark() < ago(HOUR - 10)
    reading.cancel()


async def test_catching_up_goes_on_after_a_restart(world):
    await was_read(seconds_ago=HOUR)
    ours = world.archive(*messages(250, seconds_ago=HOUR / 2), *messages(3, seconds_ago=HOUR / 2 - 300))
    first = world.store()
    while len(world.new) < 250:
        await world.step(first, MINUTE)
    reached = await watermark()
    world.node.asked.clear()

    await world.walk(tier=MINUTE)
    assert len(await world.paths()) == len(ours)
    assert min(query["startTime"] for query in world.node.asked if "startTime" in query) >= reached.timestamp() * 10**9


async def test_a_gap_that_is_too_old_to_recover_is_logged(world):
    await was_read(seconds_ago=3 * DAY)
    with capture_logs() as logs:
        await world.step(world.store(), MINUTE)
    [shown] = [entry for entry in logs if entry["event"] == "store_gap_unrecoverable"]
    assert shown["log_level"] == "error"
    assert abs(shown["seconds"] - DAY) < 90


async def test_what_the_release_before_had_still_to_read_is_read(world):
    """The migration that removes its table of windows moves the watermark back."""

    def migrate():
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("""
                CREATE TABLE waku_bridge_storewindow AS
                SELECT id AS watermark_id, now() - interval '2 hours' AS start_at FROM waku_bridge_storewatermark
            """)
            for statement in import_module("waku_bridge.migrations.0006_windows_end").FOLD:
                cursor.execute(statement)

    await asyncio.to_thread(migrate)
    [ours] = world.archive(message(seconds_ago=1.5 * HOUR))
    await world.walk(tier=MINUTE)
    assert set(await world.paths()) == {ours}
    world.node.asked.clear()
    await world.walk(tier=MINUTE)
    assert len(world.node.asked) <= 1


# Faults of the store --------------------------------------------------------------------------------------------------


async def test_a_store_that_is_lost_and_back_is_logged_once_for_all_tiers(world):
    store = world.store()
    store._backoff = Backoff(max_seconds=0)  # a store is back as soon as it answers
    await was_read(300, late_searched_at=ago(700))
    world.break_node(store_no_peer=len(TIERS))
    with capture_logs() as logs:
        for tier in (*TIERS, *TIERS):
            await world.step(store, tier)
    assert [event for event in events(logs) if event in ("store_lost", "store_back")] == ["store_lost", "store_back"]


@pytest.mark.parametrize("fault", ["store_no_peer", "store_rate_limited", "store_too_many_requests"])
async def test_a_store_that_limits_our_rate_is_read_again_after_a_while(world, fault):
    [ours] = world.archive(message())
    world.break_node(**{fault: 1})
    store = world.store()
    refused = await world.walk(store)
    await world.walk(store)
    assert 0 < refused <= MAX_SECONDS if fault == "store_no_peer" else refused > BUSY_SECONDS
    assert ours in await world.paths()


async def test_an_empty_page_after_a_cursor_moves_no_watermark_over_messages(world):
    """The store has 150 messages, and answers the second page with an empty list and without a cursor."""
    before = await watermark()
    ours = world.archive(*messages(150, seconds_ago=90))
    world.break_node(store_page_empty=True)
    store = world.store()
    with capture_logs() as logs:
        await world.walk(store, MINUTE)
    assert "store_lost" in events(logs)
    assert await watermark() == before

    world.break_node(store_page_empty=False)
    await world.walk(store, MINUTE)
    assert set(await world.paths()) == set(ours)


async def test_a_page_that_the_database_did_not_take_is_read_again(world, monkeypatch):
    ours = world.archive(*messages(10))
    store = world.store()
    with monkeypatch.context() as broken:
        broken.setattr(world.intake, "_insert", failing)
        await world.walk(store)
    assert await world.paths() == {}
    await world.walk(store)
    assert len(await world.paths()) == len(ours)


async def test_invalid_entries_do_not_stop_the_rest_of_a_page(world):
    async def add_nonsense(page, _params):
        raws = [None, 5, {}, {"contentTopic": None}, {"contentTopic": "x" * 10_000}]
        other_shard = StoreEntry(b"\1" * 32, "/waku/2/rs/16/64", to_json(message()))
        entries = (*(StoreEntry(b"", PUBSUB_TOPIC, raw) for raw in raws), *page.entries, other_shard)
        return replace(page, entries=entries)

    [good] = world.archive(message())
    world.node.change = add_nonsense
    assert await world.walk() == FAST.period.total_seconds()
    assert world.new == [good]


async def test_a_message_without_a_hash_is_taken_in(world):
    """It cannot be fetched by its hash, so its page is requested again, with all its messages."""

    async def conceal(page, _params):
        return replace(
            page, entries=(*page.entries[:1], *(replace(each, message_hash=b"") for each in page.entries[1:]))
        )

    ours = world.archive(*messages(2))
    world.node.change = conceal
    await world.walk()
    assert sorted(world.new) == sorted(ours)


@pytest.mark.parametrize("topic", [conftest.PERSONAL, FOREIGN])
async def test_a_message_under_a_wrong_hash_is_taken_from_another_store(world, topic):
    async def misname(page, _params):
        return replace(page, entries=tuple(replace(each, message=each.message and garbage) for each in page.entries))

    garbage, window = to_json(message(topic)), Window(ago(60), timezone.now())
    [ours] = world.archive(message())
    world.node.change = misname
    for _ in range(2):
        await world.store()._read(window, world.term, loop="fast")
    honest = conftest.Watched(world.url.replace("127.0.0.1", "localhost"), world.client)
    await world.store(honest)._read(window, world.term, loop="fast")
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
        for table in ("waku_bridge_openenvelope", "waku_bridge_envelopehash"):
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
    store = world.store()
    await world.walk(store)
    await fail_over(world, *lost)
    assert await world.paths() == {}
    await world.walk(store)
    assert await world.paths() == dict.fromkeys(lost, "store")


@pytest.mark.parametrize(("count", "number"), [(4, 1), (HASHES_PER_QUERY + 10, 3), (150, 4)])
async def test_a_window_that_began_at_the_old_primary_moves_no_watermark(world, count, number):
    """The fail-over strikes during the page of hashes, between two queries for messages, or at a second page. What was
    stored or remembered before it is read again.
    """
    before = await watermark()
    lost = world.archive(*messages(count, seconds_ago=90))
    fail_over_during(world, number, *lost)
    store = world.store()
    await world.walk(store, MINUTE)
    assert await watermark() == before
    await world.walk(store, MINUTE)
    assert await watermark() > before
    assert await world.paths() == dict.fromkeys(lost, "store")
