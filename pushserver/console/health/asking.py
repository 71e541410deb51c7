"""Checks of the servers around us, of the heartbeats in the cache, and of the volumes that this process sees. All
answers are there within seconds.

`/readyz`, which is open to anybody, shows the answers. So they have no user, password, path or exception text, and
hosts as subjects only, which `/readyz` leaves out.
"""

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import cache
from math import inf
from operator import itemgetter
from pathlib import Path
from ssl import SSLError
from time import time
from typing import Any, LiteralString

import psycopg
import redis
from django.conf import settings
from django.core.cache import cache as shared_cache
from django.db import connection
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
)

from kit.buckets.shared import SHOWN
from kit.db.base import TimedConnection, TooOldError, is_marked_ready, refuse_too_old
from kit.db.reasons import DISK_FULL, READ_ONLY, REASONS, UNAVAILABLE, is_closed, reason
from kit.exposition import BROKEN, read_values
from kit.processes.starting import OWN_FAULT
from pushserver.celery import BATCHES, HEARTBEAT_KEY, QUEUES
from pushserver.console.health.indicators import FULL_MIB, NEEDED_QUEUES, SIZE_OF_DATABASE, Past, Volume, with_step
from pushserver.console.health.recent import Recent
from pushserver.console.health.verdicts import Facts, listed
from pushserver.console.models import Count
from pushserver.console.parts import parts_in_use
from pushserver.release import Migration, known_migrations

TIMEOUT_SECONDS = 2
# A process that meets a fault tries again within two seconds, so one that was noted longer ago is over.
OVER_SECONDS = 5.0
LOCK_TIMEOUT = "500ms"
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


def ask() -> Facts:
    """Ask all servers at the same time, so that together they take as long as the slowest.

    This thread reads the cache, because each thread would make its own connection to it.
    """
    parts = parts_in_use()
    with ThreadPoolExecutor(len(parts) + 2) as pool:
        database, broker = pool.submit(ask_database), pool.submit(ask_broker)
        asked = [pool.submit(part.ask) for part in parts]
        facts = Facts(parts=parts, queues=_queues(), volumes=volumes())
        facts |= {**database.result(), "broker": broker.result(), "waits_for": _waits_for()}
        for each in asked:
            facts |= each.result()
    for part in parts:
        facts |= part.reach(facts)
    return facts


# Seconds for which the answers of the servers are reused. The dashboard, the API, `/metrics` and `/readyz` may be
# requested more often, the last one by anybody.
KEPT_SECONDS = 1.0
RECENT = Recent(ask, lambda: KEPT_SECONDS)


# PostgreSQL and Redis -------------------------------------------------------------------------------------------------
def ask_database() -> Mapping[str, Any]:
    """Return the facts that PostgreSQL answers with.

    ``database`` says why it cannot be used, as the processes know it, and is empty if it answers, can be written and
    has all migrations. ``incidents`` has the beginning of each open incident by indicator. Where they are known,
    ``silent_seconds`` has the silence of each process of `batches`, ``leaders`` that of each bridge by the name of its
    leader, and ``past`` the free space of volumes and the size of the database in the last day.
    """
    why, found = _ask_database()
    return {"incidents": {}, **found, "database": _as_known(why)}


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


def _ask_database() -> tuple[str, Mapping[str, Any]]:
    """Return the reason why PostgreSQL cannot be used, or an empty text, and facts."""
    if _is_marked_unready():
        return "PostgreSQL is not ready", {}
    try:
        with closing(_connect()) as own:
            refuse_too_old(own.info.server_version)
            missing = len(_known_migrations() - _applied_migrations(own))
            is_read_only = own.execute("SELECT current_setting('transaction_read_only')").fetchone() == ("on",)
            facts: dict[str, Any] = {
                "silent_seconds": [seconds for (seconds,) in own.execute(SILENT_WORKERS)],
                "leaders": dict(own.execute(SILENT_LEADERS).fetchall()),
            }
            if not missing:
                facts["past"] = {flow: Past(*values) for flow, *values in own.execute(PAST)}
                facts["incidents"] = _open_incidents(own)
    except TooOldError as error:
        return str(error), {}
    except psycopg.Error as error:
        return reason(error) if is_closed(error) else UNAVAILABLE, {}
    return REASONS[READ_ONLY] if is_read_only else f"migrations not applied: {missing}" if missing else "", facts


def _open_incidents(own: psycopg.Connection[Any]) -> Mapping[str, Any]:
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


