"""The share of a worker in a limit of the whole server: one divided by the number of live workers.

Each live worker holds an advisory lock in shared mode. PostgreSQL releases the lock when the session ends, also after
SIGKILL. So no row is written, and the count is one query of `pg_locks`.
"""

from typing import LiteralString

from kit.db.statements import fetch
from kit.processes.leader import LIVE_WORKERS
from kit.processes.once import once

COUNTED_EVERY_SECONDS = 5.0

_SHOW: LiteralString = f"SELECT pg_advisory_lock_shared({LIVE_WORKERS}::bigint)"
_SHOWN: LiteralString = f"""
    locktype = 'advisory' AND classid = 0 AND objid = {LIVE_WORKERS} AND objsubid = 1
    AND mode = 'ShareLock' AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_COUNT: LiteralString = f"SELECT count(*) FROM pg_locks WHERE {_SHOWN}"
# Seconds since the last statement of each live worker. A worker that does not hang sends one every second. Without
# `track_activities` in PostgreSQL the time is unknown, and counts as 0.
SILENT_SECONDS: LiteralString = f"""
    SELECT coalesce(extract(epoch FROM clock_timestamp() - greatest(query_start, state_change)), 0)::float
    FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE {_SHOWN}
"""


class Share:
    """The share of this process, as of the last count. Before the first count it is the whole limit."""

    def __init__(self) -> None:
        self.part = 1.0

    def show(self) -> None:
        """Register this worker as live until its session ends, and count the live workers."""
        fetch(_SHOW)
        self.count()

    def count(self) -> None:
        """Count the live workers."""
        [(workers,)] = fetch(_COUNT)
        self.part = 1 / max(1, workers)


@once
def own_share() -> Share:
    """Return the share of this process."""
    return Share()
