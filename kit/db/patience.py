"""How long statements of one kind may take, and how long they wait for a lock.

A process has the patience of what it mostly does (`settings.DATABASE_PATIENCE`). What takes longer, or must not make
others wait, says so around its statements.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings
from django.db import connection

from kit.db.postgresql.base import PatientConnection
from kit.db.statements import write
from kit.patience import Patience, milliseconds

REPORTS = Patience(statement_seconds=4 * 3600, lock_seconds=10)
# Retention waits for nobody: what is locked is removed the next time.
RETENTION = Patience(statement_seconds=60, lock_seconds=1)
# A migration that waits for a lock has everybody else wait behind it.
MIGRATIONS = Patience(statement_seconds=0, lock_seconds=10)


@contextmanager
def patience(wanted: Patience) -> Iterator[None]:
    """Have the statements of this thread's connection take as long as that, and no longer."""
    set_patience(wanted)
    try:
        yield
    finally:
        if connection.connection is not None and not connection.connection.closed:
            write("SELECT set_config(name, reset_val, false) FROM pg_settings WHERE name = ANY (%s)", [_NAMES])
            _own().patience_seconds = settings.DATABASE_PATIENCE.answer_seconds


_NAMES = ["statement_timeout", "lock_timeout"]


def set_patience(wanted: Patience) -> None:
    """Set the patience of this thread's connection for as long as it is open."""
    sql = "SELECT set_config('statement_timeout', %s, false), set_config('lock_timeout', %s, false)"
    write(sql, [milliseconds(wanted.statement_seconds), milliseconds(wanted.lock_seconds)])
    _own().patience_seconds = wanted.answer_seconds


def _own() -> PatientConnection:
    assert isinstance(connection.connection, PatientConnection)  # noqa: S101 - of our backend
    return connection.connection
