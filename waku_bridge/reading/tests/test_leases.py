"""One reader per node and shard: what a holder knows, and how fast a standby takes over. All on a real PostgreSQL."""

import asyncio
import json
import subprocess
import sys
from signal import SIGKILL, SIGSTOP

import psycopg
import pytest
from structlog.testing import capture_logs

from waku_bridge.reading import leases
from waku_bridge.reading.leases import HOLDER_PATIENCE_SECONDS, LeaseName, Leases, Term, holders, session_parameters

NAME = LeaseName("live", "http://node", "/waku/2/rs/16/32")
OTHER = LeaseName("store", "http://node", "/waku/2/rs/16/32")
PATIENCE_SECONDS = 30
pytestmark = pytest.mark.django_db(transaction=True)

HOLDER = """
import asyncio, json, sys
from waku_bridge.reading.leases import LeaseName, Leases

async def work(term):
    print("held", flush=True)
    await term.wait()
    print("ended", flush=True)

async def main():
    async with Leases(json.loads(sys.argv[1])) as leases:
        await leases.hold(LeaseName(*json.loads(sys.argv[2])), work)

asyncio.run(main())
"""


class Holder:
    """Somebody who wants a lease, and what became of that."""

    def __init__(self, parameters=None):
        self.leases = Leases(parameters or session_parameters())
        self.terms = []
        self.tasks = []

    async def __aenter__(self):
        await self.leases.__aenter__()
        return self

    async def __aexit__(self, *error):
        self.leases.stop()
        await asyncio.gather(*self.tasks)
        await self.leases.__aexit__(*error)

    def want(self, *names):
        self.tasks += [asyncio.create_task(self.leases.hold(name, self.work)) for name in names or [NAME]]
        return self

    async def work(self, term):
        self.terms.append(term)
        while not term.is_over:
            await term.pause(0.05)

    @property
    def is_holder(self):
        return bool(self.terms) and not self.terms[-1].is_over


async def until(is_so):
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not is_so():  # noqa: ASYNC110 - other processes have no events
            await asyncio.sleep(0.02)


async def end_session(lost):
    """As a restart of PostgreSQL does it."""
    async with await psycopg.AsyncConnection.connect(**session_parameters(), autocommit=True) as admin:
        sql = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s"
        await admin.execute(sql, [lost.key & 0xFFFFFFFF])


def test_of_two_bridges_one_holds_and_the_other_follows_when_it_stops():
    async def main():
        async with Holder() as second:
            async with Holder() as first:
                first.want()
                await until(lambda: first.is_holder)
                second.want()
                await asyncio.sleep(2.5 * leases.BEAT_SECONDS)
                assert first.is_holder
                assert not second.terms
            await until(lambda: second.is_holder)
            assert not first.is_holder

    asyncio.run(main())


def test_different_leases_can_be_with_different_bridges():
    async def main():
        async with Holder() as first, Holder() as second:
            first.want(NAME)
            second.want(OTHER)
            await until(lambda: first.is_holder and second.is_holder)

    asyncio.run(main())


def test_a_holder_whose_session_was_ended_knows_at_once_and_somebody_holds_it_again():
    async def main():
        async with Holder() as holder:
            holder.want()
            await until(lambda: holder.is_holder)
            await end_session(NAME)
            await until(lambda: holder.terms[0].is_over)
            await until(lambda: len(holder.terms) == 2 and holder.is_holder)

    asyncio.run(main())


def test_the_database_knows_who_holds_what():
    parameters = session_parameters()

    async def main():
        async with Holder() as holder:
            holder.want(NAME)
            await until(lambda: holder.is_holder)
            assert holder.leases.held == {NAME}
            return await asyncio.to_thread(who_holds)

    held = asyncio.run(main())
    assert list(held) == [NAME]
    assert parameters["application_name"].endswith(held[NAME])


def test_no_password_of_a_node_is_logged():
    name = LeaseName("live", "http://us:secret@node:8645", "/waku/2/rs/16/32")

    async def main():
        async with Holder() as holder:
            holder.want(name)
            await until(lambda: holder.is_holder)

    with capture_logs() as logs:
        asyncio.run(main())
    assert [each["node"] for each in logs if each["event"] == "lease_taken"] == ["node:8645"]
    assert "secret" not in str(logs)


def who_holds():
    from django.db import connection

    try:
        return holders([NAME, OTHER])
    finally:
        connection.close()


@pytest.mark.parametrize("signal", [SIGKILL, SIGSTOP], ids=["killed", "hanging"])
def test_a_standby_takes_over_from_a_bridge_that_says_nothing_more(signal):
    """The bound of ten seconds follows from the constants; here it only must happen."""
    assert leases.SERVER_PATIENCE_SECONDS + 2 * leases.BEAT_SECONDS < 10
    assert HOLDER_PATIENCE_SECONDS < leases.SERVER_PATIENCE_SECONDS
    process = start_holder()
    try:
        assert b"held\n" in iter(process.stdout.readline, b"")  # the log is there, too

        async def main():
            async with Holder() as standby:
                standby.want()
                await asyncio.sleep(1.5 * leases.BEAT_SECONDS)
                assert not standby.terms
                process.send_signal(signal)
                await until(lambda: standby.is_holder)

        asyncio.run(main())
    finally:
        process.kill()
        process.communicate()


def start_holder():
    parameters = json.dumps({key: value for key, value in session_parameters().items() if value is not None})
    command = [sys.executable, "-c", HOLDER, parameters, json.dumps([NAME.kind, NAME.node, NAME.pubsub_topic])]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def test_a_term_that_nobody_confirms_is_over_though_nobody_ended_it():
    term = Term(asyncio.Event(), is_valid=lambda: False)
    assert term.is_over
    assert not term.has_ended


def test_work_that_stopped_while_the_process_hung_begins_again():
    """The lease was never lost, so there is no second term."""

    async def main():
        began = []

        async def work(term):
            began.append(term)

        async with Leases(session_parameters()) as ours:
            holding = asyncio.create_task(ours.hold(NAME, work))
            await until(lambda: len(began) == 2)
            ours.stop()
            await holding
        assert began[0] is began[1]

    asyncio.run(main())


def test_a_session_that_holds_less_than_we_think_is_given_up():
    """A pooler that gives the server's session to somebody else looks like this."""

    async def main():
        async with Holder() as holder:
            holder.want(NAME)
            await until(lambda: holder.is_holder)
            holder.leases._current[OTHER] = Term(asyncio.Event())
            await until(lambda: holder.terms[0].is_over)
            await until(lambda: len(holder.terms) == 2 and holder.is_holder)

    asyncio.run(main())


def test_without_a_database_nobody_reads_and_nobody_fails():
    async def main():
        async with Holder({"host": "127.0.0.1", "port": "1", "dbname": "none"}) as holder:
            holder.want()
            await asyncio.sleep(0.5)
            assert not holder.terms

    asyncio.run(main())


def test_a_fault_of_ours_ends_the_bridge_instead_of_leaving_it_without_leases(monkeypatch):
    async def fail(_session, _sent_at):
        raise ZeroDivisionError

    async def main():
        async with Leases(session_parameters()) as ours:
            monkeypatch.setattr(ours, "_beat", fail)
            await ours.watch()

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())
