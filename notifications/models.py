"""What senders asked for and what became of it.

A request holds notifications, a notification has attempts. Payloads (what goes to the device) are dropped as soon as a
notification is over.
"""

from typing import ClassVar

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, RegexValidator
from django.db import models

from registrations.fields import BytesField
from registrations.models import Route


class NotificationRequest(models.Model):
    """One REQUEST, known by the id of its metadata message, so that a repeat is recognised and answered alike."""

    class State(models.TextChoices):
        WAITING = "waiting"  # for the first attempt of every notification, at most until the reply deadline
        ANSWERED = "answered"  # the reports are fixed

    amm_message_id = BytesField(unique=True)  # 32 bytes
    message_id = BytesField()  # the Status message notified about; chosen by the sender
    state = models.TextField(choices=State.choices)
    # Where the reply goes: envelope and signer (33 bytes), usually a key made for this purpose. Dropped when answered.
    envelope_hash = BytesField()
    reply_to = BytesField(null=True)
    # Keyed digest of the signer, for reports on who sends how much. Null: accepted before there was one.
    sender_digest = BytesField(null=True)
    received_at = models.DateTimeField(db_index=True)
    reply_due_at = models.DateTimeField()
    answered_at = models.DateTimeField(null=True)

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["reply_due_at"], condition=models.Q(state="waiting"), name="request_waiting"),
            models.Index(fields=["message_id"], name="request_message"),  # searched in the console
        ]

    def __str__(self) -> str:
        return f"Request {bytes(self.amm_message_id).hex()[:16]}"


class Notification(models.Model):
    """One push to one installation, or the reason why there is none."""

    class State(models.TextChoices):
        PENDING = "pending"  # accepted, not yet tried
        IN_FLIGHT = "in_flight"  # one worker is sending it; the lease tells until when
        RETRYING = "retrying"  # a try failed for now; the next one is scheduled
        AMBIGUOUS = "ambiguous"  # a try may have reached the device; one more is scheduled, with the same collapse id
        DELIVERED = "delivered"  # accepted by Apple or Google, according to the gateway
        DEAD_TOKEN = "dead_token"  # the address no longer exists; the sender is told, if it still waits
        UNDELIVERABLE = "undeliverable"  # the payload can never be sent
        UNCONFIRMED = "unconfirmed"  # nobody knows whether it arrived, and it is not tried again: policy.is_left_alone
        EXPIRED = "expired"  # its time to live ran out before a try succeeded
        WITHDRAWN = "withdrawn"  # the recipient unregistered first, or an operator dropped it
        SUPPRESSED = "suppressed"  # filtered by the recipient's rules; the sender is told success
        DUPLICATE = "duplicate"  # the same message to the same installation within a day; the sender is told success
        REFUSED = "refused"  # wrong token, not registered, or we were overloaded; never a push

        @property
        def is_terminal(self) -> bool:
            return self not in TRANSITIONS

    class Reports(models.TextChoices):
        """What the sender was told. Fixed once: a repeat of the request gets the same answer."""

        SUCCESS = "success"
        WRONG_TOKEN = "wrong_token"
        NOT_REGISTERED = "not_registered"
        INTERNAL_ERROR = "internal_error"

    request = models.ForeignKey(NotificationRequest, on_delete=models.CASCADE, related_name="notifications")
    position = models.PositiveSmallIntegerField()  # within the request: reports keep its order
    public_key_hash = BytesField()
    installation_id = models.TextField()
    type = models.BigIntegerField()  # an open enum: any 32-bit number
    route = models.ForeignKey(Route, null=True, on_delete=models.SET_NULL)
    route_generation = models.PositiveBigIntegerField(default=0)
    state = models.TextField(choices=State.choices)
    report = models.TextField(choices=Reports.choices, null=True)  # noqa: DJ001 - null: not answered yet
    # Digest of Status message id, key hash and installation: unique for a day, then cleared.
    dedup_key = BytesField(null=True, unique=True)
    chat_id = BytesField(null=True)
    message = BytesField(null=True)
    payload_dropped = models.BooleanField(default=False)  # too large for Apple or Google: tried without the ciphertext
    attempt_count = models.PositiveSmallIntegerField(default=0)
    ambiguous_count = models.PositiveSmallIntegerField(default=0)
    next_attempt_at = models.DateTimeField(null=True)
    enqueued_at = models.DateTimeField(null=True)  # when its id was last put into the queue
    lease_until = models.DateTimeField(null=True)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)

    class Meta:
        indexes: ClassVar = [
            models.Index(
                fields=["next_attempt_at"],
                condition=models.Q(state__in=["pending", "retrying", "ambiguous"]),
                name="notification_due",
            ),
            models.Index(fields=["lease_until"], condition=models.Q(state="in_flight"), name="notification_leased"),
            # By id within a recipient: the console shows somebody's newest, of however many.
            models.Index(fields=["public_key_hash", "id"], name="notification_by_recipient"),
            # What the console lists by state. Delivered ones are everywhere, and those under way have indexes above: so
            # the usual life of a notification never meets this one.
            models.Index(
                fields=["state", "id"],
                condition=models.Q(
                    state__in=[
                        *("dead_token", "undeliverable", "unconfirmed", "expired"),
                        *("withdrawn", "suppressed", "duplicate", "refused"),
                    ]
                ),
                name="notification_ended",
            ),
        ]
        permissions: ClassVar = [("operate_notification", "Can try notifications at once, and drop them")]

    def __str__(self) -> str:
        return f"Notification {self.pk} ({self.state})"


