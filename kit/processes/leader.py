"""Leader lock: of many processes that can do a job, one does it, and another one follows when it ends.

The lock is a session advisory lock of PostgreSQL, which releases it when the session ends, however the process ended.
A leader asks again and again whether it still has the lock, because a session may end unseen, or be exchanged.

    LeaderLock    on Django's connection, asked whenever there is work                  batches, beat, reports
    Leader        on a session of its own, asked every second while the work goes on    both bridges

The session of a `Leader` ends at once when its process ended or PostgreSQL restarted. It ends after
`SERVER_TIMEOUT_SECONDS` when its host died or hangs, as PostgreSQL ends a session that says nothing. The leader notices
within the shorter `LEADER_TIMEOUT_SECONDS` that it is not answered, and does not ask for the lock again before its work
has returned.

The session must be ours alone. A pooler that hands the server's sessions around by transaction (PgBouncer in
transaction mode) refuses these options or loses the lock.
"""

import asyncio
import hashlib
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, LiteralString

import psycopg
import structlog
from prometheus_client import Gauge

from kit.db.connections import connection_parameters
from kit.db.reasons import reason
from kit.db.statements import fetch
from kit.health.change_filter import ChangeFilter
from kit.health.status_cache import StatusCache

log = structlog.get_logger(__name__)

# The keys of all advisory locks: 64 bits, which spell a word. What has a name of its own has the key of `key_of`.
BATCHES = int.from_bytes(b"batches")
BEAT = int.from_bytes(b"PushBeat")
REPORTS = int.from_bytes(b"pushrept")
WAKU_BRIDGE = int.from_bytes(b"PushRead")
# All batch workers hold this one, in shared mode: see `kit.buckets.share`.
LIVE_WORKERS = int.from_bytes(b"work")

# Of a 64-bit key the upper half is `classid`, the lower `objid`, and `objsubid` is 1.
_OF_KEY: LiteralString = """
    locktype = 'advisory' AND granted AND objsubid = 1 AND (classid::bigint << 32) | objid::bigint = %(key)s::bigint
"""
HELD: LiteralString = f"EXISTS (SELECT FROM pg_locks WHERE {_OF_KEY} AND pid = pg_backend_pid())"
# A lock that a session takes twice has to be given back twice: it is taken only where it is not held.
TRY: LiteralString = "pg_try_advisory_lock(%(key)s::bigint)"
TAKE: LiteralString = f"({HELD} OR {TRY})"
HOLDERS: LiteralString = f"""
    SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE {_OF_KEY} AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
POOLED = "a pool between this process and PostgreSQL exchanges sessions: DATABASE_URL must lead past it"

BEAT_SECONDS = 1.0
LEADER_TIMEOUT_SECONDS = 4.0
SERVER_TIMEOUT_SECONDS = 6
# How long a leader that works on without the database needs at most to take the lock again.
RETURN_SECONDS = LEADER_TIMEOUT_SECONDS + 3 * BEAT_SECONDS
# Which process leads, for one that survives outages. It says so every few seconds while it has its session.
LEADS = StatusCache("leads", str, ttl_seconds=15)
REPORT_SECONDS = 5.0
# The session's own timeout covers most cases; the others cover a server that is sending to a host that is gone.
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
    """Return the key of the lock of what has this name, such as one of several components."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], signed=True)


def holders(key: int) -> list[str]:
    """Return host and process id of each `Leader` that holds a lock, by PostgreSQL's own account."""
    return [name.partition(" ")[2] for (name,) in fetch(HOLDERS, {"key": key})]


@dataclass(frozen=True, slots=True)
class LeaderLock:
    """A lock on the session of Django's connection. It is lost with that connection.

    PostgreSQL ends a session that says nothing for ``idle_seconds`` (0: never), so that a process that hangs loses it.
    """

    key: int
    idle_seconds: int = 0

    def take(self) -> bool:
        """Take the lock if it is free, and return whether it is ours."""
        parameters = {"key": self.key, "idle": f"{self.idle_seconds}s"}
        [(is_ours, _)] = fetch(f"SELECT {TAKE}, set_config('idle_session_timeout', %(idle)s, false)", parameters)
        return bool(is_ours)

    def release(self) -> None:
        """Give the lock back."""
        fetch("SELECT pg_advisory_unlock(%s::bigint)", [self.key])


class Term:
    """A time during which the lock is ours. The work done under it ends itself when ``ended`` is set.

    ``stopped`` is set when the whole process is to stop. That ends the term, too.
    """

    def __init__(self, stopped: asyncio.Event) -> None:
        self.stopped = stopped
        self.ended = asyncio.Event()

    @property
    def is_over(self) -> bool:
        return self.ended.is_set() or self.stopped.is_set()

    async def pause(self, seconds: float | None, unless: asyncio.Event | None = None) -> None:
        """Wait this long (for ever: None), but no longer than the term lasts, and not when ``unless`` is set."""
        events = [self.ended, self.stopped, *([unless] if unless else [])]
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
        async with asyncio.timeout(seconds):
            await event.wait()


Work = Callable[[Term], Awaitable[None]]


