"""Batch worker and bridge as the database sees them: sessions by which they show that they live."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from kit.buckets import share
from tests.delivering import other_session
from waku_bridge.messages import LEADER


@contextmanager
def a_batch_worker() -> Iterator[psycopg.Connection]:
    """Show one live worker. It sends no further statement, so it counts as hanging after `server.HANGS_SECONDS`."""
    with other_session() as worker:
        worker.autocommit = True
        worker.execute(share._SHOW)
        yield worker


@contextmanager
def a_bridge() -> Iterator[psycopg.Connection]:
    """Show one bridge. It sends no further statement, so it counts as stopped after `indicators.BRIDGE_RED`."""
    with other_session() as bridge:
        bridge.autocommit = True
        bridge.execute(f"SET application_name = '{LEADER} host.test 4711'")
        yield bridge
