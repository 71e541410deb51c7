"""What senders asked for and what became of it.

A request holds notifications, a notification has attempts. Payloads (what goes to the device) are dropped as soon as a
notification is over.
"""

from typing import ClassVar

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
        DEAD_TOKEN = "dead_token"
        UNDELIVERABLE = "undeliverable"  # the payload can never be sent
        UNCONFIRMED = "unconfirmed"  # tried twice, and nobody knows whether it arrived
        EXPIRED = "expired"  # its time to live ran out before a try succeeded
        WITHDRAWN = "withdrawn"  # the recipient unregistered first
        SUPPRESSED = "suppressed"  # filtered by the recipient's rules; the sender is told success
        DUPLICATE = "duplicate"  # the same message to the same installation within a day; the sender is told success
        REFUSED = "refused"  # wrong token or not registered; never a push

        @property
        def is_terminal(self) -> bool:
            return self not in _OPEN_STATES

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
            models.Index(fields=["public_key_hash"], name="notification_recipient"),
        ]

    def __str__(self) -> str:
        return f"Notification {self.pk} ({self.state})"


_OPEN_STATES = frozenset(
    {
        Notification.State.PENDING,
        Notification.State.IN_FLIGHT,
        Notification.State.RETRYING,
        Notification.State.AMBIGUOUS,
    }
)


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

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["notification", "number"], name="one_attempt_per_number"),
        ]

    def __str__(self) -> str:
        return f"Attempt {self.number} of notification {self.notification_id} ({self.outcome or 'open'})"
