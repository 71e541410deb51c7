"""One reader per node and shard, however many bridges run: PostgreSQL's advisory locks, held by one session.

A relay cache gives each message to one reader only, so two readers would share its pages between them. Each would still
write its part into the same inbox: an overlap of a moment loses nothing and doubles nothing, it only makes the pages of
each look smaller. What leases prevent is that it lasts, and that every standby adds to the load of node and store.

A lock ends with its session, so a bridge that is killed is replaced as soon as PostgreSQL notices:

- its process ended, or PostgreSQL restarted: at once, the socket is closed;
- its host died, or it hangs: after `SERVER_PATIENCE_SECONDS`, when the server ends a session that says nothing.

The holder counts, too, from the moment it *sent* the last heartbeat that was answered, and stops reading after the
shorter `HOLDER_PATIENCE_SECONDS`: before anybody else can have the lock. Only when the server itself ends the session
the two may overlap, for as long as the news travels through the socket. A standby tries once per second.

The session must be ours alone. A pooler that hands the server's sessions around by transaction (PgBouncer in
transaction mode) refuses these options or loses the locks; each heartbeat counts the locks and notices that.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from time import monotonic
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import psycopg
import structlog
from django.db import connection as django_connection

from waku_bridge.metrics import LEASE_HELD

log = structlog.get_logger(__name__)

BEAT_SECONDS = 1.0
HOLDER_PATIENCE_SECONDS = 4.0
SERVER_PATIENCE_SECONDS = 6
# The session's own timeout covers most; these cover a server that is about to answer a host that is gone.
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
COUNT_LOCKS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid()"
# Of a 64-bit key the upper half is `classid`, the lower `objid`, and `objsubid` is 1.
FIND_HOLDERS = """
    SELECT (classid::bigint << 32) | objid::bigint, application_name
    FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND pg_locks.database =
        (SELECT oid FROM pg_database WHERE datname = current_database())
"""


class LostLockError(Exception):
    """The session does not hold what it was given: somebody between us and PostgreSQL changes sessions."""


@dataclass(frozen=True, slots=True)
class LeaseName:
    """``kind`` is live or store, ``node`` a URL."""

    kind: str
    node: str
    pubsub_topic: str

    @property
    def key(self) -> int:
        """Of the advisory lock: 64 bits, signed. Two names that share one would exclude each other; 2^-64."""
        name = f"pushserver\0{self.kind}\0{self.node}\0{self.pubsub_topic}"
        return int.from_bytes(sha256(name.encode()).digest()[:8], signed=True)

    @property
    def host(self) -> str:
        """Of the node, with its port, for logs and metrics: a URL may hold a password."""
        return urlsplit(self.node).netloc.rpartition("@")[2]


class Term:
    """A time during which a lease is ours. The work done under it ends itself when the term is over.

    ``stopped`` is set when the whole bridge is to stop.
    """

    def __init__(self, stopped: asyncio.Event, is_valid: Callable[[], bool] = lambda: True) -> None:
        self.stopped = stopped
        self._is_valid = is_valid
        self._ended = asyncio.Event()

    @property
    def has_ended(self) -> bool:
        """For good."""
        return self._ended.is_set()

    @property
    def is_over(self) -> bool:
        """Whether to stop now: it ended, or nobody has confirmed it for a while."""
        return self.has_ended or not self._is_valid()

    def end(self) -> None:
        self._ended.set()

    async def pause(self, seconds: float) -> None:
        """At most so long: the end of the term wakes whoever waits."""
        await wait(self._ended, seconds)

    async def wait(self) -> None:
        await self._ended.wait()


async def wait(event: asyncio.Event, seconds: float) -> None:
    """Until it is set, but no longer than that."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


Work = Callable[[Term], Awaitable[None]]


