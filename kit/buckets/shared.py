"""Token buckets that all processes share, in a table that outlives them.

    this process's memory                                        the table, one row for each bucket in use
    what it knows of each bucket, and decides by  ──spending──▶  all spending of all processes
                                                  ◀──full at───

A batch decides by what its process knows: no statement, no lock. After its commit, one statement of its own adds what
the batch spent to the table, and returns what all processes have spent. So a process may exceed a limit by one batch;
then it knows of the excess, which has to come back before anything else is let through. No row is locked for longer
than that statement, so a process that hangs or dies holds up nobody.

A bucket gets its row when a process spends more than its silent share: a fifth of the limit, divided by the live
workers. Until then nobody can have exceeded the limit, and spending writes no row: it waits up to a second for the
charge of a later batch, as a statement for each batch of one message would be a twentieth of what that costs.

Each live worker holds an advisory lock in shared mode. PostgreSQL releases the lock when the session ends, also after
SIGKILL. So no row is written, and the number of workers is one query of `pg_locks`.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from datetime import datetime, timedelta
from math import inf
from time import monotonic
from typing import LiteralString

import structlog
from django.db import Error

from kit.buckets import bucket
from kit.buckets.bucket import CAPACITY, BucketLimits, Buckets, Charge, part
from kit.buckets.models import SharedBucket
from kit.db.base import fetch, table
from kit.db.reasons import reason
from kit.processes import once
from kit.processes.leader import LIVE_WORKERS

log = structlog.get_logger(__name__)
Bucket = tuple[bytes, BucketLimits]  # its key and its limits

SILENT_PART = 1 / 5
CHARGED_EVERY_SECONDS = 1.0
MAX_FORGOTTEN = 50_000
# A clock that is further behind than this was set back.
CLOCKS_DIFFER_SECONDS = 1.0
COUNTED_EVERY_SECONDS = 5.0
# A process exceeds a limit by less than the whole of it. A row with more was written while the clock was ahead.
MAX_EXCEEDED = 16

_TABLE: LiteralString = table(SharedBucket)
# The rows are locked in the order of their keys, so that two processes never wait for each other.
_CHARGE: LiteralString = f"""
    INSERT INTO {_TABLE} AS bucket (key, burst_full_at, long_full_at)
    SELECT key, %(now)s + burst, %(now)s + long
    FROM unnest(%(keys)b::bytea[], %(bursts)b::float8[], %(longs)b::float8[], %(loud)b::boolean[])
        AS spent (key, burst, long, is_loud)
    WHERE is_loud OR EXISTS (SELECT FROM {_TABLE} AS charged WHERE charged.key = spent.key)
    ORDER BY key
    ON CONFLICT (key) DO UPDATE SET
        burst_full_at = greatest(bucket.burst_full_at, %(now)s) + excluded.burst_full_at - %(now)s,
        long_full_at = greatest(bucket.long_full_at, %(now)s) + excluded.long_full_at - %(now)s
    RETURNING key, burst_full_at, long_full_at
"""
_FORGET: LiteralString = f"""
    DELETE FROM {_TABLE} WHERE key = ANY (ARRAY(
        SELECT key FROM {_TABLE} WHERE burst_full_at < %(until)s AND long_full_at < %(until)s
        LIMIT {MAX_FORGOTTEN} FOR UPDATE SKIP LOCKED
    )) RETURNING key
"""

_SHOW: LiteralString = f"SELECT pg_advisory_lock_shared({LIVE_WORKERS}::bigint)"
SHOWN: LiteralString = f"""
    locktype = 'advisory' AND classid = 0 AND objid = {LIVE_WORKERS} AND objsubid = 1
    AND mode = 'ShareLock' AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_COUNT: LiteralString = f"SELECT count(*) FROM pg_locks WHERE {SHOWN}"


class Share:
    """The share of this process in a limit of the server: one divided by the last count of live workers."""

    def __init__(self) -> None:
        self.part = 1.0  # before the first count

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


