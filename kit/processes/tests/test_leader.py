"""Tests of the leader lock on a real PostgreSQL: how a leader notices the loss of its lock, and how another follows."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from signal import SIGKILL, SIGSTOP, Signals
from typing import Any
from unittest.mock import AsyncMock

import psycopg
import pytest
from django.core.cache import cache
from django.db import connection
from prometheus_client import Gauge

from kit.db.reasons import UNAVAILABLE
from kit.processes import leader
from kit.processes.leader import Leader, LeaderLock, Term, holders, key_of, session_parameters
from tests.rig.logs import capture_logs

TIMEOUT_SECONDS = 60
PROJECT = Path(__file__).parents[3]
KEY = int.from_bytes(b"test of leader"[:8])
IS_LEADING = Gauge("test_of_leader", "Whether it leads.", registry=None)
NOWHERE = {"host": "127.0.0.1", "port": "1", "dbname": "none"}
pytestmark = pytest.mark.django_db(transaction=True)

OTHER_PROCESS = """
import asyncio, json, sys
import django
django.setup()
from kit.processes import leader
from kit.processes.tests.test_leader import IS_LEADING, KEY

async def work(term):
    print("leads", flush=True)
    await term.pause(None)

leader.session_parameters = lambda: json.loads(sys.argv[1])
asyncio.run(leader.Leader(KEY, "other", IS_LEADING).lead(asyncio.Event(), work))
"""


class Process:
    """A candidate for the lock, with the terms that it has led."""

    def __init__(self, **kwargs: bool) -> None:
        self.stopped, self.may_return = asyncio.Event(), asyncio.Event()
        self.may_return.set()
        self.leader = Leader(KEY, "push-test", IS_LEADING, **kwargs)
        self.terms: list[Term] = []

    async def work(self, term: Term) -> None:
        self.terms.append(term)
        await term.pause(None)
        await self.may_return.wait()

    @property
    def leads(self) -> bool:
        return bool(self.terms) and not self.terms[-1].is_over


@asynccontextmanager
async def process(**kwargs: bool) -> AsyncIterator[Process]:
    one = Process(**kwargs)
    working = asyncio.create_task(one.leader.lead(one.stopped, one.work))
    try:
        yield one
    finally:
        one.may_return.set()
        one.stopped.set()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await working


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not is_so():  # noqa: ASYNC110 - other processes have no events
            await asyncio.sleep(0.01)


async def end_session() -> None:
    """End the session of the leader, like a restart of PostgreSQL."""
    async with await psycopg.AsyncConnection.connect(**session_parameters(), autocommit=True) as admin:
        sql = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s"
        await admin.execute(sql, [KEY & 0xFFFFFFFF])


def who_leads() -> list[str]:
    try:
        return holders(KEY)
    finally:
        connection.close()


def play(story: Callable[[], Coroutine[Any, Any, None]]) -> list[str]:
    """Run the coroutine, and return the logged reasons for lost sessions."""
    connection.ensure_connection()  # the candidates take the name of the test database from it
    with capture_logs() as logs:
        asyncio.run(story())
    return [line["reason"] for line in logs if line["event"] == "lock_session_lost"]


@pytest.fixture
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "BEAT_SECONDS", 0.05)
    cache.delete(leader.LEADS.key(str(KEY)))


fast = pytest.mark.usefixtures("_fast")
policies = pytest.mark.parametrize("survives_outage", [False, True])


@fast
@policies
def test_of_two_processes_one_leads_until_its_work_has_returned_and_the_other_follows(survives_outage: bool) -> None:
    async def story() -> None:
        async with process(survives_outage=survives_outage) as first:
            await until(lambda: first.leads)
            async with process(survives_outage=survives_outage) as second:
                await until(lambda: second.leader._session is not None)
                first.may_return.clear()
                first.stopped.set()
                await until(first.terms[0].ended.is_set)
                await asyncio.sleep(0.3)  # the other one tries several times
                assert not second.terms
                assert await asyncio.to_thread(who_leads) == [f"{os.uname().nodename[:40]} {os.getpid()}"]
                first.may_return.set()
                await until(lambda: second.leads)
                assert not first.leads

    assert play(story) == []


@fast
def test_a_leader_notices_the_end_of_its_session_and_takes_no_lock_before_the_work_of_that_term_has_returned() -> None:
    async def story() -> None:
        async with process() as one:
            await until(lambda: one.leads)
            one.may_return.clear()
            await end_session()
            await until(lambda: one.terms[0].is_over)
            await asyncio.sleep(0.3)
            assert len(one.terms) == 1
            assert await asyncio.to_thread(who_leads) == []
            one.may_return.set()
            await until(lambda: len(one.terms) == 2 and one.leads)

    play(story)


@asynccontextmanager
async def leader_and_standby() -> AsyncIterator[tuple[Process, Process]]:
    """Start two processes that survive outages, of which the first leads."""
    async with process(survives_outage=True) as one:
        await until(lambda: one.leads)
        async with process(survives_outage=True) as two:
            await until(lambda: two.leader._session is not None)
            yield one, two


@asynccontextmanager
async def outage(*processes: Process) -> AsyncIterator[None]:
    """Take PostgreSQL away from these processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leader, "session_parameters", lambda: NOWHERE)
        for each in processes:
            assert each.leader._session is not None
            await each.leader._session.close()
        await until(lambda: {each.leader._session for each in processes} == {None})
        yield


@pytest.mark.requirement("XB11", "X11")
@fast
def test_a_leader_that_survives_outages_leads_during_and_after_an_outage() -> None:
    async def story() -> None:
        async with process(survives_outage=True) as one:
            await until(lambda: one.leads)
            async with outage(one):
                await asyncio.sleep(0.3)  # meanwhile it tries several times
                assert one.leads
            await until(lambda: one.leader._session is not None)
            assert (one.leads, len(one.terms)) == (True, 1)

    assert play(story) == [UNAVAILABLE]


