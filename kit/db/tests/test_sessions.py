"""Tests of our sessions: their settings, and timeouts, by which workers and bridges leave a database that does not
answer and locks that are never released.
"""

import asyncio
import threading
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection, transaction
from django.utils import timezone

from embedded.servers.postgres import SOCKET_NAME
from kit.batches.batch import Batch, Step, Wakeup, Work
from kit.batches.worker import Worker
from kit.db.base import MIGRATIONS, REPORTS, fetch, timeouts, write
from kit.db.partitions import TIMEOUTS
from kit.db.reasons import is_lock_timeout, is_unavailable, sqlstate
from kit.db.sessions import BATCH_WORKER, EVERY_SESSION, Timeouts
from kit.processes import leader
from tests.rig.postgres import silent_proxy
from waku_bridge.metrics import LOCK_HELD

pytestmark = pytest.mark.django_db(transaction=True)
FOUND = "SELECT name, setting FROM pg_settings WHERE name = ANY (%s)"
SHORT = Timeouts(statement_seconds=0.5, lock_seconds=0.2)


@pytest.fixture
def proxy(postgres):
    with silent_proxy(postgres.socket_dir / SOCKET_NAME) as proxy:
        yield proxy


@pytest.fixture
def behind(proxy, settings, monkeypatch):
    """Route new connections of Django through the proxy, with short timeouts."""
    monkeypatch.setattr("kit.db.sessions.GRACE_SECONDS", 0.1)
    settings.DATABASE_TIMEOUTS = SHORT
    monkeypatch.setitem(connection.settings_dict, "HOST", "127.0.0.1")
    monkeypatch.setitem(connection.settings_dict, "PORT", proxy.port)
    options = {name: value for name, value in connection.settings_dict["OPTIONS"].items() if name != "host"}
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)
    return proxy


def in_thread(function: Any) -> Any:
    """Call a function in a thread, with its own connection, and return its error."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(function())
        except Exception as error:  # noqa: BLE001 - returned to the test
            found.append(error)
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def test_a_statement_without_an_answer_ends(behind):
    def work() -> bool:
        fetch("SELECT 1")
        behind.speaks.clear()
        with pytest.raises(OperationalError, match="does not answer"):
            fetch("SELECT 1")
        return connection.is_usable()

    assert in_thread(work) is False


def test_a_worker_goes_on_with_another_connection(behind):
    seen = threading.Semaphore(0)

    class Reporting(Step):
        waits = "SELECT 1"

        def work(self, batch: Batch) -> Work[None]:  # noqa: ARG002 - the signature of a step
            seen.release()
            return Work(None)

    worker = Worker([Reporting()], Wakeup())
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert seen.acquire(timeout=20)
    behind.speaks.clear()
    assert behind.swallowed.wait(20)
    behind.speaks.set()  # for new connections only; the open ones stay silent
    while seen.acquire(blocking=False):
        pass
    assert seen.acquire(timeout=20)
    worker.stop(timeout_seconds=1)
    thread.join()


def test_another_bridge_reads_when_the_host_of_the_reading_one_fails(proxy, monkeypatch):
    """PostgreSQL ends the idle session of the leader, and gives the lock to the next process that tries to take it."""
    monkeypatch.setattr(leader, "SERVER_OPTIONS", leader.SERVER_OPTIONS.replace("=6s", "=2s"))
    direct = leader.session_parameters()
    vanishing = {**direct, "host": "127.0.0.1", "port": proxy.port}

    async def story() -> None:
        async with await psycopg.AsyncConnection.connect(**vanishing, autocommit=True) as first:
            await first.execute("SELECT pg_advisory_lock(%s)", [leader.WAKU_BRIDGE])
            proxy.speaks.clear()
            stopped, reading = asyncio.Event(), asyncio.Event()

            async def read(term: leader.Term) -> None:
                reading.set()
                await term.pause(None)

            standby = asyncio.create_task(
                leader.Leader(leader.WAKU_BRIDGE, "push-bridge", LOCK_HELD).lead(stopped, read)
            )
            async with asyncio.timeout(30):
                await reading.wait()
            stopped.set()
            await standby

    asyncio.run(story())


@pytest.mark.parametrize(
    ("wanted", "statement", "code"),
    [
        (Timeouts(20, 0.1), "SELECT pg_advisory_lock(77)", "55P03"),
        (Timeouts(0.1, 20), "SELECT pg_sleep(30)", "57014"),
    ],
)
def test_a_statement_that_takes_too_long_ends_with_an_error_that_is_retried(wanted, statement, code):
    fetch("SELECT pg_advisory_lock(77)")

    def ask() -> None:
        with timeouts(wanted):
            fetch(statement)

    error = in_thread(ask)

    assert (sqlstate(error), is_unavailable(error) or is_lock_timeout(error)) == (code, True)
    fetch("SELECT pg_advisory_unlock(77)")


def shown() -> tuple[str, ...]:
    names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
    return tuple(fetch(f"SHOW {name}")[0][0] for name in names)


@pytest.mark.parametrize(
    ("wanted", "times"),
    [(REPORTS, ("4h", "10s", "0")), (TIMEOUTS, ("1min", "1s", "30s")), (MIGRATIONS, ("0", "10s", "0"))],
)
def test_timeouts_are_set_for_a_block_and_reset_after_it(wanted, times):
    before = shown()
    with timeouts(wanted):
        assert shown() == times
        assert connection.connection.timeout_seconds == wanted.answer_seconds
    assert shown() == before


def test_statements_of_a_pipeline_have_the_sum_of_their_timeouts(monkeypatch):
    connection.ensure_connection()
    monkeypatch.setattr(connection.connection, "timeout_seconds", 0.5)
    with transaction.atomic():
        for _ in range(3):
            write("SELECT pg_sleep(0.3)")
    with pytest.raises(OperationalError), transaction.atomic():
        write("SELECT pg_sleep(3)")
    connection.close()


def test_the_client_waits_a_little_longer_than_the_timeout_of_the_server():
    assert SHORT.answer_seconds == 5.5
    assert replace(SHORT, statement_seconds=0).answer_seconds is None


# Settings -------------------------------------------------------------------------------------------------------------


def test_a_setting_of_the_account_or_the_database_does_not_override_ours():
    database = connection.ops.quote_name(connection.settings_dict["NAME"])
    fetch(f"ALTER ROLE CURRENT_USER IN DATABASE {database} SET jit = on")
    fetch(f"ALTER DATABASE {database} SET jit = on")
    try:
        assert in_thread(lambda: dict(fetch(FOUND, [list(EVERY_SESSION)]))) == EVERY_SESSION
    finally:
        fetch(f"ALTER ROLE CURRENT_USER IN DATABASE {database} RESET jit")
        fetch(f"ALTER DATABASE {database} RESET jit")


def test_the_session_of_a_batch_worker_has_its_own_settings():
    def work() -> dict[str, str]:
        with_worker = Worker([], Wakeup())
        with_worker.stop(timeout_seconds=0)
        with_worker.process_batch(now=timezone.now())
        return dict(fetch(FOUND, [[*EVERY_SESSION, *BATCH_WORKER]]))

    assert in_thread(work) == {**EVERY_SESSION, **BATCH_WORKER}