class SharedBuckets:
    """The buckets of the whole server, as this process knows them. Only one thread may use them at a time."""

    def __init__(self, share: Share | None = None, capacity: int = CAPACITY) -> None:
        self._share = share or own_share()
        self._known = Buckets(capacity, _is_root)
        self._silent = Buckets(capacity, _is_root)
        self._spent, self._uncharged = Counter[bytes](), Counter[bytes]()  # by this batch, and by earlier ones
        self._limits = dict[bytes, BucketLimits]()  # of the keys that were spent from
        self._loud = set[bytes]()  # those that were spent from beyond the silent share
        self._now, self._began, self._behind, self._charged = -inf, 0.0, 0.0, -inf
        self._is_table_ahead = False

    def take(self, wanted: Sequence[Bucket], *, now: datetime) -> bool:
        """Take a token from each bucket, or from none if one is empty. Return whether it took them.

        A bucket has one limit, or one for bursts and one for the long run. A key that gets no bucket (see `Buckets`)
        is charged to the others only.
        """
        at = self._time(now)
        if not self._known.take(*wanted, now=at):
            return False
        self._note(wanted)
        return True

    def find_empty(self, wanted: Sequence[Bucket], *, now: datetime) -> tuple[bytes, int]:
        """Return the key of the first of these buckets that is empty, and the index of its limit that is reached.

        Call it after `take` took nothing.
        """
        at = self._time(now)
        empty = (
            (key, index)
            for key, limits in wanted
            for index, (gone, limit) in enumerate(zip(self._known.missing(key, now=at), limits, strict=False))
            if not bucket.has((gone,), (limit,), now=0.0)
        )
        return next(empty, (wanted[0][0], 0))

    def book(self, wanted: Sequence[Bucket], *, now: datetime) -> datetime:
        """Take the next token of the first bucket in advance. Return when all buckets will have one."""
        at = self._time(now)
        known = [(self._known.missing(key, now=at), limits) for key, limits in wanted]
        seconds = max([0.0, *(bucket.next_at(missing, limits) for missing, limits in known if missing)])
        self._known.spend(Charge(*wanted[0]), now=at)
        self._note(wanted[:1])
        return now + timedelta(seconds=seconds)

    def keep(self) -> None:
        """Make the spending of a batch final, and charge it. Call it after the commit, and outside of a transaction.

        After an error of the database, the spending is left to the next charge, and so is what is within the silent
        share for a second.
        """
        for key, count in self._spent.items():
            silent = part(self._limits[key], SILENT_PART * self._share.part)
            if not self._silent.take((key, silent), count=count, now=self._now + self._behind):
                self._loud.add(key)
        self._uncharged.update(self._spent)
        self._spent.clear()
        try:
            if self._loud or (self._uncharged and monotonic() - self._charged >= CHARGED_EVERY_SECONDS):
                self._charge()
        except Error as error:
            log.warning("limits_not_charged", reason=reason(error))
        self._known.keep()
        self._silent.keep()

    def take_back(self) -> None:
        """Undo the spending of a batch that was rolled back."""
        self._spent.clear()
        self._known.take_back()

    def _time(self, now: datetime) -> float:
        """Return the time of the buckets in memory, which goes on when the clock of the database is set back."""
        seconds = now.timestamp()
        if seconds != self._now:
            if seconds < self._now - CLOCKS_DIFFER_SECONDS:
                self._behind += self._now + monotonic() - self._began - seconds
                self._is_table_ahead = True
            self._now, self._began = seconds, monotonic()
        return seconds + self._behind

    def _note(self, spent: Sequence[Bucket]) -> None:
        self._limits.update(spent)
        self._spent.update([key for key, _ in spent])

    def _charge(self) -> None:
        """Charge what is not charged yet, and learn what all processes have spent."""
        if self._is_table_ahead:
            fetch(_FORGET, {"until": inf})
            self._is_table_ahead = False
        passed = monotonic() - self._began
        costs = {key: cost for key, count in self._uncharged.items() if (cost := self._cost(key, count, passed))}
        columns = {
            "now": self._now + passed,
            "keys": list(costs),
            "bursts": [cost[0] for cost in costs.values()],
            "longs": [cost[-1] for cost in costs.values()],
            "loud": [key in self._loud for key in costs],
        }
        for key, *full_at in fetch(_CHARGE, columns):
            self._learn(key, full_at)
        self._uncharged.clear()
        self._limits.clear()
        self._loud.clear()
        self._charged = monotonic()

    def _cost(self, key: bytes, count: int, passed: float) -> list[float]:
        """Return for each limit the seconds in which the tokens come back, or nothing for a key without a bucket.

        Some may have come back in the seconds that ``passed``, if this process hung or could not reach the database.
        """
        missing = self._known.missing(key, now=self._now + self._behind)
        pairs = zip(self._limits[key], missing, strict=False)
        return [min(count * seconds / tokens, max(gone - passed, 0.0)) for (tokens, seconds), gone in pairs]

    def _learn(self, key: bytes, full_at: Sequence[float]) -> None:
        """Note when a bucket is full by the table, unless this process knows of more spending."""
        at, limits = self._now + self._behind, self._limits[key]
        charged = [each - self._now for each in full_at[: len(limits)]]
        if any(each > MAX_EXCEEDED * limit.seconds for each, limit in zip(charged, limits, strict=True)):
            self._is_table_ahead = True
        else:
            self._known.put(key, list(map(max, charged, self._known.missing(key, now=at))), now=at)


def _is_root(key: Hashable) -> bool:
    """Return whether a key belongs to a bucket for all senders. Those keys have one byte."""
    return isinstance(key, bytes) and len(key) == 1


@once
def own_buckets() -> SharedBuckets:
    """Return this process's view of the shared buckets."""
    return SharedBuckets()


def forget_full(*, now: datetime) -> int:
    """Delete the rows of full buckets, at most `MAX_FORGOTTEN`, and skip locked ones. Return how many were deleted."""
    return len(fetch(_FORGET, {"until": now.timestamp()}))
