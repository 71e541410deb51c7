"""Checks of the servers around us, and of the heartbeats in the cache. All answers are there within seconds.

`/readyz`, which is open to anybody, shows the answers. So they have no user, password, path or exception text, and
hosts as subjects only, which `/readyz` leaves out.
"""

import ssl
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import datetime
from functools import cache
from math import inf
from operator import itemgetter
from time import time
from types import MappingProxyType
from typing import Any, LiteralString, NamedTuple

import psycopg
import redis
from django.conf import settings
from django.core.cache import cache as shared_cache
from django.db import connection

from kit.buckets.shared import SHOWN
from kit.db.base import TimedConnection, TooOldError, is_marked_ready, refuse_too_old
from kit.db.reasons import DISK_FULL, READ_ONLY, REASONS, UNAVAILABLE, is_closed, reason
from kit.exposition import BROKEN, read_values
from kit.processes.starting import OWN_FAULT
from pushserver.celery import BATCHES, HEARTBEAT_KEY, QUEUES
from pushserver.console.health.history.volumes import PAST, volumes
from pushserver.console.health.judging import Reached
from pushserver.console.health.kinds import server
from pushserver.console.health.kinds.server import Queue
from pushserver.console.health.recent import Recent
from pushserver.console.health.space import FULL_MIB, Past
from pushserver.console.parts import parts_in_use
from pushserver.release import Migration, known_migrations

TIMEOUT_SECONDS = 2
# A process that meets a fault tries again within two seconds, so one that was noted longer ago is over.
OVER_SECONDS = 5.0
LOCK_TIMEOUT = "500ms"
# Without a worker for one of these queues messages or their answers are not processed. Reports can wait.
NEEDED_QUEUES = ("maintenance", "keys")
# Seconds since the last statement of each live worker. A worker that does not hang sends one every second. Without
# `track_activities` in PostgreSQL the time is unknown, and counts as 0.
SILENT_WORKERS: LiteralString = f"""
    SELECT coalesce(extract(epoch FROM clock_timestamp() - greatest(query_start, state_change)), 0)::float
    FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE {SHOWN}
"""
# Seconds since the last statement of each kind of leader by its name, or of a candidate where none leads. Both send one
# every `BEAT_SECONDS`. Without `track_activities` in PostgreSQL the time counts as 0.
SILENT_LEADERS: LiteralString = """
    SELECT DISTINCT ON (name) name, silent_seconds FROM (
        SELECT
            split_part(application_name, ' ', 1) AS name,
            coalesce(extract(epoch FROM clock_timestamp() - greatest(query_start, state_change)), 0)::float
                AS silent_seconds,
            EXISTS (SELECT FROM pg_locks WHERE pid = session.pid AND locktype = 'advisory' AND granted) AS leads
        FROM pg_stat_activity AS session WHERE datname = current_database() AND application_name LIKE 'push-%'
    ) AS found ORDER BY name, leads DESC, silent_seconds
"""
INCIDENTS: LiteralString = "SELECT indicator, began_at FROM pushserver_incident WHERE ended_at IS NULL"


class Database(NamedTuple):
    """The answer of PostgreSQL. ``reason`` says why it cannot be used, and is empty if it answers, can be
    written and has all migrations. ``incidents`` has the beginning of each open incident by indicator.

    ``silent_seconds`` has the silence of each process of `batches`, and ``leaders`` that of each bridge by the name of
    its leader. Both are None while they are not known. ``past`` has the free space of volumes and the size of the
    database in the last day.
    """

    reason: str = ""
    incidents: Mapping[str, datetime] = MappingProxyType({})
    silent_seconds: Sequence[float] | None = None
    leaders: Mapping[str, float] | None = None
    past: Mapping[str, Past] = MappingProxyType({})


def ask() -> Reached:
    """Ask all servers at the same time, so that together they take as long as the slowest.

    This thread reads the cache, because each thread would make its own connection to it.
    """
    parts = parts_in_use()
    with ThreadPoolExecutor(len(parts) + 2) as pool:
        asked_database, asked_broker = pool.submit(ask_database), pool.submit(ask_broker)
        asked = [pool.submit(part.ask) for part in parts]
        queues = list(_queues(_served()))
        database, broker = asked_database.result(), asked_broker.result()
    is_blind = bool(broker)  # each request to Redis would take its full timeout
    return Reached(
        database=database.reason,
        broker=broker,
        queues=queues,
        silent_seconds=database.silent_seconds,
        parts={
            part: part.reach(own.result(), database.leaders, is_blind=is_blind)
            for part, own in zip(parts, asked, strict=True)
        },
        incidents=database.incidents,
        volumes=volumes(),
        past=database.past,
        waits_for=_waits_for(),
    )


