"""Whole bridges on one node: two at once, killed and stopped ones, and restarts of the node and the database."""

import asyncio
import os
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM
from urllib.parse import quote

import psycopg
import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from kit.health.indicators import State
from kit.http.notices import Notice
from kit.processes.leader import WAKU_BRIDGE, holders
from tests.rig.budget import first_everyday
from tests.rig.conversation import CLIENT, PUBSUB_TOPIC
from tests.rig.rows import make_watermark
from waku_bridge.models import InboundEnvelope, StoreWatermark
from waku_bridge.node.config_check.saved import NOTICES
from waku_bridge.query_topics import listen_to
from waku_bridge.reading import bridge as bridge_module
from waku_bridge.reading.bridge import Bridge, Plan
from waku_bridge.reading.store import backfill, store_pages
from waku_bridge.reading.tests.conftest import FOREIGN, QUERIED, listening, message, messages, parameters

TIMEOUT_SECONDS = 30
MAX_WAITING = 1000
PROJECT = Path(__file__).parents[3]
TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> %s"


def plan(world):
    return Plan(
        nodes=[world.url],
        store_nodes=[world.url],
        pubsub_topics=[PUBSUB_TOPIC],
        ring_capacity=50,
        store_period_seconds=0.5,
        recovery=timedelta(hours=1),
        backfill=timedelta(minutes=5),
        keep=timedelta(days=3),
        max_waiting=MAX_WAITING,
    )


@asynccontextmanager
async def bridge(world):
    """Run a bridge in this process."""
    stopped = asyncio.Event()
    running = asyncio.create_task(Bridge(plan(world), world.client).run(stopped))
    try:
        yield
    finally:
        stopped.set()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await running


async def until(is_so, what):
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not await is_so():  # noqa: ASYNC110 - the database has no events
                await asyncio.sleep(0.05)
    except TimeoutError:
        pytest.fail(f"not within {TIMEOUT_SECONDS} s: {what}")


async def until_all_there(world, hashes):
    async def are_there():
        return set(hashes) <= set(await world.paths())

    await until(are_there, f"{len(hashes)} messages in the inbox")


async def until_there_once(world, ours):
    """Wait until the inbox has exactly these messages, each once."""
    await until_all_there(world, ours)
    assert await asyncio.to_thread(InboundEnvelope.objects.count) == len(ours)


async def until_heard_of(heard, bridges):
    """Wait for announcements. Each bridge writes on one connection, which its announcements name."""

    async def are_announced():
        return len({notice.pid for notice in heard}) >= bridges

    await until(are_announced, f"announcements of {bridges} bridges")


async def until_held():
    async def is_held():
        return bool(await asyncio.to_thread(holders, WAKU_BRIDGE))

    await until(is_held, "the lock is held")


def test_two_bridges_on_one_node_do_not_split_its_messages(run):
    async def scenario(world):
        async with listening() as heard, bridge(world):
            await until_held()
            async with bridge(world):
                ours = []
                for _ in range(20):
                    ours += world.publish(*messages(3), *messages(2, FOREIGN))[:3]
                    await asyncio.sleep(0.05)
                await until_there_once(world, ours)
                await until_heard_of(heard, 1)
            assert len({notice.pid for notice in heard}) == 1, "only the first wrote anything"

    run(scenario)


def test_the_second_bridge_goes_on_where_the_first_was_stopped(run):
    async def scenario(world):
        async with listening() as heard, AsyncExitStack() as first:
            await first.enter_async_context(bridge(world))
            await until_held()
            async with bridge(world):
                ours = world.publish(*messages(5))
                await until_all_there(world, ours)
                await first.aclose()
                ours += world.publish(*messages(5))
                await until_there_once(world, ours)
                await until_heard_of(heard, 2)

    run(scenario)


def test_a_restart_of_the_database_loses_no_message(run):
    async def scenario(world):
        async with bridge(world):
            await until_held()
            ours = []
            for number in range(30):
                ours += world.publish(*messages(2))
                if number == 10:
                    await asyncio.to_thread(end_all_sessions)
                await asyncio.sleep(0.05)
            await until_there_once(world, ours)

    run(scenario)


def end_all_sessions():
    with psycopg.connect(**parameters(), autocommit=True) as admin:
        admin.execute(TERMINATE, [admin.info.backend_pid])


def test_restarts_of_the_node_and_lost_answers_lose_no_message(run):
    async def scenario(world):
        async with bridge(world):
            await until_held()
            ours = []
            for number in range(40):
                ours += world.publish(*messages(3))
                if number % 7 == 3:
                    world.break_node(cut_after_drain=1)
                if number % 13 == 5:
                    world.devnode.restart()
                await asyncio.sleep(0.05)
            await until_there_once(world, ours)
            paths = await world.paths()
            assert set(paths.values()) == {"live", "store"}, "both paths had something to do"

    run(scenario)


