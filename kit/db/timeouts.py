"""Timeouts of statements and locks for special work, set around its statements.

A process starts with the timeouts of its usual work (`settings.DATABASE_TIMEOUTS`). Work that takes longer, or that
must not make other sessions wait, sets its own.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings
from django.db import connection

from kit.db.postgresql.base import TimedConnection
from kit.db.postgresql.timeouts import Timeouts, milliseconds
from kit.db.statements import write

REPORTS = Timeouts(statement_seconds=4 * 3600, lock_seconds=10)
# Retention hardly waits for locks: a locked row is removed the next time.
RETENTION = Timeouts(statement_seconds=60, lock_seconds=1)
# While a migration waits for a lock, all other sessions wait behind it.
MIGRATIONS = Timeouts(statement_seconds=0, lock_seconds=10)


@contextmanager
def timeouts(wanted: Timeouts) -> Iterator[None]:
    """Set the timeouts of this thread's connection for the duration of a block."""
    set_timeouts(wanted)
    try:
        yield
    finally:
        if connection.connection is not None and not connection.connection.closed:
            write("SELECT set_config(name, reset_val, false) FROM pg_settings WHERE name = ANY (%s)", [_NAMES])
            _own().timeout_seconds = settings.DATABASE_TIMEOUTS.answer_seconds


_NAMES = ["statement_timeout", "lock_timeout"]


def set_timeouts(wanted: Timeouts) -> None:
    """Set the timeouts of this thread's connection for as long as it is open."""
    sql = "SELECT set_config('statement_timeout', %s, false), set_config('lock_timeout', %s, false)"
    write(sql, [milliseconds(wanted.statement_seconds), milliseconds(wanted.lock_seconds)])
    _own().timeout_seconds = wanted.answer_seconds


def _own() -> TimedConnection:
    assert isinstance(connection.connection, TimedConnection)  # noqa: S101 - of our backend
    return connection.connection