class Leader:
    """The wish to lead, and a session for the lock. ``name`` and the process are what the database knows it by.

    ``survives_outage`` says that the work goes on while the database is away, until another process has the lock. After
    an outage it is the first to get it again.
    """

    def __init__(self, key: int, name: str, is_leading: Gauge, *, survives_outage: bool = False) -> None:
        self._key = key
        self._name = name
        self._is_leading = is_leading
        self._survives_outage = survives_outage
        self._session: psycopg.AsyncConnection | None = None
        self._change_filter = ChangeFilter()  # why there is no session
        self._process = f"{name} {socket.gethostname()[:40]} {os.getpid()}"
        self._report_at = float("-inf")  # monotonic
        self._reporting: asyncio.Future[None] | None = None

    async def lead(self, stopped: asyncio.Event, work: Work) -> None:
        """Do the work whenever the lock is ours, until ``stopped``.

        The work returns when its term is over, and is waited for: before that the lock is neither asked for again nor
        given back.
        """
        try:
            while not stopped.is_set():
                if await self._take():
                    await self._work(stopped, work)
                elif self._session is None and self._survives_outage:
                    await self._give_way(stopped)
                await wait(stopped, BEAT_SECONDS)
        finally:
            await self._hang_up()

    async def _work(self, stopped: asyncio.Event, work: Work) -> None:
        log.info("lock_taken", name=self._name)
        self._is_leading.set(1)
        self._report_at = float("-inf")
        term = Term(stopped)
        working = asyncio.ensure_future(work(term))
        stopping = asyncio.ensure_future(_end_with(stopped, term))
        try:
            while not working.done() and await self._may_stay(working):
                pass
        finally:
            self._is_leading.set(0)
            stopping.cancel()
            term.ended.set()
            await working
        await self._hang_up()

    async def _give_way(self, stopped: asyncio.Event) -> None:
        """Wait until the database is back, and then until whoever led before has had time to take the lock again: its
        work goes on, and would be cut off.
        """
        while not (stopped.is_set() or await self._is_connected()):
            await wait(stopped, BEAT_SECONDS)
        await self._hang_up()  # PostgreSQL would end a session that says nothing meanwhile
        await wait(stopped, RETURN_SECONDS)

    async def _may_stay(self, working: "asyncio.Future[None]") -> bool:
        """Wait for a second, or until the work is over, and return whether we still lead."""
        if self._session is None:
            await asyncio.wait([working], timeout=BEAT_SECONDS)
            # The database may be away for this process alone, and another one leads: then it has said so.
            return await self._take() or (self._session is None and not await self._is_followed())
        try:
            if not await self._ask(HELD):
                self._log_change(POOLED)
                return False
            self._report_leader()
            await self._listen(self._session, working)
        except (psycopg.Error, TimeoutError) as error:
            self._log_change(reason(error))
            if self._survives_outage:
                await self._hang_up()
            return self._survives_outage
        return True

    async def _listen(self, session: psycopg.AsyncConnection, working: "asyncio.Future[None]") -> None:
        """Wait until the next look at the lock. Who listens notices at once that the session has ended."""
        listening = asyncio.ensure_future(_hear_nothing(session))
        await asyncio.wait([listening, working], return_when=asyncio.FIRST_COMPLETED)
        if listening.done():
            listening.result()
        else:
            listening.cancel()
            await asyncio.wait([listening])

    def _report_leader(self) -> None:
        """Say it from a thread, so that a cache that hangs does not keep the leader from its session."""
        if (
            self._survives_outage
            and monotonic() >= self._report_at
            and (self._reporting is None or self._reporting.done())
        ):
            self._report_at = monotonic() + REPORT_SECONDS
            self._reporting = asyncio.ensure_future(asyncio.to_thread(LEADS.save, self._process, str(self._key)))

    async def _is_followed(self) -> bool:
        leader = None
        with suppress(TimeoutError):
            async with asyncio.timeout(BEAT_SECONDS):
                leader = await asyncio.to_thread(LEADS.read, str(self._key))
        return leader not in {None, self._process}

    async def _take(self) -> bool:
        """Take the lock if it is free, and return whether it is ours."""
        if not await self._is_connected():
            return False
        try:
            is_ours = await self._ask(TAKE)
        except (psycopg.Error, TimeoutError) as error:
            self._log_change(reason(error))
            await self._hang_up()
            return False
        self._change_filter.has_changed("")
        return is_ours

    async def _is_connected(self) -> bool:
        """Connect unless there is a session, and return whether there is one."""
        try:
            if self._session is None:
                self._session = await self._connect()
        except (psycopg.Error, TimeoutError) as error:
            self._log_change(reason(error))
        return self._session is not None

    async def _connect(self) -> psycopg.AsyncConnection:
        async with asyncio.timeout(LEADER_TIMEOUT_SECONDS):
            parameters = {**session_parameters(), "application_name": self._process}
            return await psycopg.AsyncConnection.connect(**parameters, autocommit=True)

    async def _ask(self, condition: LiteralString) -> bool:
        assert self._session is not None  # noqa: S101 - the callers have looked
        async with asyncio.timeout(LEADER_TIMEOUT_SECONDS):
            cursor = await self._session.execute(f"SELECT {condition}", {"key": self._key})
            row = await cursor.fetchone()
        return bool(row and row[0])

    async def _hang_up(self) -> None:
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


async def _hear_nothing(session: psycopg.AsyncConnection) -> None:
    async for _ in session.notifies(timeout=BEAT_SECONDS):
        pass


def session_parameters() -> dict[str, Any]:
    """Return the parameters of the configured database, for a session that a dead host loses within seconds."""
    parameters = connection_parameters()
    options = f"{parameters.get('options') or ''} {SERVER_OPTIONS}".strip()
    return {**parameters, **CLIENT_OPTIONS, "options": options}
