"""Token buckets that all processes share, in a table that outlives them.

    this process's memory                                   the table, one row per bucket
    its share of a fifth of each limit, spent silently ──▶  the rest: rows locked, spent and written by the batch

Spending within the silent share costs no statement, and covers the usual traffic. Beyond it, the batch locks the rows
of all buckets that it needs. It charges them with the tokens that were spent silently and have not come back since, and
then decides. It does not wait for a row that another process has locked: it may spend up to twice its silent share, and
after that the bucket counts as empty. So all workers together exceed a limit by at most a fifth, or by one token per
worker where that is more. A flood makes no worker wait for another one.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime

from django.db import transaction

from kit.buckets import bucket
from kit.buckets.bucket import CAPACITY, BucketLimits, Buckets, Charge, FullAt, part
from kit.buckets.models import SharedBucket
from kit.buckets.share import Share, own_share
from kit.db.statements import fetch, write
from kit.processes.once import once

Wanted = Mapping[bytes, BucketLimits]

SILENT_PART = 1 / 5
MAX_FORGOTTEN = 50_000
# Seconds until a bucket whose row another process has locked is assumed to have a token.
A_MOMENT_SECONDS = 1.0
# Tokens of at most this many seconds may be spent in advance.
MAX_IN_ADVANCE_SECONDS = 600.0

_LOCK = """
    SELECT key, burst_full_at, long_full_at FROM buckets_sharedbucket
    WHERE key = ANY (%(keys)b::bytea[]) ORDER BY key FOR UPDATE SKIP LOCKED
"""
_ADD = """
    INSERT INTO buckets_sharedbucket (key, burst_full_at, long_full_at)
    SELECT key, %(now)s::float8, %(now)s::float8 FROM unnest(%(keys)b::bytea[]) AS wanted (key) ORDER BY key
    ON CONFLICT (key) DO NOTHING RETURNING key
"""
_WRITE = """
    UPDATE buckets_sharedbucket AS bucket SET burst_full_at = spent.burst_full_at, long_full_at = spent.long_full_at
    FROM unnest(%(keys)b::bytea[], %(bursts)b::float8[], %(longs)b::float8[])
        AS spent (key, burst_full_at, long_full_at)
    WHERE bucket.key = spent.key
"""


class SharedBuckets:
    """The buckets of the whole server, from the view of one process.

    In its memory are the tokens left of its silent share, and the spent ones that no row was charged with yet.
    """

    def __init__(self, share: Share | None = None, capacity: int = CAPACITY) -> None:
        self._share = share or own_share()
        self._own = Buckets(capacity, _is_root)
        self._uncharged = Buckets(capacity, _is_root)

    def open(self, wanted: Wanted, counts: Mapping[bytes, int], *, at: datetime) -> "Spending":
        """Take ``counts`` tokens from each bucket whose silent share has them, and lock the rows of the others.

        Call it in the batch's transaction. A bucket has one limit, or one for bursts and one for the long run.
        """
        now = at.timestamp()
        scarce = {key: each for key, each in wanted.items() if not self._take(key, each, counts[key], now=now)}
        shared = _lock(scarce, now=now) if scarce else {}
        shared = {key: self._charge(key, scarce[key], full_at, now=now) for key, full_at in shared.items()}
        return Spending(scarce, shared, self, now=now)

    def give_back(self, key: bytes, limits: BucketLimits, count: int, *, at: datetime) -> None:
        """Give back tokens that were taken silently and not needed."""
        for store in (self._own, self._uncharged):
            store.spend(Charge(key, self._limits(limits)), -count, now=at.timestamp())

    def take_more(self, key: bytes, limits: BucketLimits, *, now: float) -> bool:
        """Take a token of twice the silent share, because another process has locked the shared bucket."""
        own = Charge(key, self._limits(limits))
        twice = Charge(key, part(own.limits, 2))
        if not self._own.take(twice, now=now):
            return False
        self._uncharged.spend(own, now=now)
        return True

    def refill(self, key: bytes, limits: BucketLimits, shared: FullAt, *, now: float) -> None:
        """Refill the silent share, or empty it if the shared bucket has fewer tokens than the silent share."""
        own = self._limits(limits)
        is_there = all(
            bucket.left((at,), (each,), now=now) >= silent.tokens
            for at, each, silent in zip(shared, limits, own, strict=True)
        )
        self._own.put(key, [0.0 if is_there else each.seconds for each in own], now=now)

    def keep(self) -> None:
        """Make the spending of the batch final."""
        self._own.keep()
        self._uncharged.keep()

    def take_back(self) -> None:
        """Undo the spending of a batch that was rolled back."""
        self._own.take_back()
        self._uncharged.take_back()

    def _limits(self, limits: BucketLimits) -> BucketLimits:
        """Return the limits of this process's silent share."""
        return part(limits, SILENT_PART * self._share.part)

    def _take(self, key: bytes, limits: BucketLimits, count: int, *, now: float) -> bool:
        """Take ``count`` tokens if the silent share has them, and return whether it took them.

        A key that gets no bucket (see `Buckets`) is charged to its parents only.
        """
        own = Charge(key, self._limits(limits))
        if not self._own.take(own, count=count, now=now):
            return False
        self._uncharged.spend(own, count, now=now)
        return True

    def _charge(self, key: bytes, limits: BucketLimits, shared: FullAt, *, now: float) -> FullAt:
        """Return the shared bucket after charging it with the silently spent tokens that have not come back since."""
        missing = self._uncharged.missing(key, now=now)
        pairs = zip(self._limits(limits), limits, missing, shared, strict=True) if missing else ()
        charged = [max(at, now) + gone / own.token_seconds * all_.token_seconds for own, all_, gone, at in pairs]
        self._uncharged.put(key, [0.0] * len(limits), now=now)
        return tuple(charged) or shared


