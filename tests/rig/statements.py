"""Sessions of PostgreSQL, statements that Django's cursors and those of the message path send, and their plans."""

import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any, TypeVar

import psycopg
import pytest
from django.db import connection

from kit.buckets import shared
from kit.db.base import fetch
from waku_bridge.messages import LEADER

T = TypeVar("T")

# Limited to this database, as sessions of other test processes on this server wait for locks, too.
WAITS_HERE = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@contextmanager
def before_each_statement(function: Callable[[str], object]) -> Iterator[None]:
    """Call ``function`` with every statement just before any thread of this process sends it."""
    execute = psycopg.Cursor.execute

    def noted(cursor: Any, query: Any, *args: Any, **options: Any) -> Any:
        function(str(query))
        return execute(cursor, query, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psycopg.Cursor, "execute", noted)
        yield


@contextmanager
def statements() -> Iterator[list[str]]:
    """Record the statements that the block sends, including buffered ones, which are flushed at both ends."""
    sent: list[str] = []
    connection._send()
    with before_each_statement(sent.append):
        yield sent
        connection._send()


@contextmanager
def round_trips() -> Iterator[list[bytes]]:
    """Record the round trips of Django's connection during the block, by libpq's own trace. The list is filled at the
    end.
    """
    made: list[bytes] = []
    connection.ensure_connection()
    pgconn = connection.connection.pgconn
    with tempfile.TemporaryFile() as record:
        pgconn.trace(record.fileno())
        yield made
        pgconn.untrace()
        record.seek(0)
        made += [line for line in record if b"\tReadyForQuery\t" in line]


def other_session() -> psycopg.Connection[Any]:
    """Open another connection to the same database, to hold locks as another process would."""
    return psycopg.connect(**connection.get_connection_params() | {"cursor_factory": None})


@contextmanager
def read_only() -> Iterator[None]:
    """Let new sessions only read, like those of a standby."""
    with closing(other_session()) as other:
        other.autocommit = True
        name = psycopg.sql.Identifier(other.info.dbname)
        other.execute(psycopg.sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(name))
        connection.close()
        try:
            yield
        finally:
            other.execute(psycopg.sql.SQL("ALTER DATABASE {} RESET default_transaction_read_only").format(name))
            connection.close()


@contextmanager
def a_batch_worker() -> Iterator[psycopg.Connection]:
    """Show one live worker. It sends no further statement, so it counts as hanging after `server.HANGS_SECONDS`."""
    with other_session() as worker:
        worker.autocommit = True
        worker.execute(shared._SHOW)
        yield worker


@contextmanager
def a_bridge() -> Iterator[psycopg.Connection]:
    """Show one bridge. It sends no further statement, so it counts as stopped after `indicators.BRIDGE_RED`."""
    with other_session() as bridge:
        bridge.autocommit = True
        bridge.execute(f"SET application_name = '{LEADER} host.test 4711'")
        yield bridge


def at_once(*works: Callable[[], T]) -> list[T]:
    """Run functions at the same time, close their connections, and return their results."""
    start = threading.Barrier(len(works), timeout=10)

    def run(work: Callable[[], T]) -> T:
        start.wait()
        try:
            return work()
        finally:
            connection.close()

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(run, works))


def beside(work: Callable[[], T]) -> Future[T]:
    """Begin a function in a thread, and return its future once one of this database's sessions waits for a lock."""

    def run() -> T:
        try:
            return work()
        finally:
            connection.close()

    pool = ThreadPoolExecutor(1)
    future = pool.submit(run)
    pool.shutdown(wait=False)
    with closing(other_session()) as watcher:
        watcher.autocommit = True
        for _ in range(500):
            if watcher.execute(WAITS_HERE).fetchall():
                return future
            watcher.execute("SELECT pg_sleep(0.02)")
    raise AssertionError("nobody waits")


def index_of(partition: str, index: str) -> str:
    """Return the name that an index of a partitioned table has in one of its partitions."""
    sql = """
        SELECT relname FROM pg_inherits JOIN pg_index ON indexrelid = inhrelid JOIN pg_class ON pg_class.oid = inhrelid
        WHERE inhparent = %s::regclass AND indrelid = %s::regclass
    """
    [(name,)] = fetch(sql, [index, partition])
    return str(name)


_PARAMETER = re.compile(r"%(?:[(]([a-z_0-9]+)[)])?[bs]")
# Types of parameters that PostgreSQL cannot infer from the expressions they are compared with.
_TYPES = {
    **dict.fromkeys(
        ("now", "late", "later", "noted_since", "nothing_before", "first", "last", "before"), "timestamptz"
    ),
    **dict.fromkeys(("since", "today"), "date"),
    "retry_after": "interval",
    "max_bytes": "bigint",
}


def generic_plan(sql: str) -> str:
    """Return the generic plan of a statement, which serves all values of its parameters."""
    numbers: dict[str, int] = {}

    def numbered(match: re.Match[str]) -> str:
        name = match[1] or str(len(numbers))
        parameter = f"${numbers.setdefault(name, len(numbers) + 1)}"
        return f"{parameter}::{_TYPES[name]}" if name in _TYPES else parameter

    with connection.cursor() as cursor:
        cursor.execute(f"PREPARE planned AS {_PARAMETER.sub(numbered, sql)}")
        cursor.execute("SET plan_cache_mode = force_generic_plan")
        values = ", ".join("now()" if _TYPES.get(name) in ("timestamptz", "date") else "NULL" for name in numbers)
        cursor.execute(f"EXPLAIN EXECUTE planned{f' ({values})' if values else ''}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
        cursor.execute("DEALLOCATE planned")
        cursor.execute("RESET plan_cache_mode")
    return plan


REFUSE = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        RAISE EXCEPTION 'index row size exceeds maximum' USING ERRCODE = '54000';
    END $$;
    CREATE TRIGGER refuse BEFORE {event} ON {table} FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION refuse()
"""


def refuse(table: str, event: str, condition: str) -> None:
    """Let the database refuse this event of these rows, until the end of the test's transaction."""
    with connection.cursor() as cursor:
        cursor.execute(REFUSE.format(table=table, event=event, condition=condition))
