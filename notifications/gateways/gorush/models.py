"""The tables of gorush's errors: the rules that give them a meaning, and the errors that no rule matches.

The tables belong to the app `notifications`, in which they were created. Their names, permissions and log entries
depend on it.
"""

from typing import ClassVar

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, RegexValidator
from django.db import models

from notifications.gateways.gorush.answers.errors import Match
from notifications.gateways.gorush.sending.platforms import NAMES
from notifications.messages import Outcome
from notifications.models import choices_of

ANY_PLATFORM = "any"
PLATFORMS = [(name, name.capitalize()) for name in (*NAMES.values(), ANY_PLATFORM)]
# Success comes without an error.
OUTCOMES = [outcome for outcome in Outcome if outcome is not Outcome.DELIVERED]


class GatewayErrorRule(models.Model):
    """The meaning of an error text of the gateway. Rules are applied by position, and the first that matches decides.

    They come from `error_rules.yaml`. Workers apply a change within seconds.
    """

    class Origin(models.TextChoices):
        SEED = "seed"  # as in the file, and updated from it
        OPERATOR = "operator"  # made or changed in the console: the file no longer changes it

    # A shorter part occurs in many errors, and a token that is wrongly taken for dead gets no pushes.
    MIN_PART = 3
    MIN_DEAD_PART = 8
    MAX_RETRY_BASE_SECONDS = 86_400

    position = models.PositiveIntegerField(db_index=True, help_text="The first rule that matches decides.")
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
        "Unproven tokens then trip no channel.",
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
    last_seen_at = models.DateTimeField(db_index=True)

    class Meta:
        verbose_name = "unknown error"
        app_label = "notifications"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["platform", "signature"], name="one_count_per_unknown_error"),
        ]

    def __str__(self) -> str:
        return self.signature or "(nothing but the device token)"