def _is_root(key: Hashable) -> bool:
    """Return whether a key belongs to a bucket for all senders. Those keys have one byte."""
    return isinstance(key, bytes) and len(key) == 1


class Spending:
    """The spending of one batch from scarce buckets, those beyond their silent share. It is false without any.

    From all other buckets, the batch has taken its tokens already.
    """

    def __init__(self, limits: Wanted, shared: dict[bytes, FullAt], buckets: SharedBuckets, *, now: float) -> None:
        self._limits = limits
        self._shared = shared
        self._buckets = buckets
        self._now = now

    def __bool__(self) -> bool:
        return bool(self._limits)

    def take(self, keys: Sequence[bytes]) -> bool:
        """Take a token from each scarce bucket of ``keys``, up to the first that is empty. Return whether none was."""
        return all(self._take(key) for key in keys if key in self._limits)

    def _take(self, key: bytes) -> bool:
        limits = self._limits[key]
        if key not in self._shared:
            return self._buckets.take_more(key, limits, now=self._now)
        if not bucket.has(self._shared[key], limits, now=self._now):
            return False
        self._shared[key] = bucket.spend(self._shared[key], limits, now=self._now)
        return True

    def book(self, key: bytes, keys: Iterable[bytes]) -> datetime:
        """Take the next token of bucket ``key`` in advance. Return when all of ``keys`` will have a token."""
        next_at = max([self._now, *(self._next_at(each) for each in keys if each in self._limits)])
        if key in self._shared:
            self._shared[key] = bucket.spend(self._shared[key], self._limits[key], now=self._now)
        return datetime.fromtimestamp(next_at, UTC)

    def _next_at(self, key: bytes) -> float:
        if key not in self._shared:
            return self._now + A_MOMENT_SECONDS
        return bucket.next_at(self._shared[key], self._limits[key])

    def write(self) -> None:
        """Store the shared buckets."""
        for key, full_at in self._shared.items():
            self._buckets.refill(key, self._limits[key], full_at, now=self._now)
        if self._shared:
            times = self._shared.values()
            bursts, longs = [full_at[0] for full_at in times], [full_at[-1] for full_at in times]
            write(_WRITE, {"keys": list(self._shared), "bursts": bursts, "longs": longs})


def _lock(scarce: Wanted, *, now: float) -> dict[bytes, FullAt]:
    """Lock and return the buckets that no other process has locked."""
    rows = fetch(_LOCK, {"keys": list(scarce)})
    shared = {key: _plausible(full_at, scarce[key], now=now) for key, *full_at in rows}
    if missing := [key for key in scarce if key not in shared]:
        added = fetch(_ADD, {"keys": missing, "now": now})
        shared |= {key: (now,) * len(scarce[key]) for (key,) in added}
    return shared


def _plausible(full_at: Sequence[float], limits: BucketLimits, *, now: float) -> FullAt:
    """Return the times of a stored bucket, limited to those of an empty bucket that was also spent in advance.

    A row that was written while the clock was ahead would otherwise keep its bucket empty until that time.
    """
    latest = [now + seconds + min(seconds, MAX_IN_ADVANCE_SECONDS) for _, seconds in limits]
    return tuple(map(min, full_at[: len(limits)], latest))


@once
def own_buckets() -> SharedBuckets:
    """Return this process's view of the shared buckets."""
    return SharedBuckets()


def forget_full(*, now: datetime) -> int:
    """Delete the rows of full buckets, at most `MAX_FORGOTTEN`, and skip locked ones. Return how many were deleted."""
    full = SharedBucket.objects.filter(burst_full_at__lt=now.timestamp(), long_full_at__lt=now.timestamp())
    with transaction.atomic():
        keys = list(full.select_for_update(skip_locked=True).values_list("pk", flat=True)[:MAX_FORGOTTEN])
        deleted, _ = SharedBucket.objects.filter(pk__in=keys).delete()
    return deleted
