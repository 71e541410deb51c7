"""The table of error rules, and the table of the errors that none of them matches.

Rules are loaded from the file. Every process keeps them in memory, a few seconds old at most. Sending counts unknown
errors in memory only, and each batch adds the sums to their table.
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from time import monotonic
from typing import Any

import structlog
from django.db import DatabaseError, InterfaceError, transaction
from django.db.models import F

from kit.processes.once import once
from notifications.gateways.gorush.answers.errors import ErrorRule
from notifications.gateways.gorush.metrics import UNKNOWN_ERRORS
from notifications.gateways.gorush.models import GatewayErrorRule, UnknownGatewayError
from notifications.gateways.gorush.rules.file import MATCHED_COLUMNS, SeedRule, rule_of, seed_rules, shipped_rules
from notifications.gateways.gorush.sending.platforms import NAMES

log = structlog.get_logger(__name__)

REFRESH_SECONDS = 5.0

Rules = tuple[ErrorRule, ...]


def load_rules() -> Rules:
    """Return the rules of the table, read in one query, or those of the file while the table is empty."""
    rows = list(GatewayErrorRule.objects.order_by("position", "pk").only("is_enabled", *MATCHED_COLUMNS))
    return tuple(rule_of(row) for row in rows if row.is_enabled) if rows else shipped_rules()


class CurrentRules:
    """The rules that a process uses: first those of the file, then those of ``load``. ``clock`` counts seconds.

    Each refresh reads the whole table, not only whether it changed. A hundred rows cost little more, and a row that was
    deleted or committed late is noticed. A thread that sends reads ``rules``, which is replaced as a whole.
    """

    def __init__(self, load: Callable[[], Rules] = load_rules, clock: Callable[[], float] = monotonic) -> None:
        self.rules = shipped_rules()
        self._load = load
        self._clock = clock
        self._due_at = clock()
        self._lock = threading.Lock()

    def refresh(self) -> None:
        """Load the rules when they are old.

        The old ones stay in use while another thread loads them, or when the database is unreachable.
        """
        if self._clock() < self._due_at or not self._lock.acquire(blocking=False):
            return
        try:
            self._due_at = self._clock() + REFRESH_SECONDS
            self._replace(self._load())
        except (DatabaseError, InterfaceError) as error:
            log.warning("error_rules_not_loaded", error=type(error).__name__)
        finally:
            self._lock.release()

    def _replace(self, rules: Rules) -> None:
        if rules != self.rules:
            self.rules = rules
            log.info("error_rules_changed", count=len(rules))


current_rules = once(CurrentRules)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The result of loading the file: the numbers of rules added, refreshed, removed, and kept as they were."""

    added: int
    refreshed: int
    removed: int
    kept: int  # because operators changed them


def load_seed(model: Any = GatewayErrorRule, seeds: Sequence[SeedRule] | None = None) -> Loaded:
    """Update the rows that follow the file. Rows of operators, and their changes, stay.

    ``model`` may also be the one of a migration, which may lack later columns. It is safe to run twice.
    """
    seeds = seed_rules() if seeds is None else seeds
    columns = {field.name for field in model._meta.get_fields()}  # noqa: SLF001 - the documented way
    wanted = {seed.key: {k: v for k, v in asdict(seed).items() if k in columns} for seed in seeds}
    with transaction.atomic():
        following = model.objects.filter(origin=GatewayErrorRule.Origin.SEED)
        removed, _ = following.exclude(seed_key__in=wanted).delete()
        rows = {row.seed_key: row for row in model.objects.select_for_update().exclude(seed_key=None)}
        return _write(model, wanted, rows, removed)


def _write(model: Any, wanted: dict[str, dict[str, Any]], rows: dict[str, Any], removed: int) -> Loaded:
    added = refreshed = 0
    for key, values in wanted.items():
        row = rows.get(key)
        if row is None:
            added += _add(model, key, values)
        elif row.origin == GatewayErrorRule.Origin.SEED and any(getattr(row, k) != v for k, v in values.items()):
            refreshed += model.objects.filter(pk=row.pk).update(**values)
    return Loaded(added, refreshed, removed, sum(row.origin != GatewayErrorRule.Origin.SEED for row in rows.values()))


def _add(model: Any, key: str, values: dict[str, Any]) -> int:
    """Add a rule of the file and return 1, or return 0 when an operator has a rule about the same error."""
    same = {name: values[name] for name in ("platform", "match", "text")}
    if model.objects.filter(**same).exists():
        return 0
    model.objects.create(seed_key=key, origin=GatewayErrorRule.Origin.SEED, **values)
    return 1


# A proxy that answers with ever new pages must fill neither the memory nor the table: the oldest are dropped.
MAX_SIGNATURES_HELD = 200
MAX_SIGNATURES_STORED = 1000

Key = tuple[str, str]  # platform, signature


class UnknownErrors:
    """The unknown errors counted since the last record. The thread that sends and those that record share it."""

    def __init__(self) -> None:
        self._counts: Counter[Key] = Counter()
        self._lock = threading.Lock()

    def note(self, token_type: int, signature: str) -> None:
        """Count one error that no rule matches."""
        self._add({(NAMES[token_type], signature): 1})
        UNKNOWN_ERRORS.labels(NAMES[token_type]).inc()

    def record(self, *, now: datetime) -> None:
        """Add the counts to the table. When the database is unreachable, keep them for the next time."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        for key in sorted(counts):
            try:
                count_unknown(*key, counts[key], now=now)
            except (DatabaseError, InterfaceError) as error:
                log.warning("unknown_errors_not_recorded", error=type(error).__name__)
                return self._add(counts)
            del counts[key]
        return None

    def _add(self, counts: dict[Key, int]) -> None:
        with self._lock:
            for key, count in counts.items():
                if key in self._counts or len(self._counts) < MAX_SIGNATURES_HELD:
                    self._counts[key] += count


unknown_errors = once(UnknownErrors)


def count_unknown(platform: str, signature: str, count: int, *, now: datetime) -> None:
    """Add to the count of one error.

    Each statement commits alone, so that two workers that count the same errors cannot dead-lock.
    """
    rows = UnknownGatewayError.objects.filter(platform=platform, signature=signature)
    if rows.update(count=F("count") + count, last_seen_at=now):
        return
    seen = {"first_seen_at": now, "last_seen_at": now}
    _, is_new = UnknownGatewayError.objects.get_or_create(platform=platform, signature=signature, defaults=seen)
    rows.update(count=F("count") + count)
    if is_new:
        log.warning("gateway_error_unknown", platform=platform, signature=signature)
        _free_capacity()


def _free_capacity() -> None:
    newest_first = UnknownGatewayError.objects.order_by("-last_seen_at", "-pk").values_list("pk", flat=True)
    UnknownGatewayError.objects.filter(pk__in=list(newest_first[MAX_SIGNATURES_STORED:])).delete()
