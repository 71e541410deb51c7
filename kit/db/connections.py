"""Connections to the database: their parameters, and timeouts for special work, set around its statements.

A process starts with the timeouts of its usual work (`settings.DATABASE_TIMEOUTS`). Work that takes longer, or that
must not make other sessions wait, sets its own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connection

from kit.db.base import TimedConnection
from kit.db.sessions import Timeouts
from kit.db.statements import write

# Exports hold a snapshot while others copy rows, and write to a lake that may be slow.
REPORTS = Timeouts(statement_seconds=4 * 3600, lock_seconds=10, idle_seconds=0)
# While a migration waits for a lock, all other sessions wait behind it.
MIGRATIONS = Timeouts(statement_seconds=0, lock_seconds=10, idle_seconds=0)


def connection_parameters() -> dict[str, Any]:
    """Return the connection parameters of the configured database, without those for Django's synchronous cursors."""
    parameters: dict[str, Any] = connection.get_connection_params()
    return {name: value for name, value in parameters.items() if name not in {"cursor_factory", "context"}}


def is_marked_ready(data_dir: Path) -> bool:
    """Return whether the `postmaster.pid` of a local PostgreSQL says that it accepts connections.

    Read it before a connection to a server that may be starting, because PostgreSQL logs an error for each connection
    that comes too early. A server that was killed leaves the file behind.
    """
    try:
        lines = (data_dir / "postmaster.pid").read_bytes().splitlines()
    except FileNotFoundError:
        return False
    return lines[-1:] == [b"ready   "]


@contextmanager
def timeouts(wanted: Timeouts) -> Iterator[None]:
    """Set the timeouts of this thread's connection for the duration of a block."""
    set_timeouts(wanted)
    try:
        yield
    finally:
        if connection.connection is not None and not connection.connection.closed:
            names = list(wanted.settings)
            write("SELECT set_config(name, reset_val, false) FROM pg_settings WHERE name = ANY (%s)", [names])
            _own().timeout_seconds = settings.DATABASE_TIMEOUTS.answer_seconds


def set_timeouts(wanted: Timeouts) -> None:
    """Set the timeouts of this thread's connection for as long as it is open."""
    names, values = list(wanted.settings), list(wanted.settings.values())
    write(
        "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS _ (name, value)", [names, values]
    )
    _own().timeout_seconds = wanted.answer_seconds


def _own() -> TimedConnection:
    assert isinstance(connection.connection, TimedConnection)  # noqa: S101 - of our backend
    return connection.connection
