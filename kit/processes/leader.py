"""Leader lock: only one of several processes does a job, and another one follows when it ends.

The lock is a session advisory lock of PostgreSQL, which releases it when the session ends, also after SIGKILL. A leader
checks again and again whether it still has the lock, because its session may have ended or been exchanged.

    LeaderLock    on Django's connection, checked before each piece of work              batches, beat, reports
    Leader        on a session of its own, checked every second during the work          both bridges

The session of a `Leader` ends at once when its process ends or PostgreSQL restarts. When the host fails or hangs,
PostgreSQL ends the idle session after `SERVER_TIMEOUT_SECONDS`. A leader stops its work earlier, after
`LEADER_TIMEOUT_SECONDS` without an answer, unless it survives outages. It tries to take the lock again only after its
work has returned.

The session must not be shared. A pooler that assigns sessions by transaction (PgBouncer in transaction mode) refuses
these options or loses the lock.
"""

import asyncio
import hashlib
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
import structlog
from prometheus_client import Gauge

from kit.db.base import connection_parameters, fetch
from kit.db.reasons import reason
from kit.processes.status import ChangeFilter, StatusCache

log = structlog.get_logger(__name__)

# The keys of all advisory locks: 64 bits, or 8 letters. A lock with a configured name has the key of `key_of`.
BATCHES = int.from_bytes(b"batches")
BEAT = int.from_bytes(b"PushBeat")
REPORTS = int.from_bytes(b"pushrept")
WAKU_BRIDGE = int.from_bytes(b"PushRead")
# All batch workers hold this lock in shared mode (see `kit.buckets.shared`).
LIVE_WORKERS = int.from_bytes(b"work")

# In `pg_locks`, `classid` is the upper half of a 64-bit key, `objid` is the lower half, and `objsubid` is 1.
_OF_KEY: LiteralString = """
    locktype = 'advisory' AND granted AND objsubid = 1 AND (classid::bigint << 32) | objid::bigint = %(key)s::bigint
"""
HELD: LiteralString = f"EXISTS (SELECT FROM pg_locks WHERE {_OF_KEY} AND pid = pg_backend_pid())"
# A session that takes a lock twice has to release it twice, so `TAKE` first checks whether the session has it.
TRY: LiteralString = "pg_try_advisory_lock(%(key)s::bigint)"
TAKE: LiteralString = f"({HELD} OR {TRY})"
HOLDERS: LiteralString = f"""
    SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE {_OF_KEY} AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
POOLED = "a pooler between this process and PostgreSQL exchanges sessions: DATABASE_URL must bypass it"

BEAT_SECONDS = 1.0
LEADER_TIMEOUT_SECONDS = 4.0
SERVER_TIMEOUT_SECONDS = 6
# The longest time in which a leader that survived an outage takes the lock again.
RETURN_SECONDS = LEADER_TIMEOUT_SECONDS + 3 * BEAT_SECONDS
# The name of the process that leads, saved every `REPORT_SECONDS` by a leader that survives outages.
LEADS = StatusCache("leads", str, ttl_seconds=15)
REPORT_SECONDS = 5.0
# `idle_session_timeout` covers most cases. The others cover a server that sends to a failed host.
SERVER_OPTIONS = (
    f"-c idle_session_timeout={SERVER_TIMEOUT_SECONDS}s -c statement_timeout={SERVER_TIMEOUT_SECONDS}s "
    f"-c tcp_keepalives_idle=2 -c tcp_keepalives_interval=1 -c tcp_keepalives_count=3 "
    f"-c tcp_user_timeout={SERVER_TIMEOUT_SECONDS}s"
)
CLIENT_OPTIONS = {
    "connect_timeout": 3,
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": 4000,  # milliseconds
}


def key_of(name: str) -> int:
    """Return the key of a lock with a configured name, such as the address of a bridge."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], signed=True)


def holders(key: int) -> list[str]:
    """Return host and process id of each `Leader` that holds a lock, as PostgreSQL lists them."""
    return [name.partition(" ")[2] for (name,) in fetch(HOLDERS, {"key": key})]


@dataclass(frozen=True, slots=True)
class LeaderLock:
    """A lock on the session of Django's connection. It is lost with that connection.

    PostgreSQL ends a session that is idle for ``idle_seconds`` (0: never), so that a hanging process loses the lock.
    """

    key: int
    idle_seconds: int = 0

    def take(self) -> bool:
        """Take the lock if it is free, and return whether this process has it."""
        parameters = {"key": self.key, "idle": f"{self.idle_seconds}s"}
        [(is_ours, _)] = fetch(f"SELECT {TAKE}, set_config('idle_session_timeout', %(idle)s, false)", parameters)
        return bool(is_ours)

    def release(self) -> None:
        fetch("SELECT pg_advisory_unlock(%s::bigint)", [self.key])


class Term:
    """A period during which this process has the lock. The work of the term must end when ``ended`` is set.

    ``stopped`` is set when the whole process is to stop, which also ends the term.
    """

    def __init__(self, stopped: asyncio.Event) -> None:
        self.stopped = stopped
        self.ended = asyncio.Event()

    @property
    def is_over(self) -> bool:
        return self.ended.is_set() or self.stopped.is_set()

    async def pause(self, seconds: float | None, unless: asyncio.Event | None = None) -> None:
        """Wait for ``seconds`` (None: without a limit), or until the term ends or ``unless`` is set."""
        events = [self.ended, self.stopped, *([unless] if unless else [])]
        waiting = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()


