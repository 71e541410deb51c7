"""Recorder of the SQL statements that the server sends to PostgreSQL, by Django's cursors or by those of the message
path.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.db import connection

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