# Seconds for which the answers of the servers are reused. The dashboard, the API, `/metrics` and `/readyz` may be
# requested more often, the last one by anybody.
KEPT_SECONDS = 1.0
RECENT = Recent(ask, lambda: KEPT_SECONDS)


# PostgreSQL and Redis -------------------------------------------------------------------------------------------------
def ask_database() -> Database:
    """Return the answer of PostgreSQL, or the reason why there is none, as the processes know it."""
    found = _ask_database()
    return found._replace(reason=_as_known(found.reason))


_well_at = time()  # when this process last found PostgreSQL well


def _as_known(reason: str) -> str:
    """Return the reason why PostgreSQL cannot be used: the one that it gave to a process, or ours.

    A process that PostgreSQL refuses says so every two seconds. Once PostgreSQL does not answer any more, the last
    refusal stays the reason. Our own question has just found out whether it can be written at all.
    """
    global _well_at  # noqa: PLW0603 - one fact about this process
    noted = _own_faults()
    just_asked = "" if reason else READ_ONLY
    refused = {code: ago for code, ago in noted.items() if code in REASONS and code != just_asked}
    code, seconds_ago = min(refused.items(), key=itemgetter(1), default=("", inf))
    if seconds_ago <= OVER_SECONDS or (reason and time() - seconds_ago > _well_at):
        return REASONS[code]
    if reason and any("PostgreSQL" in volume.name and volume.free_mib < FULL_MIB for volume in volumes()):
        return REASONS[DISK_FULL]
    if not reason:
        _well_at = time()
    return reason


def _ask_database() -> Database:
    if _is_marked_unready():
        return Database("PostgreSQL is not ready")
    try:
        with closing(_connect()) as own:
            refuse_too_old(own.info.server_version)
            missing = len(_known_migrations() - _applied_migrations(own))
            is_read_only = own.execute("SELECT current_setting('transaction_read_only')").fetchone() == ("on",)
            silent_seconds = [seconds for (seconds,) in own.execute(SILENT_WORKERS)]
            leaders = dict(own.execute(SILENT_LEADERS).fetchall())
            past = {} if missing else {flow: Past(*values) for flow, *values in own.execute(PAST)}
            incidents = {} if missing else _open_incidents(own)
    except TooOldError as error:
        return Database(str(error))
    except psycopg.Error as error:
        return Database(reason(error) if is_closed(error) else UNAVAILABLE)
    why = REASONS[READ_ONLY] if is_read_only else f"migrations not applied: {missing}" if missing else ""
    return Database(why, incidents, silent_seconds, leaders, past)


def _open_incidents(own: psycopg.Connection[Any]) -> Mapping[str, datetime]:
    """Return the open incidents, or none while another session keeps their table locked: messages are processed."""
    own.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
    try:
        return dict(own.execute(INCIDENTS).fetchall())
    except psycopg.errors.LockNotAvailable:
        return {}


def _is_marked_unready() -> bool:
    """Return whether the embedded PostgreSQL is not ready, according to its own file.

    It starts at the same time as the web server, which answers probes meanwhile. A database of the operator has no such
    file, and is always asked.
    """
    is_embedded = settings.EMBEDDED.get("DATABASE_URL") == settings.DATABASE_URL
    return is_embedded and not is_marked_ready(settings.EMBEDDED_POSTGRES_DIR)


def _connect() -> psycopg.Connection[Any]:
    """Open a new connection. An existing one may hang, and would hide that PostgreSQL accepts no new one."""
    parameters = connection.get_connection_params() | {"connect_timeout": TIMEOUT_SECONDS}
    own = TimedConnection.connect(**parameters)
    own.timeout_seconds = 2 * TIMEOUT_SECONDS  # the server may freeze before its own timeout
    own.execute(f"SET LOCAL statement_timeout = '{TIMEOUT_SECONDS}s'")
    return own


def _applied_migrations(own: psycopg.Connection[Any]) -> frozenset[Migration]:
    """Return the applied migrations.

    A query of a missing table would leave an error in PostgreSQL's log at each first start, so its existence is
    checked.
    """
    if own.execute("SELECT to_regclass('django_migrations')").fetchone() == (None,):
        return frozenset()
    return frozenset(own.execute("SELECT app, name FROM django_migrations").fetchall())


@cache
def _known_migrations() -> frozenset[Migration]:
    """Return the migrations of the code. They are read once, because they change only with a restart.

    Workers need them, too, but do not install the console. There Django's loader finds no migration that depends on the
    migrations of the console.
    """
    return frozenset(known_migrations())


