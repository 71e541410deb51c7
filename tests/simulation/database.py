"""PostgreSQL of the simulation: real schema, real locks, and a clock that the simulation sets.

Connections go from one simulated process to the next, after the state of the former is rolled back. A real server
notices the death of a client some time later, and a seed must not depend on when.
"""

from collections.abc import Callable
from typing import Any

import psycopg
from django.db import connections
from django.db.backends.postgresql.psycopg_any import get_adapters_template

from kit.db.base import DatabaseWrapper, TimedConnection

# The simulation's clock comes before PostgreSQL's own in the search path. Waiting for a lock fails after 30 ms, as its
# holder can only go on after the waiting statement has ended.
PREPARE = """
    CREATE SCHEMA IF NOT EXISTS simulation;
    CREATE OR REPLACE FUNCTION simulation.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
        $$ SELECT current_setting('simulation.now')::timestamptz $$;
"""
OPTIONS = (
    "-c search_path=simulation,pg_catalog,public -c lock_timeout=30ms -c simulation.now=2026-03-01 -c timezone=UTC"
)
TAKE_BACK = "UNLISTEN *; RESET ALL; SELECT pg_advisory_unlock_all()"
EMPTY = """
    DO $$
    DECLARE name text; filled boolean; names text[] := '{}';
    BEGIN
        FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1 LOOP
            EXECUTE format('SELECT EXISTS (SELECT FROM public.%I)', name) INTO filled;
            IF filled AND to_regclass(format('tests.%I', name)) IS NULL THEN
                names := names || quote_ident(name);
            END IF;
        END LOOP;
        IF names <> '{}' THEN
            EXECUTE 'TRUNCATE ' || array_to_string(names, ', ') || ' RESTART IDENTITY CASCADE';
        END IF;
    END $$
"""


class Pool:
    """Connections of all simulated processes."""

    def __init__(self) -> None:
        self._free: list[TimedConnection] = []
        self.settings = connections["default"].settings_dict
        self.parameters = connections["default"].get_connection_params() | {
            "options": OPTIONS,
            "context": get_adapters_template(use_tz=True, timezone=None),
        }
        self.parameters.pop("cursor_factory", None)

    def take(self) -> "TimedConnection":
        if self._free:
            return self._free.pop()
        return TimedConnection.connect(**self.parameters, autocommit=True)

    def give_back(self, raw: "TimedConnection") -> None:
        raw.leave_pipeline()
        raw.rollback()
        raw.autocommit = True
        raw._notify_handlers.clear()
        execute_quietly(raw, TAKE_BACK)
        self._free.append(raw)

    def close(self) -> None:
        for raw in self._free:
            raw.close()


class Wrapper(DatabaseWrapper):
    """Django's connection of one simulated process, taken from the pool."""

    def __init__(self, pool: Pool, seed: Callable[[], float]) -> None:
        super().__init__(pool.settings, "default")
        self._pool = pool
        self._seed = seed

    def get_new_connection(self, _conn_params: dict[str, Any]) -> "TimedConnection":
        self._unsent = []
        raw = self._pool.take()
        raw.cursor_factory = psycopg.ClientCursor
        raw.prepare_threshold = 5
        # statements call random() when they release many rows
        execute_quietly(raw, f"SELECT setseed({self._seed():.6f})")
        return raw

    def ensure_timezone(self) -> bool:
        return False

    def _close(self) -> None:
        self._unsent = []
        if self.connection is not None:
            self._pool.give_back(self.connection)


def execute_quietly(raw: "TimedConnection", sql: str) -> None:
    """Run a statement of the simulation itself, at which no process can be killed."""
    raw.pgconn.exec_(sql.encode())


class Asynchronous:
    """Connection with the asynchronous interface that a bridge uses. Nothing on it waits."""

    def __init__(self, raw: "TimedConnection", pool: Pool, pass_by: Callable[[], None]) -> None:
        self._raw: TimedConnection | None = raw
        self._pool = pool
        self._pass_by = pass_by
        raw.cursor_factory = psycopg.Cursor

    def add_notify_handler(self, handler: Callable[[psycopg.Notify], None]) -> None:
        assert self._raw is not None
        self._raw.add_notify_handler(handler)

    async def execute(self, sql: bytes, values: Any = None, **options: Any) -> "Rows":
        if self._raw is None:
            raise psycopg.OperationalError("the connection is closed")
        rows = Rows(self._raw.execute(sql, values, **options))
        self._pass_by()  # the statement is done, though the process may die before it has the result
        return rows

    async def close(self) -> None:
        self.give_back()

    def give_back(self) -> None:
        """Return the connection to the pool, at the first call."""
        raw, self._raw = self._raw, None
        if raw is not None:
            self._pool.give_back(raw)


class Rows:
    """Result of a statement."""

    def __init__(self, cursor: "psycopg.Cursor[Any]") -> None:
        self._cursor = cursor
        self.description = cursor.description

    async def fetchall(self) -> list[Any]:
        return self._cursor.fetchall()