async def wait(event: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set, but at most for ``seconds``."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


Work = Callable[[Term], Awaitable[None]]


class Leader:
    """A candidate for a lock, with a session of its own. PostgreSQL shows the session with ``name`` and process.

    With ``survives_outage`` the work goes on while the database is unavailable, until another process has the lock.
    After an outage, the former leader is the first that can take it.
    """

    def __init__(self, key: int, name: str, is_leading: Gauge, *, survives_outage: bool = False) -> None:
        self._key = key
        self._name = name
        self._is_leading = is_leading
        self._survives_outage = survives_outage
        self._session: psycopg.AsyncConnection | None = None
        self._change_filter = ChangeFilter()  # of the reasons why there is no session
        self._process = f"{name} {socket.gethostname()[:40]} {os.getpid()}"

    async def lead(self, stopped: asyncio.Event, work: Work) -> None:
        """Do the work whenever this process has the lock, until ``stopped``.

        The work must return when its term ends. Until it has returned, the lock is neither released nor taken again.
        """
        try:
            while not stopped.is_set():
                if await self._take():
                    await self._work(stopped, work)
                elif self._session is None and self._survives_outage:
                    await self._wait_for_former_leader(stopped)
                await wait(stopped, BEAT_SECONDS)
        finally:
            await self._disconnect()

    async def _work(self, stopped: asyncio.Event, work: Work) -> None:
        log.info("lock_taken", name=self._name)
        self._is_leading.set(1)
        term = Term(stopped)
        working = asyncio.ensure_future(work(term))
        others = [asyncio.ensure_future(each) for each in (_end_with(stopped, term), self._report(term))]
        try:
            while not working.done() and await self._may_stay(working):
                pass
        finally:
            self._is_leading.set(0)
            for each in others:
                each.cancel()
            term.ended.set()
            await working
        await self._disconnect()

    async def _wait_for_former_leader(self, stopped: asyncio.Event) -> None:
        """Wait until the database is back, and then for `RETURN_SECONDS`, in which the former leader can take the lock.

        The former leader is still at work, and would have to stop.
        """
        while not (stopped.is_set() or await self._try("true")):
            await wait(stopped, BEAT_SECONDS)
        await self._disconnect()  # PostgreSQL would end an idle session meanwhile
        await wait(stopped, RETURN_SECONDS)

    async def _may_stay(self, working: "asyncio.Future[None]") -> bool:
        """Wait for a second, or until the work is over, and return whether this process still leads."""
        await asyncio.wait([working], timeout=BEAT_SECONDS)
        if self._session is None:
            # The database may be unavailable for this process only. Then the status cache shows if another one leads.
            return await self._take() or (self._session is None and not await self._is_followed())
        try:
            if not await self._ask(HELD):
                self._log_change(POOLED)
                return False
        except (psycopg.Error, TimeoutError) as error:
            self._log_change(reason(error))
            if self._survives_outage:
                await self._disconnect()
            return self._survives_outage
        return True

    async def _report(self, term: Term) -> None:
        """Save the name of this process while it has the lock, if it survives outages.

        It is saved in a thread, so that a hanging cache does not delay the checks of the lock.
        """
        while self._survives_outage and not term.is_over:
            if self._session is not None:
                await asyncio.to_thread(LEADS.save, self._process, str(self._key))
            await term.pause(REPORT_SECONDS)

    async def _is_followed(self) -> bool:
        leader = None
        with suppress(TimeoutError):
            async with asyncio.timeout(BEAT_SECONDS):
                leader = await asyncio.to_thread(LEADS.read, str(self._key))
        return leader not in {None, self._process}

    async def _take(self) -> bool:
        """Take the lock if it is free, and return whether this process has it."""
        return await self._try(TAKE)

    async def _try(self, condition: LiteralString) -> bool:
        """Return whether a condition is true, on a new session if there is none. It is not while nothing answers."""
        try:
            if self._session is None:
                self._session = await self._connect()
            is_so = await self._ask(condition)
        except (psycopg.Error, TimeoutError) as error:
            self._log_change(reason(error))
            await self._disconnect()
            return False
        self._change_filter.has_changed("")
        return is_so

    async def _connect(self) -> psycopg.AsyncConnection:
        async with asyncio.timeout(LEADER_TIMEOUT_SECONDS):
            parameters = {**session_parameters(), "application_name": self._process}
            return await psycopg.AsyncConnection.connect(**parameters, autocommit=True)

    async def _ask(self, condition: LiteralString) -> bool:
        assert self._session is not None  # noqa: S101 - the callers have checked it
        async with asyncio.timeout(LEADER_TIMEOUT_SECONDS):
            cursor = await self._session.execute(f"SELECT {condition}", {"key": self._key})
            row = await cursor.fetchone()
        return bool(row and row[0])

    async def _disconnect(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with suppress(psycopg.Error, TimeoutError):
                async with asyncio.timeout(1):
                    await session.close()

    def _log_change(self, why: str) -> None:
        if self._change_filter.has_changed(why):
            log.warning("lock_session_lost", name=self._name, reason=why)


async def _end_with(stopped: asyncio.Event, term: Term) -> None:
    await stopped.wait()
    term.ended.set()


def session_parameters() -> dict[str, Any]:
    """Return connection parameters for a session that PostgreSQL ends within seconds after its host has failed."""
    parameters = connection_parameters()
    options = f"{parameters.get('options') or ''} {SERVER_OPTIONS}".strip()
    return {**parameters, **CLIENT_OPTIONS, "options": options}