AWAY, LOADING = "Redis does not answer", "Redis is loading its data"
START = "start Redis, or correct REDIS_URL"
# Why Redis cannot be used, and what to do then, by the class of the error or of its cause, and a word of its text. The
# first that fits counts. These are our own words: those of Redis may quote a name or a key.
REFUSALS: tuple[tuple[type[Exception], str, str, str], ...] = (
    (NoPermissionError, "channel", "the account of REDIS_URL may not use Celery's channels",
     "give the account its channels: `ACL SETUSER name allchannels`"),
    (NoPermissionError, "key", "the account of REDIS_URL may not use Celery's keys",
     "give the account its keys: `ACL SETUSER name allkeys`"),
    (NoPermissionError, "", "the account of REDIS_URL may not run Celery's commands",
     "give the account its commands: `ACL SETUSER name +@all -@admin -@dangerous +info`"),
    (SSLError, "", "Redis has no valid certificate for the host of REDIS_URL",
     "name its authority in SSL_CERT_FILE, and Redis by a name of its certificate"),
    (ReadOnlyError, "", "Redis is a replica, and refuses writes",
     "name the primary in REDIS_URL, or make this server the primary: `REPLICAOF NO ONE`"),
    (OutOfMemoryError, "", "Redis has reached its maxmemory, and refuses writes",
     "raise `maxmemory`, and look at who else uses this Redis"),
    (AuthenticationError, "", "Redis refuses the account or password of REDIS_URL",
     "correct REDIS_URL, and restart every process"),
    (BusyLoadingError, "", LOADING, "wait until it has read its file"),
    (redis.ConnectionError, "", AWAY, START),
    (redis.TimeoutError, "", AWAY, START),
    (redis.RedisError, "MISCONF", "Redis cannot write to its disk, and refuses writes",
     "make room on the disk of Redis: its log has the error"),
    (redis.RedisError, "", "Redis refuses what workers do there",
     "the log of the workers and that of Redis have the reason"),
)  # fmt: skip


def ask_broker() -> str:
    """Return why Redis cannot be used, and what to do then, or an empty text if it lets us do what workers do there.

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
        seen = (error, error.__cause__ or error.__context__)  # a faulty certificate is the cause of another error
        fitting = (row for row in REFUSALS if any(isinstance(each, row[0]) for each in seen))
        return next(f"{sentence}: {step}" for _, word, sentence, step in fitting if word in str(error))
    return ""


def refusing_broker() -> Iterator[str]:
    """Yield what Redis refuses, with the remedy. Celery itself waits for a Redis that is away."""
    if (fault := ask_broker()) and not fault.startswith((AWAY, LOADING)):
        yield "{}. {}".format(*with_step(fault))


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
def _queues() -> Mapping[str, bool]:
    """Return whether there is a worker for each queue that needs one, and for those that the settings switch on.

    A worker writes its heartbeat within the time to live. PostgreSQL reports the processes of `batches`.
    """
    keys = {queue: HEARTBEAT_KEY.format(queue=queue) for queue in QUEUES}
    try:
        served = shared_cache.get_many(keys.values())
    except redis.RedisError:
        served = {}  # the indicator of Redis has the reason
    is_wanted = {"reports": settings.REPORTS_NIGHTLY, "canary": bool(settings.CANARY_PERIOD_SECONDS)}
    wanted = [queue for queue in QUEUES if queue in NEEDED_QUEUES or is_wanted.get(queue, True)]
    return {queue: keys[queue] in served for queue in wanted if queue != BATCHES}


# Volumes --------------------------------------------------------------------------------------------------------------
MIB = 2**20
MOUNTS = Path("/proc/self/mounts")
# Beginnings of the names of file systems of other machines.
REMOTE = ("9p", "afs", "autofs", "ceph", "cifs", "fuse.", "gluster", "lustre", "nfs", "smb")
# The first and the last known value of each flow within a day, with their times.
PAST: LiteralString = f"""
    SELECT subject, min(begin_at), (array_agg(count ORDER BY begin_at))[1],
        max(begin_at), (array_agg(count ORDER BY begin_at DESC))[1]
    FROM pushserver_count
    WHERE figure = '{Count.Figure.HOUR}' AND begin_at > now() - interval '1 day'
        AND (subject = '{SIZE_OF_DATABASE}' OR subject LIKE 'free %')
    GROUP BY subject
"""


def volumes() -> list[Volume]:
    """Return the volumes, each once, with the names of all data on it."""
    found: dict[int, tuple[Path, list[str]]] = {}
    for name, folder in _folders().items():
        with suppress(OSError):  # nothing was written there yet
            found.setdefault(folder.stat().st_dev, (folder, []))[1].append(name)
    return list(_measured(found))


def _measured(found: Mapping[int, tuple[Path, list[str]]]) -> Iterator[Volume]:
    for folder, names in found.values():
        with suppress(OSError):
            free = os.statvfs(folder)
            size_mib = free.f_blocks * free.f_frsize // MIB
            yield Volume(listed(names), free.f_bavail * free.f_frsize // MIB, size_mib, names != ["reports"])


def _folders() -> Mapping[str, Path]:
    """Return the folders of our data by their names for people. Servers of the operator have theirs elsewhere."""
    is_embedded = settings.EMBEDDED.get("DATABASE_URL") == settings.DATABASE_URL
    embedded = {"PostgreSQL": settings.EMBEDDED_POSTGRES_DIR} if is_embedded else {}
    if settings.EMBEDDED.get("REDIS_URL") == settings.REDIS_URL:
        embedded["Redis"] = settings.DATA_DIR / "valkey"
    others = {"metrics": settings.METRICS_DIR, "DATA_DIR": settings.DATA_DIR}
    lake = settings.REPORTS_LAKE
    return {**embedded, **others, **({} if "://" in lake or _is_elsewhere(Path(lake)) else {"reports": Path(lake)})}


def _is_elsewhere(folder: Path) -> bool:
    """Return whether another machine has a folder. It may be away, and each question about it would hang as long."""
    mounts = [line.split()[1:3] for line in MOUNTS.read_text().splitlines()] if MOUNTS.exists() else []
    holding = [(len(point), kind) for point, kind in mounts if folder.is_relative_to(point)]
    return bool(holding) and max(holding)[1].startswith(REMOTE)