_State = Notification.State
# What the result of an earlier attempt may still do to a notification whose lease was lost with it.
_BY_LATE_RESULTS = frozenset({_State.DELIVERED, _State.DEAD_TOKEN, _State.UNDELIVERABLE})
_WITHOUT_TRYING = frozenset({_State.WITHDRAWN, _State.EXPIRED, _State.DEAD_TOKEN})
# Every change of state there is, from → to; `transitions.move` makes no other. A state that is missing is terminal.
TRANSITIONS: dict[Notification.State, frozenset[Notification.State]] = {
    _State.PENDING: _WITHOUT_TRYING | {_State.IN_FLIGHT, _State.RETRYING},
    _State.IN_FLIGHT: frozenset({_State.DELIVERED, _State.DEAD_TOKEN, _State.UNDELIVERABLE})
    | {_State.RETRYING, _State.AMBIGUOUS, _State.UNCONFIRMED, _State.EXPIRED},
    _State.RETRYING: _WITHOUT_TRYING | _BY_LATE_RESULTS | {_State.IN_FLIGHT, _State.RETRYING},
    _State.AMBIGUOUS: _WITHOUT_TRYING | _BY_LATE_RESULTS | {_State.IN_FLIGHT, _State.RETRYING},
}


class Attempt(models.Model):
    """One try at a gateway, written before the call and completed after it. Append-only: the source of error rates."""

    class Outcome(models.TextChoices):
        DELIVERED = "delivered"
        DEAD = "dead"
        CONFIG = "config"
        PAYLOAD = "payload"
        TRANSIENT = "transient"
        AMBIGUOUS = "ambiguous"

    # No index of its own: the unique constraint below begins with it.
    notification = models.ForeignKey(Notification, on_delete=models.CASCADE, related_name="attempts", db_index=False)
    number = models.PositiveSmallIntegerField()
    gateway = models.TextField()
    token_type = models.PositiveSmallIntegerField()
    apn_topic = models.TextField(blank=True)
    started_at = models.DateTimeField(db_index=True)
    latency_ms = models.PositiveIntegerField(null=True)
    outcome = models.TextField(choices=Outcome.choices, null=True)  # noqa: DJ001 - null: not known (yet)
    code = models.TextField(blank=True)  # the gateway's error in our words: never its text, which may hold the token
    is_guarded = models.BooleanField(default=False)  # the same verdict also comes when the set-up is wrong
    # Like `code`, from the gateway's feedback hook: shown to operators, and nothing depends on it. The default of the
    # database is for workers that do not know the column yet.
    late_code = models.TextField(blank=True, default="", db_default="")

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["notification", "number"], name="one_attempt_per_number"),
        ]
        indexes: ClassVar = [
            # The newest sends of one channel, which its breakers look at.
            models.Index(fields=["token_type", "apn_topic", "started_at"], name="attempt_channel"),
            # What the console lists by outcome and error: failures only, so that a success costs nothing more.
            models.Index(
                fields=["outcome", "id"],
                condition=models.Q(outcome__in=["dead", "config", "payload", "transient", "ambiguous"]),
                name="attempt_failed",
            ),
            models.Index(fields=["code", "id"], condition=~models.Q(code=""), name="attempt_code"),
        ]

    def __str__(self) -> str:
        return f"Attempt {self.number} of notification {self.notification_id} ({self.outcome or 'open'})"


class GatewayPlatform(models.TextChoices):
    IOS = "ios"
    ANDROID = "android"
    ANY = "any"


