"""Batch worker as the database sees it: a session that holds the lock by which workers show that they live."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from django.db import connection

from kit.buckets import share


@contextmanager
def a_batch_worker() -> Iterator[psycopg.Connection]:
    """Show one live worker. It sends no further statement, so it counts as hanging after `server.HANGS_SECONDS`."""
    parameters = connection.get_connection_params() | {"cursor_factory": None}
    with psycopg.connect(**parameters, autocommit=True) as worker:
        worker.execute(share._SHOW)
        yield worker
