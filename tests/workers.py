"""Batch worker as the database sees it: a session that holds the lock by which workers show that they live."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from kit.buckets import share
from tests.delivering import other_session


@contextmanager
def a_batch_worker() -> Iterator[psycopg.Connection]:
    """Show one live worker. It sends no further statement, so it counts as hanging after `server.HANGS_SECONDS`."""
    with other_session() as worker:
        worker.autocommit = True
        worker.execute(share._SHOW)
        yield worker
