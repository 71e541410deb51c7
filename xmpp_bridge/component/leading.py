"""Which process is connected, however many run: a session advisory lock of PostgreSQL for each component name.

The lock decides who begins. Who is connected stays so while the database is away, and tells users' servers to wait: if
nobody were there, an ejabberd would take the routes for gone. When the database is back and another process has got the
lock meanwhile, the one that lost it stops. A server that allows no second component of a name refuses it in any case.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import psycopg
import structlog
from django.db import connection as django_connection

from kit.db.reasons import reason
from kit.told import Told
from xmpp_bridge.metrics import LEADING

log = structlog.get_logger(__name__)

BEAT_SECONDS = 1.0
PATIENCE_SECONDS = 4.0
# The server ends a session that says nothing, so that a process that hangs does not keep the others away.
OPTIONS = "-c idle_session_timeout=10s -c statement_timeout=4s -c tcp_user_timeout=6s"
NAME = "push-xmpp"

Work = Callable[[asyncio.Event], Awaitable[None]]


def lock_key(domain: str) -> int:
    """Return the 64 bits of the advisory lock of one component."""
    return int.from_bytes(hashlib.sha256(f"xmpp component {domain}".encode()).digest()[:8], signed=True)


class Leader:
    """The wish to be the one that is connected as ``domain``."""

    def __init__(self, domain: str) -> None:
        self._key = lock_key(domain)
        self._session: psycopg.AsyncConnection | None = None
        self._told = Told()  # why there is no session

    async def lead(self, stopped: asyncio.Event, work: Work) -> None:
        """Do the work whenever the lock is ours, until ``stopped``. The work returns when its event is set."""
        try:
            while not stopped.is_set():
                if await self._has_lock():
                    await self._work(stopped, work)
                await _wait(stopped, BEAT_SECONDS)
        finally:
            await self._hang_up()

    async def _work(self, stopped: asyncio.Event, work: Work) -> None:
        log.info("lock_taken")
        LEADING.set(1)
        ended = asyncio.Event()
        working = asyncio.ensure_future(work(ended))
        try:
            while not working.done() and not stopped.is_set() and await self._may_stay():
                beat = asyncio.ensure_future(_wait(stopped, BEAT_SECONDS))
                await asyncio.wait([working, beat], return_when=asyncio.FIRST_COMPLETED)
                beat.cancel()
        finally:
            LEADING.set(0)
            ended.set()
            await working

    async def _may_stay(self) -> bool:
        """Return whether nobody else has the lock. While the database is away nobody can have taken it."""
        has_lock = await self._has_lock()
        return has_lock or self._session is None

    async def _has_lock(self) -> bool:
        """Return whether the lock is ours, and take it if it is free."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                if self._session is None:
                    self._session = await psycopg.AsyncConnection.connect(**_parameters(), autocommit=True)
                cursor = await self._session.execute(_TAKE, {"key": self._key})
                row = await cursor.fetchone()
        except (psycopg.Error, TimeoutError) as error:
            if self._told.is_news(why := reason(error)):
                log.warning("lock_session_lost", error=type(error).__name__, reason=why)
            await self._hang_up()
            return False
        self._told.is_news("")
        return bool(row and row[0])

    async def _hang_up(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with suppress(psycopg.Error, TimeoutError):
                async with asyncio.timeout(1):
                    await session.close()


# A lock that a session takes twice has to be given back twice: it is taken only where it is not held.
_TAKE = """
    SELECT EXISTS (
        SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND pid = pg_backend_pid()
            AND (classid::bigint << 32) | objid::bigint = %(key)s
    ) OR pg_try_advisory_lock(%(key)s)
"""


def _parameters() -> dict[str, Any]:
    parameters: dict[str, Any] = django_connection.get_connection_params()
    own = {name: value for name, value in parameters.items() if name not in {"cursor_factory", "context"}}
    options = f"{own.get('options') or ''} {OPTIONS}".strip()
    return own | {"options": options, "connect_timeout": 3, "application_name": NAME}


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
