"""Whole bridges on one node: two at once, killed and stopped ones, and restarts of the node and the database."""

import asyncio
import os
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM
from unittest.mock import patch
from urllib.parse import quote

import psycopg
import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from kit.batches.batch import CHANNEL
from kit.db.base import connection_parameters
from kit.processes.leader import WAKU_BRIDGE, holders
from pushserver.console.checks.engine import Notice
from pushserver.console.checks.nodes import NOTICES
from pushserver.console.health.verdicts import State
from tests.rig.budget import first_everyday
from tests.rig.conversation import CLIENT
from tests.rig.databases import notices
from tests.rig.rows import make_watermark
from waku_bridge.management.commands import run_waku_bridge
from waku_bridge.management.commands.run_waku_bridge import Bridge
from waku_bridge.models import InboundEnvelope
from waku_bridge.query_topics import listen_to
from waku_bridge.reading import stores
from waku_bridge.reading.tests.conftest import FOREIGN, QUERIED, message, messages, until

MAX_WAITING = 1000
PROJECT = Path(__file__).parents[3]
TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> %s"


@asynccontextmanager
async def bridge(world):
    """Run a bridge in this process."""
    stopped = asyncio.Event()
    with patch.object(run_waku_bridge, "MAX_WAITING", MAX_WAITING):
        readers = Bridge(world.client, nodes=[world.url], store_nodes=[world.url])
    running = asyncio.create_task(readers.run(stopped))
    try:
        yield
    finally:
        stopped.set()
        async with asyncio.timeout(30):
            await running


async def hold_each_once(world, ours):
    """Wait until the inbox has exactly these messages, each once."""
    await world.holds(*ours)
    assert await asyncio.to_thread(InboundEnvelope.objects.count) == len(ours)


async def until_held():
    await until(lambda: asyncio.to_thread(lambda: bool(holders(WAKU_BRIDGE))), "the lock is held")


async def test_two_bridges_on_one_node_do_not_split_its_messages(world):
    with notices(CHANNEL) as announced:
        async with bridge(world):
            await until_held()
            async with bridge(world):
                ours = []
                for _ in range(20):
                    ours += world.publish(*messages(3), *messages(2, FOREIGN))[:3]
                    await asyncio.sleep(0.05)
                await hold_each_once(world, ours)
        assert len({notice.pid for notice in announced()}) == 1, "only the first wrote anything"


def end_all_sessions():
    with psycopg.connect(**connection_parameters(), autocommit=True) as admin:
        admin.execute(TERMINATE, [admin.info.backend_pid])


async def restart_the_database(_world, number):
    if number == 10:
        await asyncio.to_thread(end_all_sessions)


async def trouble_the_node(world, number):
    if number % 7 == 3:
        world.break_node(cut_after_drain=1)
    if number % 13 == 5:
        world.devnode.restart()


@pytest.mark.parametrize("trouble", [restart_the_database, trouble_the_node])
async def test_restarts_of_database_and_node_and_lost_answers_lose_no_message(world, trouble):
    async with bridge(world):
        await until_held()
        ours = []
        for number in range(40):
            ours += world.publish(*messages(3))
            await trouble(world, number)
            await asyncio.sleep(0.05)
        await hold_each_once(world, ours)
        if trouble is trouble_the_node:
            assert set((await world.paths()).values()) == {"live", "store"}, "both paths had something to do"


async def test_a_bridge_stops_in_the_middle_of_a_backfill_that_takes_long(world, monkeypatch):
    monkeypatch.setattr(stores, "SETTLE", timedelta())
    monkeypatch.setattr(stores, "PAGE_SIZE", 1)
    monkeypatch.setattr(run_waku_bridge, "STOP_SECONDS", 0.5)

    async def is_backfilling():
        return "backfill" in (await world.paths()).values()

    await asyncio.to_thread(make_watermark, node=world.url)  # otherwise the minute tier reads as far back
    world.archive(*messages(500, QUERIED, seconds_ago=200))
    world.break_node(reply_delay_ms=100)
    async with bridge(world):  # its end waits for the backfill, but not as long as that takes
        await world.holds(*world.publish(message()))  # then it has loaded all topics
        await asyncio.to_thread(listen_to, [CLIENT.key_hash], now=timezone.now())
        await until(is_backfilling, "the backfill began")
    assert len(await world.paths()) < 500


# Bridges that are processes -------------------------------------------------------------------------------------------


@contextmanager
def process(world, folder):
    database = connection.settings_dict
    host = database["OPTIONS"].get("host") or database["HOST"]
    environment = {
        **os.environ,
        "DATABASE_URL": f"postgresql://postgres@/{database['NAME']}?host={quote(host, safe='')}",
        "WAKU_NODES": world.url,
    }
    command = [sys.executable, str(PROJECT / "manage.py"), "run_waku_bridge"]
    with (folder / "bridge.log").open("ab") as log:
        running = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        yield running
    finally:
        running.kill()
        running.wait()


@pytest.mark.parametrize("signal", first_everyday(SIGKILL, SIGTERM), ids=["killed", "stopped"])
async def test_a_standby_takes_over_and_finds_the_page_of_the_dead_bridge_in_the_store(world, tmp_path, signal):
    """The first bridge holds a page that the database does not take, because the inbox is locked."""
    with process(world, tmp_path) as first:
        await until_held()
        async with bridge(world):
            locked = await psycopg.AsyncConnection.connect(**connection_parameters())
            await locked.execute("LOCK TABLE waku_bridge_openenvelope IN ACCESS EXCLUSIVE MODE")
            ours = world.publish(*messages(5))
            await until(lambda: asyncio.sleep(0.05, not len(world.devnode.ring)), "the page was drained")
            first.send_signal(signal)
            await asyncio.to_thread(first.wait, 60)
            await locked.rollback()
            await locked.close()
            ours += world.publish(*messages(5))
            await world.holds(*ours)


async def test_a_bridge_that_is_stopped_is_no_node_that_does_not_answer(world, tmp_path, settings):
    async def are(seen, **expected):
        await asyncio.sleep(0.2)
        answer = await asyncio.to_thread(Client().get, "/readyz")
        states = {found["id"].partition("-")[0]: found["state"] for found in answer.json()["indicators"]}
        seen.append(states)
        return {name: states[name] for name in expected} == expected

    settings.WAKU_NODES = [world.url]
    await asyncio.to_thread(NOTICES.save, Notice(world.url, timezone.now(), (), {}, None))
    with process(world, tmp_path) as stopped:
        await until(lambda: are([], bridge=State.GREEN, node=State.GREEN), "the bridge is at work")
        stopped.send_signal(SIGSTOP)
        seen = []
        await until(lambda: are(seen, bridge=State.RED, node=State.GREY), "the bridge has stopped")
        assert {states["node"] for states in seen} == {State.GREEN, State.GREY}
        stopped.send_signal(SIGCONT)
        await until(lambda: are([], bridge=State.GREEN, node=State.GREEN), "the bridge goes on")
