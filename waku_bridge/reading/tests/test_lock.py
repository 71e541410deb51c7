"""One bridge reads: what a holder knows, and how fast a standby takes over. All on a real PostgreSQL."""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from signal import SIGKILL, SIGSTOP

import psycopg
import pytest
from django.db import connection
from structlog.testing import capture_logs

from kit.db.reasons import AWAY
from waku_bridge.reading import lock
from waku_bridge.reading.lock import KEY, Term, session_parameters, work_while_held

PATIENCE_SECONDS = 30
PROJECT = Path(__file__).parents[3]
pytestmark = pytest.mark.django_db(transaction=True)

HOLDER = """
import asyncio, json, sys
import django
django.setup()
from waku_bridge.reading import lock

async def work(term):
    print("held", flush=True)
    while not term.is_over:
        await term.pause(None)

lock.session_parameters = lambda: json.loads(sys.argv[1])
asyncio.run(lock.work_while_held(asyncio.Event(), work))
"""


class Holder:
    """Somebody who wants the lock, and what became of that."""

    def __init__(self):
        self.stopped = asyncio.Event()
        self.may_return = asyncio.Event()
        self.may_return.set()
        self.terms = []

    async def work(self, term):
        self.terms.append(term)
        while not term.is_over:
            await term.pause(None)
        await self.may_return.wait()

    @property
    def is_holder(self):
        return bool(self.terms) and not self.terms[-1].is_over


@asynccontextmanager
async def holder():
    one = Holder()
    working = asyncio.create_task(work_while_held(one.stopped, one.work))
    try:
        yield one
    finally:
        one.stopped.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await working


async def until(is_so):
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not is_so():  # noqa: ASYNC110 - other processes have no events
            await asyncio.sleep(0.02)


async def end_session():
    """As a restart of PostgreSQL does it."""
    async with await psycopg.AsyncConnection.connect(**session_parameters(), autocommit=True) as admin:
        sql = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s"
        await admin.execute(sql, [KEY & 0xFFFFFFFF])


def test_of_two_bridges_one_reads_and_the_other_follows_when_it_stops():
    async def main():
        async with holder() as second:
            async with holder() as first:
                await until(lambda: first.is_holder or second.is_holder)
                active, standby = (first, second) if first.is_holder else (second, first)
                await asyncio.sleep(2.5 * lock.BEAT_SECONDS)
                assert active.is_holder
                assert not standby.terms
                active.stopped.set()
                await until(lambda: standby.is_holder)
            assert not active.is_holder

    asyncio.run(main())


def test_a_holder_whose_session_was_ended_knows_at_once_and_somebody_reads_again():
    async def main():
        async with holder() as one:
            await until(lambda: one.is_holder)
            await end_session()
            await until(lambda: one.terms[0].is_over)
            await until(lambda: len(one.terms) == 2 and one.is_holder)

    asyncio.run(main())


def test_the_lock_is_not_asked_for_again_before_the_work_under_the_last_one_has_returned():
    async def main():
        async with holder() as one:
            await until(lambda: one.is_holder)
            one.may_return.clear()
            await end_session()
            await asyncio.sleep(3 * lock.BEAT_SECONDS)
            assert [term.is_over for term in one.terms] == [True]
            assert await asyncio.to_thread(who_holds) == ""
            one.may_return.set()
            await until(lambda: len(one.terms) == 2)

    asyncio.run(main())


def test_the_lock_is_not_given_back_before_the_work_has_returned():
    async def main():
        async with holder() as one:
            await until(lambda: one.is_holder)
            one.may_return.clear()
            one.stopped.set()
            await asyncio.sleep(2 * lock.BEAT_SECONDS)
            assert await asyncio.to_thread(who_holds)
            one.may_return.set()

    asyncio.run(main())


def test_the_database_knows_who_reads():
    parameters = session_parameters()

    async def main():
        async with holder() as one:
            await until(lambda: one.is_holder)
            name = await asyncio.to_thread(who_holds)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await asyncio.to_thread(who_holds):  # noqa: ASYNC110 - the server ends a session when it gets to it
                await asyncio.sleep(0.05)
        return name

    name = asyncio.run(main())
    assert parameters["application_name"].removeprefix(lock.APPLICATION_NAME).strip() == name


def who_holds():
    try:
        return lock.holder()
    finally:
        connection.close()


@pytest.mark.parametrize("signal", [SIGKILL, SIGSTOP], ids=["killed", "hanging"])
def test_a_standby_takes_over_from_a_bridge_that_says_nothing_more(signal):
    """The bound of ten seconds follows from the constants; here it only must happen."""
    assert lock.SERVER_PATIENCE_SECONDS + 2 * lock.BEAT_SECONDS < 10
    assert lock.HOLDER_PATIENCE_SECONDS < lock.SERVER_PATIENCE_SECONDS
    process = start_holder()
    try:
        assert b"held\n" in iter(process.stdout.readline, b"")  # the log is there, too

        async def main():
            async with holder() as standby:
                await asyncio.sleep(1.5 * lock.BEAT_SECONDS)
                assert not standby.terms
                process.send_signal(signal)
                await until(lambda: standby.is_holder)

        asyncio.run(main())
    finally:
        process.kill()
        process.communicate()


def start_holder():
    parameters = json.dumps({key: value for key, value in session_parameters().items() if value is not None})
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "pushserver.settings"}
    command = [sys.executable, "-c", HOLDER, parameters]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=PROJECT)


def test_a_session_that_does_not_hold_what_we_think_is_given_up():
    """A pooler that gives the server's session to somebody else looks like this."""

    async def main():
        async with holder() as one:
            await until(lambda: one.is_holder)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(lock, "STILL_OURS", "SELECT 0 WHERE %s::bigint IS NOT NULL")
                await until(lambda: one.terms[0].is_over)
            await until(lambda: len(one.terms) == 2 and one.is_holder)

    with capture_logs() as logs:
        asyncio.run(main())
    assert {line["reason"] for line in logs if line["event"] == "lock_session_lost"} == {lock.POOLED}


def test_without_a_database_nobody_reads_and_why_is_said_once(monkeypatch):
    monkeypatch.setattr(lock, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(lock, "session_parameters", lambda: {"host": "127.0.0.1", "port": "1", "dbname": "none"})

    async def main():
        async with holder() as one:
            await asyncio.sleep(0.5)
            assert not one.terms

    with capture_logs() as logs:
        asyncio.run(main())
    assert [line["reason"] for line in logs] == [AWAY]


def test_a_fault_of_ours_ends_the_bridge_instead_of_leaving_it_without_readers():
    async def work(_term):
        raise ZeroDivisionError

    async def main():
        await work_while_held(asyncio.Event(), work)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())


def test_a_pause_ends_with_the_term_and_with_what_it_is_told_to_look_out_for():
    async def main():
        term, wanted = Term(asyncio.Event()), asyncio.Event()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await term.pause(0.01)
            pausing = asyncio.create_task(term.pause(None, unless=wanted))
            await asyncio.sleep(0)
            wanted.set()
            await pausing
            pausing = asyncio.create_task(term.pause(None))
            await asyncio.sleep(0)
            term.end()
            await pausing
            assert term.is_over

    asyncio.run(main())
