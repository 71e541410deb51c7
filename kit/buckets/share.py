"""The part that a worker takes of a limit of the whole server: one over the number of workers that live.

A worker shows itself by an advisory lock that it holds in shared mode: PostgreSQL releases the lock when the session
ends, however the process ended. Nothing is written, and a count is one look at `pg_locks`.
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
# For how many seconds each worker that lives has asked the database nothing. One that works asks once a second. Where
# PostgreSQL does not track activities nothing speaks against a worker that lives.
SILENT_SECONDS: LiteralString = f"""
    SELECT coalesce(extract(epoch FROM clock_timestamp() - greatest(query_start, state_change)), 0)::float
    FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE {_SHOWN}
"""


class Share:
    """The share of this process. A process that learns nothing keeps the last one; the first is the whole limit."""

    def __init__(self) -> None:
        self.part = 1.0  # of one

    def show(self) -> None:
        """Show that this worker lives, for as long as its session does, and count all that do."""
        fetch(_SHOW)
        self.count()

    def count(self) -> None:
        """Count the workers that live."""
        [(workers,)] = fetch(_COUNT)
        self.part = 1 / max(1, workers)


@once
def own_share() -> Share:
    """Return the share of this process."""
    return Share()
