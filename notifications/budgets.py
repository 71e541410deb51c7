"""Budgets of routes, of senders and of the server, which all workers share and which outlive them.

    this process' memory                             the table, one row a budget
    a tenth of each limit, spent without a word ───▶ the rest: rows locked, spent and written by the turn

What is below a tenth costs no statement: this is the usual traffic. Beyond it the turn locks the rows of all budgets
that it needs, charges what was spent without a word, and decides. A row that another worker holds at this moment is
not waited for: twice the tenth may be spent meanwhile, and then the budget counts as empty. So a limit holds over all
workers, but for a fifth of it for each further one, and a flood makes no worker wait for another one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache

from django.db import transaction

from kit.db.statements import fetch
from kit.once import once
from notifications.limits import TOLERANCE, Budget, Limit
from notifications.models import Budget as Stored

Limits = tuple[Limit, ...]
Wanted = Mapping[bytes, Limits]

SILENT_PART = 10
MAX_HELD = 50_000
# When a budget may have a token again that another worker holds.
A_MOMENT_SECONDS = 1.0

_LOCK = """
    SELECT key, burst_full_at, long_full_at FROM notifications_budget
    WHERE key = ANY (%(keys)b::bytea[]) ORDER BY key FOR UPDATE SKIP LOCKED
"""
_ADD = """
    INSERT INTO notifications_budget (key, burst_full_at, long_full_at)
    SELECT key, %(now)s::float8, %(now)s::float8 FROM unnest(%(keys)b::bytea[]) AS wanted (key) ORDER BY key
    ON CONFLICT (key) DO NOTHING RETURNING key
"""
_WRITE = """
    UPDATE notifications_budget AS budget SET burst_full_at = spent.burst_full_at, long_full_at = spent.long_full_at
    FROM unnest(%(keys)b::bytea[], %(bursts)b::float8[], %(longs)b::float8[])
        AS spent (key, burst_full_at, long_full_at)
    WHERE budget.key = spent.key
"""


@cache
def silent_limit(limits: tuple[Limit, ...]) -> Limit:
    """Return what a process may spend of these limits without a word: a tenth at once, and a tenth in the long run."""
    long = limits[-1]
    count = max(1, limits[0].tokens // SILENT_PART)
    return Limit(count, count * SILENT_PART * long.seconds / long.tokens)


@dataclass(slots=True)
class Silent:
    """What a process may still spend of a budget without a word, as a bucket, and how much it has not charged yet."""

    full_at: float
    uncharged: int = 0

    def take(self, count: int, limit: Limit, *, now: float) -> bool:
        """Take so many tokens, if they are there."""
        full_at = max(self.full_at, now) + count * limit.token_seconds
        if full_at > now + limit.seconds + TOLERANCE:
            return False
        self.full_at = full_at
        self.uncharged += count
        return True

    def charge(self, shared: Budget, *, now: float) -> None:
        """Charge what was spent to the shared budget."""
        shared.spend(self.uncharged, now=now)
        self.uncharged = 0

    def refill(self, shared: Budget, limit: Limit, *, now: float) -> None:
        """Allow as much as before again, unless the shared budget has no more than that."""
        self.full_at = now if shared.has(limit.tokens, now=now) else now + limit.seconds


class Spending:
    """What one turn spends of the budgets that are scarce. All that it wanted of the others is taken already."""

    def __init__(
        self, limits: Wanted, shared: Mapping[bytes, Budget], silent: Mapping[bytes, Silent], *, now: float
    ) -> None:
        self._limits = limits
        self._shared = shared
        self._silent = silent
        self._now = now

    def __bool__(self) -> bool:
        return bool(self._limits)

    def take(self, keys: Sequence[bytes]) -> bool:
        """Take a token from each of these budgets, up to the first that has none, and return whether all had one."""
        return all(self._take(key) for key in keys if key in self._limits)

    def _take(self, key: bytes) -> bool:
        budget = self._shared.get(key)
        if budget is None:
            limit = silent_limit(self._limits[key])
            return self._silent[key].take(1, Limit(2 * limit.tokens, 2 * limit.seconds), now=self._now)
        if not budget.has(1, now=self._now):
            return False
        budget.spend(1, now=self._now)
        return True

    def book(self, key: bytes, keys: Iterable[bytes]) -> datetime:
        """Take the next token of budget ``key``, and return when it, and one of all of ``keys``, will be there."""
        next_at = max([self._now, *(self._next_at(each) for each in keys if each in self._limits)])
        if key in self._shared:
            self._shared[key].spend(1, now=self._now)
        return datetime.fromtimestamp(next_at, UTC)

    def _next_at(self, key: bytes) -> float:
        return self._shared[key].next_at() if key in self._shared else self._now + A_MOMENT_SECONDS

    def write(self) -> None:
        """Store what was spent of the shared budgets."""
        for key, budget in self._shared.items():
            self._silent[key].refill(budget, silent_limit(self._limits[key]), now=self._now)
        if self._shared:
            bursts, longs = zip(*(budget.full_at for budget in self._shared.values()), strict=True)
            fetch(_WRITE, {"keys": list(self._shared), "bursts": list(bursts), "longs": list(longs)})


class Budgets:
    """The budgets as one process knows them: what it spent of each without a word."""

    def __init__(self) -> None:
        self._silent: dict[bytes, Silent] = {}

    def open(self, wanted: Wanted, counts: Mapping[bytes, int], *, at: datetime) -> Spending:
        """Take what a turn wants of each budget, as far as that needs no word, and return what is scarce. Belongs into
        the turn's transaction.
        """
        now = at.timestamp()
        self._forget_full(now)
        scarce = {key: limits for key, limits in wanted.items() if not self._take(key, limits, counts[key], now)}
        shared = _lock(scarce, now=now) if scarce else {}
        for key, budget in shared.items():
            self._silent[key].charge(budget, now=now)
        return Spending(scarce, shared, self._silent, now=now)

    def _take(self, key: bytes, limits: Limits, count: int, now: float) -> bool:
        own = self._silent.get(key)
        if own is None:
            own = self._silent[key] = Silent(now)
        return own.take(count, silent_limit(limits), now=now)

    def _forget_full(self, now: float) -> None:
        """Keep the memory bounded: of more than that, the budgets that are full say nothing, then the oldest go."""
        if len(self._silent) <= MAX_HELD:
            return
        missing = [(key, own) for key, own in self._silent.items() if own.full_at > now]
        self._silent = dict(missing[-MAX_HELD // 2 :])


def _lock(scarce: Wanted, *, now: float) -> dict[bytes, Budget]:
    """Return those of the budgets that no other worker holds, locked."""
    rows = fetch(_LOCK, {"keys": list(scarce)})
    shared = {key: Budget(scarce[key], list(full_at)) for key, *full_at in rows}
    if missing := [key for key in scarce if key not in shared]:
        added = fetch(_ADD, {"keys": missing, "now": now})
        shared |= {key: Budget(scarce[key], [now, now]) for (key,) in added}
    return shared


@once
def own_budgets() -> Budgets:
    """Return the budgets of this process."""
    return Budgets()


def forget_full(*, now: datetime) -> int:
    """Remove the budgets that are full, which say nothing. Those that a worker holds are passed over."""
    full = Stored.objects.filter(burst_full_at__lt=now.timestamp(), long_full_at__lt=now.timestamp())
    with transaction.atomic():
        keys = list(full.select_for_update(skip_locked=True).values_list("pk", flat=True)[:MAX_HELD])
        deleted, _ = Stored.objects.filter(pk__in=keys).delete()
    return deleted