def test_a_bridge_stops_in_the_middle_of_a_backfill_that_takes_long(run, monkeypatch):
    monkeypatch.setattr(backfill, "SETTLE_SECONDS", 0.05)
    monkeypatch.setattr(store_pages, "PAGE_SIZE", 1)
    monkeypatch.setattr(bridge_module, "STOP_SECONDS", 0.5)

    async def scenario(world):
        await asyncio.to_thread(make_watermark, node=world.url)  # otherwise the walker reads as far back
        world.archive(*messages(500, QUERIED, seconds_ago=200))
        world.break_node(reply_delay_ms=100)
        async with bridge(world):  # its end waits for the backfill, but not as long as that takes
            await until_all_there(world, world.publish(message()))  # then it has loaded all topics
            await asyncio.to_thread(listen_to, [CLIENT.key_hash], now=timezone.now())
            await until(lambda: _is_backfilling(world), "the backfill began")
        assert len(await world.paths()) < 500

    run(scenario)


async def _is_backfilling(world):
    return "backfill" in (await world.paths()).values()


# Bridges that are processes -------------------------------------------------------------------------------------------


@contextmanager
def process(world, folder, **environment):
    database = connection.settings_dict
    environment = {
        **os.environ,
        "DATABASE_URL": f"postgresql://postgres@/{database['NAME']}?host={quote(_host(database), safe='')}",
        "WAKU_NODES": world.url,
        **environment,
    }
    command = [sys.executable, str(PROJECT / "manage.py"), "run_waku_bridge"]
    with (folder / "bridge.log").open("ab") as log:
        running = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        yield running
    finally:
        running.kill()
        running.wait()


def _host(database):
    return database["OPTIONS"].get("host") or database["HOST"]


@pytest.mark.parametrize("signal", first_everyday(SIGKILL, SIGTERM), ids=["killed", "stopped"])
def test_a_standby_takes_over_and_finds_the_page_of_the_dead_bridge_in_the_store(run, tmp_path, signal):
    """The first bridge holds a page that the database does not take, because the inbox is locked."""

    async def scenario(world):
        with process(world, tmp_path) as first:
            await until_held()
            async with bridge(world):
                locked = await psycopg.AsyncConnection.connect(**parameters())
                await locked.execute("LOCK TABLE waku_bridge_inboundenvelope IN ACCESS EXCLUSIVE MODE")
                ours = world.publish(*messages(5))
                await until(lambda: _drained(world), "the page was drained")
                first.send_signal(signal)
                await asyncio.to_thread(first.wait, 15)
                await locked.rollback()
                await locked.close()
                ours += world.publish(*messages(5))
                await until_all_there(world, ours)

    run(scenario)


async def _drained(world):
    return len(world.devnode.ring) == 0


def test_messages_from_before_the_start_of_a_bridge_are_read(run, tmp_path):
    async def scenario(world):
        with process(world, tmp_path):
            await until_held()
            await until_all_there(world, world.publish(message()))
        hour_ago = timezone.now() - timedelta(hours=1)
        await asyncio.to_thread(lambda: StoreWatermark.objects.update(watermark_at=hour_ago))
        world.devnode.restart()
        ours = world.archive(*messages(30, seconds_ago=1800), *messages(30))
        async with bridge(world):
            await until_all_there(world, ours)
        assert await asyncio.to_thread(InboundEnvelope.objects.count) == 61

    run(scenario)


def test_a_bridge_that_is_stopped_is_no_node_that_does_not_answer(run, tmp_path, settings):
    async def scenario(world):
        settings.WAKU_NODES = [world.url]
        NOTICES.save(Notice(world.url, timezone.now(), (), {}, None))
        with process(world, tmp_path) as stopped:
            await until(lambda: _states_are(bridge=State.GREEN, node=State.GREEN), "the bridge is at work")
            stopped.send_signal(SIGSTOP)
            seen = []
            await until(lambda: _states_are(seen, bridge=State.RED, node=State.GREY), "the bridge has stopped")
            assert {states["node"] for states in seen} == {State.GREEN, State.GREY}
            stopped.send_signal(SIGCONT)
            await until(lambda: _states_are(bridge=State.GREEN, node=State.GREEN), "the bridge goes on")

    run(scenario)


async def _states_are(seen=None, **expected):
    answer = await asyncio.to_thread(Client().get, "/readyz")
    states = {found["id"].partition("-")[0]: found["state"] for found in answer.json()["indicators"]}
    if seen is not None:
        seen.append(states)
    return {name: states[name] for name in expected} == expected
