"""Timeouts of statements and locks for special work, set around its statements.

A process starts with the timeouts of its usual work (`settings.DATABASE_TIMEOUTS`). Work that takes longer, or that
must not make other sessions wait, sets its own.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings
from django.db import connection

from kit.db.postgresql.base import TimedConnection
from kit.db.postgresql.timeouts import Timeouts
from kit.db.statements import write

# Exports hold a snapshot while others copy rows, and write to a lake that may be slow.
REPORTS = Timeouts(statement_seconds=4 * 3600, lock_seconds=10, idle_seconds=0)
# Retention hardly waits for locks: a locked row is removed the next time.
RETENTION = Timeouts(statement_seconds=60, lock_seconds=1)
# While a migration waits for a lock, all other sessions wait behind it.
MIGRATIONS = Timeouts(statement_seconds=0, lock_seconds=10, idle_seconds=0)


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
