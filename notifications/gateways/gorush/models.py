"""The tables of gorush's errors: the rules that give them a meaning, and the errors that no rule matches.

The tables belong to the app `notifications`, in which they were created. Their names, permissions and log entries
depend on it. Every process keeps the rules in memory, a few seconds old at most. Sending counts unknown errors in
memory only, and each batch adds the sums to their table.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from time import monotonic
from typing import Any, ClassVar, LiteralString

import structlog
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, RegexValidator
from django.db import DatabaseError, InterfaceError, models, transaction
from prometheus_client import Counter as Metric

from kit.db.base import fetch
from kit.processes import once
from notifications.gateways.gorush.errors import (
    ANY_PLATFORM,
    NAMES,
    ErrorRule,
    Match,
    SeedRule,
    key_of,
    rule_of,
    seed_rules,
    shipped_rules,
)
from notifications.messages import Outcome
from notifications.models import choices_of

log = structlog.get_logger(__name__)
PLATFORMS = [(name, name.capitalize()) for name in (*NAMES.values(), ANY_PLATFORM)]
# Success comes without an error.
OUTCOMES = [outcome for outcome in Outcome if outcome is not Outcome.DELIVERED]

# The metrics of this gateway, beside those of every gateway. ``platform`` is ios or android.
UNKNOWN_ERRORS = Metric(
    "pushserver_gateway_unknown_errors_total",
    "Answers of the gateway that no rule matches; they count as transient. "
    "When it moves: give them a rule (console, Unknown gateway errors).",
    ["platform"],
)
PAYLOADS_LEFT_OUT = Metric(
    "pushserver_gateway_payloads_left_out_total",
    "Pushes that went without their payload, because Apple or Google would have refused them as too large. "
    "When it moves: the devices are woken all the same. Shorten the text of the app that most of them belong to.",
    ["platform"],
)


class GatewayErrorRule(models.Model):
    """The meaning of an error text of the gateway. Rules are applied by position, and the first that matches decides.

    They are those of `error_rules.yaml`, and those of operators in their place or between them. Workers apply a change
    within seconds.
    """

    class Origin(models.TextChoices):
        SEED = "seed"  # as in the file, and updated from it
        OPERATOR = "operator"  # made or changed in the console: the file no longer changes it

    # A shorter part occurs in many errors, and a token that is wrongly taken for dead gets no pushes.
    MIN_PART = 3
    MIN_DEAD_PART = 8
    MAX_RETRY_BASE_SECONDS = 86_400

    position = models.PositiveIntegerField(help_text="The first rule that matches decides.")
    platform = models.TextField(choices=PLATFORMS)
    match = models.TextField(choices=choices_of(Match), default=Match.CONTAINS.value)
    text = models.TextField(
        blank=True,
        help_text="Upper and lower case are the same. Empty, with an exact match: an answer without an error text.",
    )
    outcome = models.TextField("class", choices=choices_of(OUTCOMES))
    code = models.TextField(
        help_text="The name of the error in attempts, logs and reports.",
        validators=[RegexValidator(r"\A[A-Za-z][A-Za-z0-9_]{0,63}\Z", "Letters, digits and _ only, 64 at most.")],
    )
    is_guarded = models.BooleanField(
        "guarded",
        default=False,
        help_text="Only for dead and config: the token or the set-up may be at fault. "
        "Unproven tokens then trip no app.",
    )
    retry_base_seconds = models.PositiveIntegerField(
        default=0,
        help_text="First pause of the backoff; 0: the usual one.",
        validators=[MaxValueValidator(MAX_RETRY_BASE_SECONDS)],
    )
    is_enabled = models.BooleanField("enabled", default=True)
    remark = models.TextField(blank=True)
    origin = models.TextField(choices=Origin.choices, default=Origin.OPERATOR, editable=False)
    # The key of the file's entry that this row came from, also after changes by operators. It is null for their own
    # rules.
    seed_key = models.TextField(null=True, unique=True, editable=False)  # noqa: DJ001
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        verbose_name = "error rule"
        app_label = "notifications"
        ordering: ClassVar = ["position", "pk"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["platform", "match", "text"], name="one_rule_per_error"),
        ]

    def __str__(self) -> str:
        return f"{self.platform}: {self.match} {self.text!r} → {self.outcome} ({self.code})"

    def clean(self) -> None:
        self._clean_text()
        if self.is_guarded and self.outcome not in {Outcome.DEAD, Outcome.CONFIG}:
            raise ValidationError({"is_guarded": "Only an error of class dead or config can be guarded."})
        if self.retry_base_seconds and self.outcome in {Outcome.DEAD, Outcome.PAYLOAD}:
            raise ValidationError({"retry_base_seconds": f"An error of class {self.outcome} is not retried."})

    def _clean_text(self) -> None:
        self.text = self.text.strip()
        for_whole, for_part = (1, self.MIN_DEAD_PART) if self.outcome == Outcome.DEAD else (0, self.MIN_PART)
        needed = for_whole if self.match == Match.EXACT else for_part
        if len(self.text) < needed:
            raise ValidationError({"text": f"At least {needed} characters: a shorter text is in too many errors."})


class UnknownGatewayError(models.Model):
    """An error that no rule matches, and how often it came. Its signature contains no data of one device."""

    platform = models.TextField(choices=PLATFORMS)
    signature = models.TextField(blank=True)
    count = models.PositiveBigIntegerField(default=0)
    first_seen_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()

    class Meta:
        verbose_name = "unknown error"
        app_label = "notifications"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["platform", "signature"], name="one_count_per_unknown_error"),
        ]

    def __str__(self) -> str:
        return self.signature or "(nothing but the device token)"


def load_shipped(model: Any = GatewayErrorRule, shipped: Sequence[SeedRule] | None = None) -> None:
    """Make the rules that follow the file those of this release. Rules of operators stay as they are.

    ``model`` may also be the one of a migration, which may lack later columns. It is safe to run twice.
    """
    known = {field.name for field in model._meta.get_fields()}  # noqa: SLF001 - the documented way
    columns = [field.name for field in fields(SeedRule) if field.name in known]
    seed = GatewayErrorRule.Origin.SEED
    with transaction.atomic():
        # Operators' changes wait, and those that came first are seen. A lock of rows would not stop a new rule.
        fetch("LOCK TABLE notifications_gatewayerrorrule IN EXCLUSIVE MODE")
        own = [row for row in model.objects.all() if row.origin != seed]
        taken = {key for row in own for key in (row.seed_key, key_of(row))}
        rules = {key: rule for rule in shipped or seed_rules() if (key := key_of(rule)) not in taken}
        model.objects.filter(origin=seed).exclude(seed_key__in=rules).delete()
        rows = [
            model(seed_key=key, origin=seed, **{name: getattr(rule, name) for name in columns})
            for key, rule in rules.items()
        ]
        model.objects.bulk_create(rows, update_conflicts=True, unique_fields=["seed_key"], update_fields=columns)


# What each process holds of them --------------------------------------------------------------------------------------

REFRESH_SECONDS = 5.0

Rules = tuple[ErrorRule, ...]


def load_rules() -> Rules:
    """Return the rules of the table, read in one query, or those of the file while the table is empty."""
    rows = list(GatewayErrorRule.objects.order_by("position", "pk"))
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

    def refresh(self) -> None:
        """Load the rules when they are old. The old ones stay in use while the database is unreachable, or while it has
        a rule with words of another release: without that rule, a later one could match in its place.
        """
        if self._clock() < self._due_at:
            return
        self._due_at = self._clock() + REFRESH_SECONDS
        try:
            rules = self._load()
        except (DatabaseError, InterfaceError, ValueError) as error:
            log.warning("error_rules_not_loaded", error=type(error).__name__)
            return
        if rules != self.rules:
            self.rules = rules
            log.info("error_rules_changed", count=len(rules))


current_rules = once(CurrentRules)


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
        try:
            new = count_unknown(counts, now=now) if counts else []
        except (DatabaseError, InterfaceError) as error:
            log.warning("unknown_errors_not_recorded", error=type(error).__name__)
            return self._add(counts)
        for platform, signature in new:
            log.warning("gateway_error_unknown", platform=platform, signature=signature)
        return None

    def _add(self, counts: dict[Key, int]) -> None:
        with self._lock:
            for key, count in counts.items():
                if key in self._counts or len(self._counts) < MAX_SIGNATURES_HELD:
                    self._counts[key] += count


unknown_errors = once(UnknownErrors)


# In the order of the keys, so that two workers which count the same errors wait for each other.
_COUNT_UNKNOWN: LiteralString = """
    INSERT INTO notifications_unknowngatewayerror AS error (platform, signature, count, first_seen_at, last_seen_at)
    SELECT platform, signature, count, %(now)s, %(now)s
    FROM unnest(%(platforms)b::text[], %(signatures)b::text[], %(counts)b::bigint[]) AS new (platform, signature, count)
    ORDER BY platform, signature
    ON CONFLICT (platform, signature)
    DO UPDATE SET count = error.count + excluded.count, last_seen_at = excluded.last_seen_at
    RETURNING platform, signature, first_seen_at = %(now)s
"""


def count_unknown(counts: Mapping[Key, int], *, now: datetime) -> list[Key]:
    """Add to the counts of these errors, and return those that were never seen before."""
    platforms, signatures = zip(*counts, strict=True)
    columns = {"platforms": list(platforms), "signatures": list(signatures), "counts": list(counts.values())}
    new = [(platform, text) for platform, text, is_new in fetch(_COUNT_UNKNOWN, {**columns, "now": now}) if is_new]
    if new:
        newest_first = UnknownGatewayError.objects.order_by("-last_seen_at", "-pk").values_list("pk", flat=True)
        UnknownGatewayError.objects.filter(pk__in=list(newest_first[MAX_SIGNATURES_STORED:])).delete()
    return new
