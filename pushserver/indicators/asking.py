"""Questions to the servers around us, with the heartbeats in the cache. All answers are there within seconds.

The answers are those of `/readyz`, which is open to anybody: they name queues, but no user, password, path or exception
text, and hosts as subjects only, which it leaves out.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime
from functools import cache
from typing import Any, LiteralString

import psycopg
import redis
from django.conf import settings
from django.core.cache import cache as shared_cache
from django.db import connection

from kit.buckets.share import SILENT_SECONDS
from kit.db.connections import is_marked_ready
from kit.db.postgresql.base import TimedConnection
from kit.db.postgresql.versions import TooOldError, refuse_too_old
from kit.health.recent import Recent
from kit.operations import parts_in_use
from pushserver.celery import BATCHES, HEARTBEAT_KEY, QUEUES
from pushserver.indicators.judging import Reached
from pushserver.indicators.kinds.server import Queue
from pushserver.start.release import Migration, known_migrations

TIMEOUT_SECONDS = 2
# Without a worker for one of these queues messages or their answers are not processed. Reports can wait.
NEEDED_QUEUES = ("maintenance", "keys")
INCIDENTS: LiteralString = "SELECT indicator, incident_at FROM pushserver_incident WHERE ended_at IS NULL"
Incidents = Mapping[str, datetime]
SilentSeconds = Sequence[float] | None  # None: not known


def ask() -> Reached:
    """Ask all servers side by side, so that together they take as long as the slowest.

    The cache is read by this thread, because each thread would make a connection of its own to it.
    """
    parts = parts_in_use()
    with ThreadPoolExecutor(len(parts) + 2) as pool:
        asked_database, asked_broker = pool.submit(ask_database), pool.submit(ask_broker)
        asked = [pool.submit(part.ask) for part in parts]
        beats = _fresh(_queue_keys().values())
        (database, incidents, silent_seconds), broker = asked_database.result(), asked_broker.result()
    is_blind = bool(broker)  # each question to Redis would take its time-out
    return Reached(
        database=database,
        broker=broker,
        queues=list(_queues(beats)),
        silent_seconds=silent_seconds,
        parts={part: part.reach(own.result(), is_blind=is_blind) for part, own in zip(parts, asked, strict=True)},
        incidents=incidents,
    )


# Seconds for which the answers of the servers are kept. The dashboard, the API, `/metrics` and `/readyz`, which is open
# to anybody, may be asked more often.
KEPT_SECONDS = 1.0
RECENT = Recent(ask, lambda: KEPT_SECONDS)


# PostgreSQL and Redis -------------------------------------------------------------------------------------------------
def ask_database() -> tuple[str, Incidents, SilentSeconds]:
    """Return why PostgreSQL is of no use, or nothing when it answers and all migrations are applied; since when
    indicators are bad, as far as it is noted; and for how long each process of `batches` has asked it nothing.
    """
    if _is_marked_unready():
        return "PostgreSQL is not ready", {}, None
    try:
        with closing(_connect()) as own:
            refuse_too_old(own.info.server_version)
            missing = len(_known_migrations() - _applied_migrations(own))
            incidents = {} if missing else dict(own.execute(INCIDENTS).fetchall())
            silent_seconds = [seconds for (seconds,) in own.execute(SILENT_SECONDS)]
    except TooOldError as error:
        return str(error), {}, None
    except psycopg.Error:
        return "PostgreSQL does not answer", {}, None
    return (f"migrations not applied: {missing}" if missing else ""), incidents, silent_seconds


def _is_marked_unready() -> bool:
    """Return whether the embedded PostgreSQL says in its own file that it takes no connections.

    It starts beside the web server, which answers probes meanwhile. A database of the operator's is always asked.
    """
    is_embedded = settings.EMBEDDED.get("DATABASE_URL") == settings.DATABASE_URL
    return is_embedded and not is_marked_ready(settings.EMBEDDED_POSTGRES_DIR)


def _connect() -> psycopg.Connection[Any]:
    """Open a connection: an open one would hide that no new one can be made, and may hang."""
    parameters = connection.get_connection_params() | {"connect_timeout": TIMEOUT_SECONDS}
    own = TimedConnection.connect(**parameters)
    own.timeout_seconds = 2 * TIMEOUT_SECONDS  # the server may freeze before it hears of its own timeout
    own.execute(f"SET LOCAL statement_timeout = '{TIMEOUT_SECONDS}s'")
    return own


def _applied_migrations(own: psycopg.Connection[Any]) -> frozenset[Migration]:
    """Return what is applied. A query of a table that is not there yet would leave an error in PostgreSQL's log at each
    first start.
    """
    if own.execute("SELECT to_regclass('django_migrations')").fetchone() == (None,):
        return frozenset()
    return frozenset(own.execute("SELECT app, name FROM django_migrations").fetchall())


@cache
def _known_migrations() -> frozenset[Migration]:
    """Return the migrations of the code. They are read once, as they change only with a restart.

    Django's loader finds no migrations that depend on those of the console where that is not installed: in workers,
    which ask for the indicators, too.
    """
    return frozenset(known_migrations())


def ask_broker() -> str:
    """Return why Redis is of no use, or nothing when it answers."""
    options = {"socket_timeout": TIMEOUT_SECONDS, "socket_connect_timeout": TIMEOUT_SECONDS}
    try:
        with closing(redis.Redis.from_url(settings.REDIS_URL, **options)) as client:
            client.ping()
    except redis.RedisError:
        return "Redis does not answer"
    return ""


def _fresh(keys: Collection[str]) -> set[str]:
    """Return those of these keys that were written within their time to live."""
    try:
        return set(shared_cache.get_many(keys))
    except redis.RedisError:
        return set()  # the indicator of Redis says why


# Workers --------------------------------------------------------------------------------------------------------------
def _queue_keys() -> dict[str, str]:
    return {queue: HEARTBEAT_KEY.format(queue=queue) for queue in QUEUES}


def _queues(beats: Collection[str]) -> Iterator[Queue]:
    """Yield the queues that need a worker, or whose work is wanted by the settings. The processes of `batches` show
    themselves.
    """
    is_wanted = {"reports": settings.REPORTS_NIGHTLY, "canary": bool(settings.CANARY_PERIOD_SECONDS)}
    for queue, key in _queue_keys().items():
        if queue != BATCHES and (queue in NEEDED_QUEUES or is_wanted.get(queue, True)):
            yield Queue(queue, key in beats, is_needed=queue in NEEDED_QUEUES)