@fast
def test_a_leader_that_lost_the_lock_to_another_one_during_an_outage_stops() -> None:
    async def story() -> None:
        async with leader_and_standby() as (one, two):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(one.leader, "_take", lambda: asyncio.sleep(0.01, result=False))  # no connection
                await end_session()
                await until(lambda: two.leads)
                assert one.leads
            await until(lambda: not one.leads)

    play(story)


@fast
def test_the_former_leader_gets_the_lock_again_after_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its work has gone on, and an XMPP server refuses another component while this one is connected."""

    async def slowly() -> psycopg.AsyncConnection:
        await asyncio.sleep(0.3)
        return await psycopg.AsyncConnection.connect(**session_parameters(), autocommit=True)

    async def story() -> None:
        async with leader_and_standby() as (one, two):
            async with outage(one, two):
                pass
            monkeypatch.setattr(one.leader, "_connect", slowly)
            await until(lambda: one.leader._session is not None)
            await asyncio.sleep(0.3)
            assert (one.leads, len(one.terms), two.terms) == (True, 1, [])

    monkeypatch.setattr(leader, "RETURN_SECONDS", 10.0)
    play(story)


@fast
def test_a_leader_that_alone_lost_the_database_stops_when_another_one_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with leader_and_standby() as (one, two):
            two.leader._process = "of another host"
            monkeypatch.setattr(one.leader, "_connect", AsyncMock(side_effect=psycopg.OperationalError))
            await end_session()
            await until(lambda: two.leads and not one.leads)

    play(story)


@pytest.mark.parametrize("signal", [SIGKILL, SIGSTOP], ids=["killed", "hanging"])
def test_another_process_follows_a_leader_that_was_killed_or_hangs(signal: Signals) -> None:
    """The limit of ten seconds follows from the constants. This test only checks that another process follows."""
    assert leader.SERVER_TIMEOUT_SECONDS + 2 * leader.BEAT_SECONDS < 10
    assert leader.LEADER_TIMEOUT_SECONDS < leader.SERVER_TIMEOUT_SECONDS
    other = start_process()
    try:
        assert other.stdout is not None
        assert b"leads\n" in iter(other.stdout.readline, b"")  # among lines of the log

        async def story() -> None:
            async with process() as standby:
                await until(lambda: standby.leader._session is not None)
                assert not standby.terms
                other.send_signal(signal)
                await until(lambda: standby.leads)

        play(story)
    finally:
        other.kill()
        other.communicate()


def start_process() -> "subprocess.Popen[bytes]":
    parameters = json.dumps({key: value for key, value in session_parameters().items() if value is not None})
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "pushserver.settings"}
    command = [sys.executable, "-c", OTHER_PROCESS, parameters]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=PROJECT)


@fast
@policies
def test_a_session_that_no_longer_has_the_lock_is_given_up(survives_outage: bool) -> None:
    """A pooler may give the session of the server to another client."""

    async def story() -> None:
        async with process(survives_outage=survives_outage) as one:
            await until(lambda: one.leads)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(leader, "HELD", "FALSE")
                await until(lambda: one.terms[0].is_over)
            await until(lambda: len(one.terms) == 2 and one.leads)

    assert set(play(story)) == {leader.POOLED}


@fast
@policies
def test_no_process_leads_without_a_database_and_the_reason_is_logged_once(
    survives_outage: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader, "session_parameters", lambda: NOWHERE)

    async def story() -> None:
        async with process(survives_outage=survives_outage) as one:
            await asyncio.sleep(0.5)
            assert not one.terms

    assert play(story) == [UNAVAILABLE]


def test_an_error_of_the_work_ends_the_process() -> None:
    async def work(_term: Term) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(Leader(KEY, "push-test", IS_LEADING).lead(asyncio.Event(), work))


def test_a_pause_ends_with_the_term_and_with_its_event() -> None:
    async def story() -> None:
        term, wanted = Term(asyncio.Event()), asyncio.Event()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await term.pause(0.01)
            pausing = asyncio.create_task(term.pause(None, unless=wanted))
            await asyncio.sleep(0)
            wanted.set()
            await pausing
            pausing = asyncio.create_task(term.pause(None))
            await asyncio.sleep(0)
            term.ended.set()
            await pausing
            assert term.is_over

    asyncio.run(story())


def test_a_lock_on_the_connection_that_was_taken_twice_is_free_after_one_release_or_with_the_connection() -> None:
    lock = LeaderLock(KEY, idle_seconds=30)
    with psycopg.connect(**session_parameters(), autocommit=True) as other:
        taken = other.execute("SELECT pg_try_advisory_lock(%s)", [KEY]).fetchone()
        assert (taken, lock.take()) == ((True,), False)
        other.execute("SELECT pg_advisory_unlock(%s)", [KEY])
        assert [lock.take(), lock.take()] == [True, True]
        lock.release()
        assert other.execute("SELECT pg_try_advisory_lock(%s)", [KEY]).fetchone() == (True,)
        other.execute("SELECT pg_advisory_unlock(%s)", [KEY])
        assert lock.take()
        connection.close()
        other.execute("SELECT pg_advisory_lock(%s)", [KEY])
        assert not lock.take()


def test_all_locks_have_different_keys() -> None:
    names = ("BATCHES", "BEAT", "REPORTS", "WAKU_BRIDGE", "LIVE_WORKERS")
    keys = {*(getattr(leader, name) for name in names), key_of("push.a.test"), key_of("push.b.test")}
    assert len(keys) == len(names) + 2