class GatewayErrorRule(models.Model):
    """What an error text of the gateway means. Rules are tried by position, and the first that matches decides.

    They come from `gateways/gorush/error_rules.yaml`; workers take up a change within seconds.
    """

    class Match(models.TextChoices):
        EXACT = "exact"  # the whole error
        PREFIX = "prefix"
        CONTAINS = "contains"

    class Outcome(models.TextChoices):
        DEAD = "dead"  # the address no longer exists: the route is disabled
        CONFIG = "config"  # an operator must act; the address is fine
        PAYLOAD = "payload"  # this push can never be sent; the address is fine
        TRANSIENT = "transient"  # not sent; tried again later
        AMBIGUOUS = "ambiguous"  # may have been sent; tried once more with the same collapse id

    class Origin(models.TextChoices):
        SEED = "seed"  # as in the file, and follows it
        OPERATOR = "operator"  # made or changed in the console: the file no longer touches it

    # Parts that are shorter are in many errors, and a token that is taken for dead by mistake gets no pushes.
    MIN_PART = 3
    MIN_DEAD_PART = 8
    MAX_RETRY_BASE_SECONDS = 86_400

    position = models.PositiveIntegerField(db_index=True, help_text="The first rule that matches decides.")
    platform = models.TextField(choices=GatewayPlatform.choices)
    match = models.TextField(choices=Match.choices, default=Match.CONTAINS)
    text = models.TextField(
        blank=True,
        help_text="Upper and lower case are the same. Empty, with an exact match: an answer without an error text.",
    )
    outcome = models.TextField("class", choices=Outcome.choices)
    code = models.TextField(
        help_text="What attempts, logs and reports call it.",
        validators=[RegexValidator(r"\A[A-Za-z][A-Za-z0-9_]{0,63}\Z", "Letters, digits and _ only, 64 at most.")],
    )
    is_guarded = models.BooleanField(
        "guarded",
        default=False,
        help_text="Only for dead: tokens that are fine get this answer too, if we are set up wrong.",
    )
    retry_base_seconds = models.PositiveIntegerField(
        default=0,
        help_text="Where the backoff starts; 0: where it always does.",
        validators=[MaxValueValidator(MAX_RETRY_BASE_SECONDS)],
    )
    is_enabled = models.BooleanField("enabled", default=True)
    remark = models.TextField(blank=True)
    origin = models.TextField(choices=Origin.choices, default=Origin.OPERATOR, editable=False)
    # Names the entry of the file that this row is, whatever operators make of it; null for their own rules.
    seed_key = models.TextField(null=True, unique=True, editable=False)  # noqa: DJ001
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering: ClassVar = ["position", "pk"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["platform", "match", "text"], name="one_rule_per_error"),
        ]

    def __str__(self) -> str:
        return f"{self.platform}: {self.match} {self.text!r} → {self.outcome} ({self.code})"

    def clean(self) -> None:
        self._clean_text()
        if self.is_guarded and self.outcome != self.Outcome.DEAD:
            raise ValidationError({"is_guarded": "Only a dead token needs a guard."})
        if self.retry_base_seconds and self.outcome in {self.Outcome.DEAD, self.Outcome.PAYLOAD}:
            raise ValidationError({"retry_base_seconds": f"What is {self.outcome} is not tried again."})

    def _clean_text(self) -> None:
        self.text = self.text.strip()
        for_whole, for_part = (1, self.MIN_DEAD_PART) if self.outcome == self.Outcome.DEAD else (0, self.MIN_PART)
        needed = for_whole if self.match == self.Match.EXACT else for_part
        if len(self.text) < needed:
            raise ValidationError({"text": f"At least {needed} characters: anything shorter is in too many errors."})


class UnknownGatewayError(models.Model):
    """How often an error came that no rule knows. The signature is the error without anything of one device."""

    platform = models.TextField(choices=GatewayPlatform.choices)
    signature = models.TextField(blank=True)
    count = models.PositiveBigIntegerField(default=0)
    first_seen_at = models.DateTimeField()
    last_seen_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["platform", "signature"], name="one_count_per_unknown_error"),
        ]

    def __str__(self) -> str:
        return self.signature or "(nothing but the device token)"


class Channel(models.Model):
    """One app on one platform. What has no row yet runs: rows are made at the first success, pause or trip."""

    class State(models.TextChoices):
        RUNNING = "running"
        PAUSED = "paused"  # by an operator; nothing is sent until an operator resumes it
        TRIPPED = "tripped"  # by a breaker; one push at a time probes it, and a success closes the breaker again

    token_type = models.PositiveSmallIntegerField(choices=Route.TokenTypes.choices)
    apn_topic = models.TextField(blank=True)  # empty for Firebase, where it means nothing
    state = models.TextField(choices=State.choices, default=State.RUNNING)
    reason = models.TextField(blank=True)
    changed_by = models.TextField(blank=True)  # an operator's name; empty for the server itself
    since = models.DateTimeField()
    next_probe_at = models.DateTimeField(null=True)
    last_success_at = models.DateTimeField(null=True)  # to the minute

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["token_type", "apn_topic"], name="one_channel_each"),
        ]
        permissions: ClassVar = [("operate_channel", "Can pause, trip and resume channels, and undo disabling")]

    def __str__(self) -> str:
        return f"{self.get_token_type_display()} {self.apn_topic}".strip()


class Drain(models.Model):
    """While this row is there, nothing is delivered: see `draining`."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1, editable=False)
    started_by = models.TextField()
    reason = models.TextField()
    since = models.DateTimeField()

    class Meta:
        constraints: ClassVar = [models.CheckConstraint(condition=models.Q(id=1), name="one_drain_at_most")]
        permissions: ClassVar = [("operate_drain", "Can stop and start delivery as a whole")]

    def __str__(self) -> str:
        return "Draining"