class Leases:
    """The leases of this process, on one session. Use it as a context: leaving it gives back what is held."""

    def __init__(self, parameters: Mapping[str, Any] | None = None) -> None:
        self._parameters = parameters
        self._terms: dict[LeaseName, asyncio.Queue[Term | None]] = {}
        self._current: dict[LeaseName, Term] = {}
        self._confirmed_at = 0.0
        self._stopped = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._keeper = asyncio.create_task(self._keep())
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.stop()
        assert self._keeper is not None  # noqa: S101 - made on entering
        self._keeper.cancel()
        with suppress(asyncio.CancelledError):
            await self._keeper

    async def watch(self) -> None:
        """Ends with an error when the leases cannot be kept any more for a reason that is ours."""
        assert self._keeper is not None  # noqa: S101 - made on entering
        await asyncio.wait([self._keeper])
        self._keeper.result()

    @property
    def held(self) -> frozenset[LeaseName]:
        return frozenset(name for name, term in self._current.items() if not term.is_over)

    async def hold(self, name: LeaseName, work: Work) -> None:
        """Do the work whenever the lease is ours, until `stop`. The lease is given back on leaving the context."""
        terms = self._terms[name] = asyncio.Queue()
        while not self._stopped.is_set() and (term := await terms.get()):
            # A process that hung for seconds may find that the lease is still its own: the work begins again.
            while not term.has_ended:
                await work(term)
                await term.pause(BEAT_SECONDS)

    def stop(self) -> None:
        """End all terms, but keep the locks while the work is being put down."""
        self._stopped.set()
        for term in self._current.values():
            term.end()
        for terms in self._terms.values():
            terms.put_nowait(None)

    async def _keep(self) -> None:
        """Keep a session for as long as this process wants leases, and take what can be had."""
        while True:
            try:
                async with await self._connect() as session:
                    await self._keep_session(session)
            except (psycopg.Error, TimeoutError, LostLockError) as error:
                log.warning("lease_session_lost", error=type(error).__name__, held=len(self.held))
            finally:
                self._lose_all()
            await asyncio.sleep(BEAT_SECONDS)

    async def _connect(self) -> psycopg.AsyncConnection:
        async with asyncio.timeout(HOLDER_PATIENCE_SECONDS):
            return await psycopg.AsyncConnection.connect(**self._parameters or session_parameters(), autocommit=True)

    async def _keep_session(self, session: psycopg.AsyncConnection) -> None:
        while True:
            sent_at = monotonic()
            async with asyncio.timeout(HOLDER_PATIENCE_SECONDS):
                await self._beat(session, sent_at)
            # Between heartbeats we listen: that the server ends the session arrives as an error, at once.
            async for _ in session.notifies(timeout=BEAT_SECONDS):
                pass

    async def _beat(self, session: psycopg.AsyncConnection, sent_at: float) -> None:
        [count] = await _row(session, COUNT_LOCKS)
        if count != len(self._current):
            raise LostLockError
        self._confirmed_at = sent_at
        for name in self._terms.keys() - self._current.keys():
            [is_ours] = await _row(session, "SELECT pg_try_advisory_lock(%s)", name.key)
            if is_ours:
                self._take(name)

    def _take(self, name: LeaseName) -> None:
        log.info("lease_taken", kind=name.kind, node=name.host, pubsub_topic=name.pubsub_topic)
        self._current[name] = term = Term(self._stopped, self._is_confirmed)
        if self._stopped.is_set():
            term.end()
        self._terms[name].put_nowait(term)
        _show(name, held=True)

    def _is_confirmed(self) -> bool:
        return monotonic() - self._confirmed_at < HOLDER_PATIENCE_SECONDS

    def _lose_all(self) -> None:
        for name, term in self._current.items():
            term.end()
            _show(name, held=False)
        self._current.clear()


def _show(name: LeaseName, *, held: bool) -> None:
    if name.kind == "live":
        LEASE_HELD.labels(name.host, name.pubsub_topic).set(held)


async def _row(session: psycopg.AsyncConnection, sql: str, *values: object) -> tuple[Any, ...]:
    cursor = await session.execute(sql, values)
    row = await cursor.fetchone()
    assert row is not None  # noqa: S101 - these statements always return one
    return row


def session_parameters() -> dict[str, Any]:
    """Those of the configured database, for a session that a dead host loses within seconds."""
    parameters = django_connection.get_connection_params()
    for name in ("cursor_factory", "context"):  # Django's, for synchronous connections
        parameters.pop(name, None)
    options = f"{parameters.get('options') or ''} {SERVER_OPTIONS}".strip()
    holder = f"{APPLICATION_NAME} {socket.gethostname()[:40]} {os.getpid()}"
    return {**parameters, **CLIENT_OPTIONS, "options": options, "application_name": holder}


def holders(names: Iterable[LeaseName]) -> dict[LeaseName, str]:
    """Host and process id of the bridge that holds each lease, by PostgreSQL's own account; without those that nobody
    holds.
    """
    with django_connection.cursor() as cursor:
        cursor.execute(FIND_HOLDERS)
        found: dict[int, str] = dict(cursor.fetchall())
    return {name: found[name.key].removeprefix(APPLICATION_NAME).strip() for name in names if name.key in found}
