"""One bridge reads, however many run: a session advisory lock of PostgreSQL.

A relay cache gives each message to one reader only, so two readers would share its pages between them. Each would still
write its part into the same inbox: an overlap of a moment loses nothing and doubles nothing. The lock prevents that it
lasts, and that every standby adds to the load of nodes and stores.

A lock ends with its session: at once when its process ended or PostgreSQL restarted, and after
`SERVER_PATIENCE_SECONDS` when its host died or it hangs, as the server ends a session that says nothing. The holder
says something every second, and stops reading when it is not answered within the shorter `HOLDER_PATIENCE_SECONDS`. It
does not ask for the lock again before everything that it began under the last one has returned.

The session must be ours alone. A pooler that hands the server's sessions around by transaction (PgBouncer in
transaction mode) refuses these options or loses the lock; each heartbeat looks whether it is still there.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import psycopg
import structlog
from django.db import connection as django_connection

from kit.db.reasons import reason
from kit.told import Told
from waku_bridge.metrics import LOCK_HELD
from waku_bridge.reading.session import connection_parameters

log = structlog.get_logger(__name__)

# The 64 bits of the advisory lock, which spell "PushRead".
KEY = 0x50_75_73_68_52_65_61_64
BEAT_SECONDS = 1.0
HOLDER_PATIENCE_SECONDS = 4.0
SERVER_PATIENCE_SECONDS = 6
# The session's own timeout covers most cases; the others cover a server that is sending to a host that is gone.
SERVER_OPTIONS = (
    f"-c idle_session_timeout={SERVER_PATIENCE_SECONDS}s -c statement_timeout={SERVER_PATIENCE_SECONDS}s "
    f"-c tcp_keepalives_idle=2 -c tcp_keepalives_interval=1 -c tcp_keepalives_count=3 "
    f"-c tcp_user_timeout={SERVER_PATIENCE_SECONDS}s"
)
CLIENT_OPTIONS = {
    "connect_timeout": 3,
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": 4000,  # milliseconds
}
APPLICATION_NAME = "push-bridge"
TRY = "SELECT pg_try_advisory_lock(%s)"
# Of a 64-bit key the upper half is `classid`, the lower `objid`, and `objsubid` is 1.
STILL_OURS = """
    SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1
        AND (classid::bigint << 32) | objid::bigint = %s AND pid = pg_backend_pid()
"""
HOLDER = """
    SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND (classid::bigint << 32) | objid::bigint = %s
        AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
POOLED = "a pool between the bridge and PostgreSQL exchanges sessions: DATABASE_URL must lead past it"


class LostLockError(Exception):
    """The session does not hold the lock it was given: something between us and PostgreSQL exchanges sessions."""


class Term:
    """A time during which the lock is ours. The work done under it ends itself when the term is over.

    ``stopped`` is set when the whole bridge is to stop.
    """

    def __init__(self, stopped: asyncio.Event) -> None:
        self.stopped = stopped
        self._ended = asyncio.Event()

    @property
    def is_over(self) -> bool:
        return self._ended.is_set() or self.stopped.is_set()

    def end(self) -> None:
        """End the term."""
        self._ended.set()

    async def pause(self, seconds: float | None, unless: asyncio.Event | None = None) -> None:
        """Wait this long (for ever: None), but no longer than the term lasts, and not when ``unless`` is set."""
        events = [self._ended, self.stopped, *([unless] if unless else [])]
        if any(event.is_set() for event in events):
            return
        waiting = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()


async def wait(event: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set, but no longer than this."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


Work = Callable[[Term], Awaitable[None]]


async def work_while_held(stopped: asyncio.Event, work: Work) -> None:
    """Do the work whenever the lock is ours, until ``stopped``.

    The work returns when its term is over, and is waited for: before that the lock is not asked for again, and at the
    end it is not given back.
    """
    told = Told()
    while not stopped.is_set():
        try:
            async with await _connect() as session:
                told.is_news("")
                await _stand_by(session, stopped)
                if not stopped.is_set():
                    await _work(session, stopped, work)
        except (psycopg.Error, TimeoutError, LostLockError) as error:
            if told.is_news(why := _why(error)):
                log.warning("lock_session_lost", error=type(error).__name__, reason=why)
        await wait(stopped, BEAT_SECONDS)


def _why(error: Exception) -> str:
    """Return why there is no session for the lock."""
    return POOLED if isinstance(error, LostLockError) else reason(error)


async def _connect() -> psycopg.AsyncConnection:
    async with asyncio.timeout(HOLDER_PATIENCE_SECONDS):
        return await psycopg.AsyncConnection.connect(**session_parameters(), autocommit=True)


async def _stand_by(session: psycopg.AsyncConnection, stopped: asyncio.Event) -> None:
    while not stopped.is_set() and not await _ask(session, TRY):
        await wait(stopped, BEAT_SECONDS)


async def _work(session: psycopg.AsyncConnection, stopped: asyncio.Event, work: Work) -> None:
    log.info("lock_taken")
    LOCK_HELD.set(1)
    term = Term(stopped)
    working = asyncio.ensure_future(work(term))
    try:
        await _beat(session, working)
    finally:
        LOCK_HELD.set(0)
        term.end()
        await working


async def _beat(session: psycopg.AsyncConnection, working: "asyncio.Future[None]") -> None:
    """Check the lock until the work has ended.

    Between heartbeats we listen, so that an ended session is noticed at once.
    """
    while not working.done():
        if not await _ask(session, STILL_OURS):
            raise LostLockError
        listening = asyncio.ensure_future(_listen(session))
        await asyncio.wait([listening, working], return_when=asyncio.FIRST_COMPLETED)
        if not listening.done():
            listening.cancel()
            await asyncio.wait([listening])
            return
        listening.result()


async def _listen(session: psycopg.AsyncConnection) -> None:
    async for _ in session.notifies(timeout=BEAT_SECONDS):
        pass


async def _ask(session: psycopg.AsyncConnection, sql: str) -> bool:
    async with asyncio.timeout(HOLDER_PATIENCE_SECONDS):
        cursor = await session.execute(sql.encode(), [KEY])
        row = await cursor.fetchone()
    assert row is not None  # noqa: S101 - these statements always return one
    return bool(row[0])


def session_parameters() -> dict[str, Any]:
    """Return the parameters of the configured database, for a session that a dead host loses within seconds."""
    parameters = connection_parameters()
    options = f"{parameters.get('options') or ''} {SERVER_OPTIONS}".strip()
    holder = f"{APPLICATION_NAME} {socket.gethostname()[:40]} {os.getpid()}"
    return {**parameters, **CLIENT_OPTIONS, "options": options, "application_name": holder}


def holder() -> str:
    """Return host and process id of the bridge that reads, by PostgreSQL's own account; empty when there is none."""
    with django_connection.cursor() as cursor:
        cursor.execute(HOLDER, [KEY])
        row = cursor.fetchone()
    return row[0].removeprefix(APPLICATION_NAME).strip() if row else ""