def ask_broker() -> str:
    """Return the reason why Redis cannot be used, or an empty text if it lets us do what workers do there.

    They write, also to the keys of Celery's queues, and publish and subscribe to Celery's channels. Nobody listens to
    the channel of the publication. The subscription is the last command: it changes the mode of the connection.
    """
    # In version 3 of the protocol a subscription has no reply.
    options = {"socket_timeout": TIMEOUT_SECONDS, "socket_connect_timeout": TIMEOUT_SECONDS, "protocol": 2}
    try:
        with closing(redis.Redis.from_url(settings.REDIS_URL, **options)) as client:
            prefix = f"/{client.connection_pool.connection_kwargs.get('db') or 0}.celery"
            with client.pipeline(transaction=False) as commands:
                commands.set(shared_cache.make_key("probe"), b"", ex=60)
                commands.hdel("unacked", "probe")
                commands.lrem(BATCHES, 1, "probe")
                commands.publish(f"{prefix}ev.probe", b"")
                commands.execute_command("SUBSCRIBE", f"{prefix}.pidbox")  # type: ignore[no-untyped-call]
                commands.execute()
    except redis.RedisError as error:
        return _refusal(error)
    return ""


def refusing_broker() -> Iterator[str]:
    """Yield what Redis refuses, with the remedy. Celery itself waits for a Redis that is away."""
    if (fault := ask_broker()) and fault not in {server.BROKER_AWAY, server.LOADING}:
        yield f"{fault}. {server.BROKER_STEPS[fault]}"


def _refusal(error: redis.RedisError) -> str:
    """Return what Redis refuses, in our own words: its own may quote a name or a key."""
    if isinstance(error, redis.exceptions.NoPermissionError):
        return next((fault for word, fault in server.MISSING_RIGHTS.items() if word in str(error)), server.NO_COMMANDS)
    if isinstance(error.__cause__ or error.__context__, ssl.SSLError):
        return server.UNVERIFIED
    for kind, fault in _REFUSALS.items():
        if isinstance(error, kind):
            return fault
    return server.UNSAVED if "MISCONF" in str(error) else server.REFUSING


_REFUSALS: Mapping[type[redis.RedisError], str] = {
    redis.exceptions.ReadOnlyError: server.REPLICA,
    redis.exceptions.OutOfMemoryError: server.OUT_OF_MEMORY,
    redis.exceptions.AuthenticationError: server.UNAUTHENTICATED,
    redis.exceptions.BusyLoadingError: server.LOADING,
    redis.exceptions.ConnectionError: server.BROKER_AWAY,
    redis.exceptions.TimeoutError: server.BROKER_AWAY,
}


def _waits_for() -> str:
    """Return the fault for which a process of this machine waits at its start, or an empty text."""
    noted = _own_faults().items()
    return next((fault for fault, ago in noted if fault not in REASONS and ago <= OVER_SECONDS), "")


def _own_faults() -> Mapping[str, float]:
    """Return how many seconds ago each fault was last noted by a process of this machine.

    A broken file has none, and `/metrics` names it. That of an ended process may go while it is read.
    """
    noted: dict[str, float] = {}
    for file in settings.METRICS_DIR.glob("gauge_livemax_*.db"):
        with suppress(OSError, *BROKEN):
            for name, labels, at in read_values(file).values():
                if name == OWN_FAULT._name and at:  # noqa: SLF001 - there is no public name for it
                    noted[labels["fault"]] = max(at, noted.get(labels["fault"], 0.0))
    # A time in the future is from before the clock was set back, and long ago.
    return {fault: abs(time() - at) for fault, at in noted.items()}


# Workers --------------------------------------------------------------------------------------------------------------
def _served() -> set[str]:
    """Return the queues with a worker, which wrote its heartbeat within the time to live."""
    keys = {HEARTBEAT_KEY.format(queue=queue): queue for queue in QUEUES}
    try:
        return {keys[key] for key in shared_cache.get_many(keys)}
    except redis.RedisError:
        return set()  # the indicator of Redis has the reason


def _queues(served: Collection[str]) -> Iterator[Queue]:
    """Yield the queues that need a worker, and those that the settings switch on. PostgreSQL reports the processes of
    `batches`.
    """
    is_wanted = {"reports": settings.REPORTS_NIGHTLY, "canary": bool(settings.CANARY_PERIOD_SECONDS)}
    for queue in QUEUES:
        if queue != BATCHES and (queue in NEEDED_QUEUES or is_wanted.get(queue, True)):
            yield Queue(queue, queue in served, is_needed=queue in NEEDED_QUEUES)
