"""What senders asked for and what became of it.

A request holds notifications, a notification has attempts. Payloads (what goes to the device) are dropped as soon as a
notification is over.

The tables of requests and notifications have a partition for each day on which rows ended, and one of what is under
way, see `kit.db.partitions`. What refers to a row names its id alone: PostgreSQL checks no such reference.
"""

from datetime import UTC, datetime
from typing import ClassVar

from django.contrib.postgres.indexes import BrinIndex
from django.db import models

from kit.db.fields import BytesField
from kit.db.partitions import UNDER_WAY
from registrations import token_types
from registrations.models import Route


class NotificationRequest(models.Model):
    """What one sender asked for through a bridge, so that a repeat is recognised and answered alike."""

    class State(models.TextChoices):
        WAITING = "waiting"  # waits for the first attempt of every notification, at most until the reply deadline
        ANSWERED = "answered"  # the reports are fixed

    bridge = models.TextField()  # the bridge that took it, and that its answer goes to
    request_key = BytesField()  # by which the bridge knows a repeat; Waku: id of the metadata message, 32 bytes
    source_key = BytesField()  # the bridge's name for what brought it; Waku: hash of the envelope, 32 bytes
    reply_address = BytesField(null=True)  # where its answer goes, in the bridge's own form; dropped when answered
    message_id = BytesField()  # the message that it notifies about; chosen by the sender
    # What was decided at once about each notification, and leaves no row of its own: see `reports`. It is null when
    # nothing was, which is usual.
    decided = BytesField(null=True)
    # The names of these, for another worker that has to answer; dropped when answered.
    decided_names = BytesField(null=True)
    state = models.TextField(choices=State.choices)
    # Keyed digest of the signer, for reports on who sends how much. It is null for requests accepted before the column
    # was there.
    sender_digest = BytesField()
    received_at = models.DateTimeField(db_index=True)
    reply_due_at = models.DateTimeField()
    answered_at = models.DateTimeField(null=True)
    ended_on = models.DateField(default=UNDER_WAY, db_default=UNDER_WAY)  # the UTC day of its answer

    class Meta:
        verbose_name = "request"
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=~models.Q(state="waiting") | models.Q(ended_on=UNDER_WAY), name="request_under_way"
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["reply_due_at"], condition=models.Q(state="waiting"), name="request_waiting"),
            models.Index(fields=["request_key"], name="request_key"),  # of a repeat; also searched in the console
            models.Index(fields=["message_id"], name="request_message"),  # searched in the console
        ]

    def __str__(self) -> str:
        return f"Request {bytes(self.request_key).hex()[:16]}"


class RequestDigest(models.Model):
    """The key of a request, so that there is one request for it, however often it comes.

    It outlives the request, so that a recording of it, sent again, is known for what it is.
    """

    digest = BytesField(primary_key=True)  # 16 bytes, see `storing.digest_of`
    received_at = models.DateTimeField()

    class Meta:
        indexes: ClassVar = [BrinIndex(fields=["received_at"], name="request_digest_received")]  # they come in order

    def __str__(self) -> str:
        return f"Digest {bytes(self.digest).hex()[:16]}"


class Notification(models.Model):
    """One push to one installation."""

    class State(models.TextChoices):
        PENDING = "pending"  # accepted, without an attempt yet
        IN_FLIGHT = "in_flight"  # one worker is sending it; the lease tells until when
        RETRYING = "retrying"  # an attempt failed for now; the next one is scheduled
        AMBIGUOUS = "ambiguous"  # an attempt may have reached the device; the next one has the same collapse id
        DELIVERED = "delivered"  # accepted by Apple or Google, according to the gateway
        DEAD_TOKEN = "dead_token"  # the address no longer exists; the sender is told, if it still waits
        UNDELIVERABLE = "undeliverable"  # the payload can never be sent
        UNCONFIRMED = "unconfirmed"  # nobody knows whether it arrived, and it is not sent again: policy.is_left_alone
        EXPIRED = "expired"  # its time to live ran out before an attempt succeeded
        WITHDRAWN = "withdrawn"  # the recipient unregistered first, or an operator dropped it
        COALESCED = "coalesced"  # a later one to the same address wakes the phone for it; the sender is told success

        @property
        def is_terminal(self) -> bool:
            return self not in TRANSITIONS

    class Reports(models.TextChoices):
        """What the sender was told. It is fixed once, so that a repeat of the request gets the same answer."""

        SUCCESS = "success"
        WRONG_TOKEN = "wrong_token"
        NOT_REGISTERED = "not_registered"
        INTERNAL_ERROR = "internal_error"

    request = models.ForeignKey(
        NotificationRequest, on_delete=models.CASCADE, related_name="notifications", db_constraint=False
    )
    position = models.PositiveSmallIntegerField()  # place in the request, whose order the reports keep
    public_key_hash = BytesField()
    installation_id = models.TextField()
    type = models.BigIntegerField()  # an open enum: any 32-bit number
    # The number stays when the route is removed: to clear it would rewrite everything that was ever sent there.
    route = models.ForeignKey(Route, null=True, on_delete=models.DO_NOTHING, db_constraint=False)
    route_generation = models.PositiveBigIntegerField(default=0)
    state = models.TextField(choices=State.choices)
    # The queue that it waits in, by the number of its row: see `queues`. What is not sorted yet has 0.
    queue_id = models.PositiveIntegerField(default=0, db_default=0)
    report = models.TextField(choices=Reports.choices, null=True)  # noqa: DJ001 - null: not answered yet
    # Digest of Status message id, key hash and installation: unique for a day, see `storing`. Cleared when it may be
    # used again.
    dedup_key = BytesField(null=True)
    # The name under which the device replaces an earlier push of this notification: 16 bytes, the same for every
    # attempt.
    collapse_id = BytesField(null=True)
    # How urgent it is and what it shows, where the bridge says so (`messages.Grade`, `messages.Content`). Without a
    # grade the gateway's own settings say it.
    grade = models.TextField(blank=True, default="", db_default="")
    chat_id = BytesField(null=True)
    message = BytesField(null=True)
    # The content of a graded notification without its payload: what goes where the payload is too large, or there is
    # none.
    wake = BytesField(null=True)
    # Too large for Apple or Google, and sent without the ciphertext.
    payload_dropped = models.BooleanField(default=False)
    # It waits for its limits, and wakes the phone for all that came beyond them. It has no content of its own.
    is_wake_up = models.BooleanField(default=False, db_default=False)
    attempt_count = models.PositiveIntegerField(default=0)
    # Ambiguous attempts, without those that ended with a worker.
    ambiguous_count = models.PositiveSmallIntegerField(default=0)
    next_attempt_at = models.DateTimeField(null=True)
    lease_until = models.DateTimeField(null=True)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)
    ended_on = models.DateField(default=UNDER_WAY, db_default=UNDER_WAY)  # the UTC day of `finished_at`

    class Meta:
        constraints: ClassVar = [
            # Workers look for work in what is under way, and nowhere else.
            models.CheckConstraint(
                condition=~models.Q(state__in=["pending", "in_flight", "retrying", "ambiguous"])
                | models.Q(ended_on=UNDER_WAY),
                name="notification_under_way",
            ),
            models.UniqueConstraint(
                fields=["dedup_key", "ended_on"],
                condition=models.Q(dedup_key__isnull=False),
                name="one_notification_under_way",
            ),
        ]
        indexes: ClassVar = [
            # The head of each queue. What a worker is sending waits in none, and is not in this index.
            models.Index(
                fields=["queue_id", "next_attempt_at"],
                condition=models.Q(state__in=["pending", "retrying", "ambiguous"], queue_id__gte=0),
                name="notification_queue",
            ),
            # What expires while its queue does not move, or is not looked at.
            models.Index(
                fields=["expires_at"],
                condition=models.Q(
                    state__in=["pending", "retrying", "ambiguous"],
                    expires_at__gt=datetime(2000, 1, 1, tzinfo=UTC),
                ),
                name="notification_expiring",
            ),
            models.Index(fields=["lease_until"], condition=models.Q(state="in_flight"), name="notification_leased"),
            # What waits for one route, which is counted for each addressee of a request.
            models.Index(
                fields=["route"],
                condition=models.Q(state__in=["pending", "retrying", "ambiguous"], route__gte=0),
                name="notification_by_route",
            ),
            # By id within a recipient, because the console shows the newest of one recipient, of however many. The
            # condition is true of all rows: statements that find rows by another key do not repeat it.
            models.Index(
                fields=["public_key_hash", "id"],
                condition=models.Q(public_key_hash__gt=b""),
                name="notification_by_recipient",
            ),
            # What the console lists by state. It leaves out delivered notifications, which are most, and those under
            # way, which have indexes above. So the usual life of a notification never touches this index.
            models.Index(
                fields=["state", "id"],
                condition=models.Q(
                    state__in=["dead_token", "undeliverable", "unconfirmed", "expired", "withdrawn", "coalesced"]
                ),
                name="notification_ended",
            ),
            # When these ended, which the dashboard counts. Delivered ones are counted by their attempts.
            models.Index(
                fields=["state", "finished_at"],
                condition=models.Q(
                    state__in=["dead_token", "undeliverable", "unconfirmed", "expired", "withdrawn", "coalesced"]
                ),
                name="notification_ended_at",
            ),
        ]
        permissions: ClassVar = [("operate_notification", "Can try notifications at once, and drop them")]

    def __str__(self) -> str:
        return f"Notification {self.pk} ({self.state})"

    @property
    def due_at(self) -> datetime | None:
        """Return when the next attempt is due, or None when none is, or when the notification expires before."""
        is_in_time = self.next_attempt_at and self.next_attempt_at < self.expires_at
        return self.next_attempt_at if is_in_time else None


_State = Notification.State
# The states that the result of an earlier attempt may still bring a notification to whose lease was lost.
_BY_LATE_RESULTS = frozenset({_State.DELIVERED, _State.DEAD_TOKEN, _State.UNDELIVERABLE})
_WITHOUT_TRYING = frozenset({_State.WITHDRAWN, _State.EXPIRED, _State.DEAD_TOKEN})
_BY_A_LATER_ONE = frozenset({_State.COALESCED})
# Every change of state there is, from → to. `transitions.move` makes no other. A state that is missing is terminal.
TRANSITIONS: dict[Notification.State, frozenset[Notification.State]] = {
    _State.PENDING: _WITHOUT_TRYING | _BY_A_LATER_ONE | {_State.IN_FLIGHT, _State.RETRYING},
    _State.IN_FLIGHT: frozenset({_State.DELIVERED, _State.DEAD_TOKEN, _State.UNDELIVERABLE})
    | {_State.RETRYING, _State.AMBIGUOUS, _State.UNCONFIRMED, _State.EXPIRED},
    _State.RETRYING: _WITHOUT_TRYING | _BY_A_LATER_ONE | _BY_LATE_RESULTS | {_State.IN_FLIGHT, _State.RETRYING},
    _State.AMBIGUOUS: _WITHOUT_TRYING | _BY_LATE_RESULTS | {_State.IN_FLIGHT, _State.RETRYING},
}


class Attempt(models.Model):
    """One attempt at a gateway, written before the call and completed after it: the source of error rates.

    The table has a partition for each day on which attempts started.
    """

    class Outcome(models.TextChoices):
        DELIVERED = "delivered"
        DEAD = "dead"
        CONFIG = "config"
        PAYLOAD = "payload"
        TRANSIENT = "transient"
        AMBIGUOUS = "ambiguous"

    # It may be gone: an attempt is kept until its day is dropped.
    notification = models.ForeignKey(
        Notification, on_delete=models.CASCADE, related_name="attempts", db_index=False, db_constraint=False
    )
    number = models.PositiveIntegerField()
    gateway = models.TextField()
    token_type = models.PositiveSmallIntegerField()
    app_topic = models.TextField(blank=True)
    started_at = models.DateTimeField(db_index=True)
    latency_ms = models.PositiveIntegerField(null=True)
    outcome = models.TextField(choices=Outcome.choices, null=True)  # noqa: DJ001 - null: not known (yet)
    code = models.TextField(blank=True)  # the gateway's error in our words
    # What the gateway said, without the token and anything else of one device, so that people can tell errors apart.
    # Nothing depends on it.
    error = models.TextField(blank=True, default="", db_default="")
    is_guarded = models.BooleanField(default=False)  # the same verdict also comes when the set-up is wrong
    # It was sent although a halt covered its queue, to find out whether that is over.
    is_probe = models.BooleanField(default=False, db_default=False)
    # The same as `code`, but from the gateway's feedback hook. It is shown to operators, and nothing depends on it.
    late_code = models.TextField(blank=True, default="", db_default="")

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["notification", "number"], name="attempt_of_notification"),
            # The newest sends of one channel, which its breakers read.
            models.Index(fields=["token_type", "app_topic", "started_at"], name="attempt_channel"),
            # What the console lists by outcome and error. It holds failures only, so that a success costs nothing more.
            models.Index(
                fields=["outcome", "id"],
                condition=models.Q(outcome__in=["dead", "config", "payload", "transient", "ambiguous"]),
                name="attempt_failed",
            ),
            models.Index(fields=["code", "id"], condition=~models.Q(code=""), name="attempt_code"),
        ]

    def __str__(self) -> str:
        return f"Attempt {self.number} of notification {self.notification_id} ({self.outcome or 'open'})"


class Channel(models.Model):
    """One app on one platform that something was delivered to. Operators pause it, a breaker trips it: see `Halt`."""

    token_type = models.PositiveSmallIntegerField(choices=token_types.choices)
    app_topic = models.TextField(blank=True)  # empty for Firebase, where it means nothing
    last_success_at = models.DateTimeField()  # exact to the minute
    # When a halt of it ended last: what was sent before counts no more for its breaker.
    judged_from = models.DateTimeField(null=True)
    # Since when so many of its proven tokens are refused as dead that it is not believed: see `breakers`.
    deaths_distrusted_since = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["token_type", "app_topic"], name="one_channel_each"),
        ]
        permissions: ClassVar = [("operate_channel", "Can pause, trip and resume channels, and undo disabling")]

    def __str__(self) -> str:
        return f"{self.get_token_type_display()} {self.app_topic}".strip()


class Queue(models.Model):
    """What is sent together and waits together: the pushes through one gateway to one app, to addresses that are proven
    or to others. A queue is open unless a halt covers it.

    Apps that nothing was delivered to yet share one queue on each platform, because anybody can make up apps.
    """

    id = models.AutoField(primary_key=True)  # a small number, because every notification carries it
    gateway = models.TextField()
    token_type = models.PositiveSmallIntegerField(choices=token_types.choices)
    # The app, as in `Channel`. It is null in the queue that all apps share that nothing was delivered to yet.
    app_topic = models.TextField(null=True)  # noqa: DJ001 - an empty one is an app, too
    is_proven = models.BooleanField()
    # How many notifications wait in it, as the leader counted last.
    waiting_count = models.PositiveBigIntegerField(default=0, db_default=0)
    counted_at = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["gateway", "token_type", "app_topic", "is_proven"], nulls_distinct=False, name="one_queue_each"
            ),
        ]

    def __str__(self) -> str:
        return f"Queue {self.pk}"


class Halt(models.Model):
    """What keeps queues from being sent while it is there: see `halts`. Ending one never ends another."""

    class Kind(models.TextChoices):
        DRAINED = "drained"  # by an operator: it covers every queue, and ends when an operator starts delivery again
        UNREACHABLE = "unreachable"  # it covers the queues of a gateway, and ends when a probe reaches the gateway
        PAUSED = "paused"  # by an operator: it covers the queues of an app, and ends when an operator resumes the app
        TRIPPED = "tripped"  # by a breaker: it covers the queues of an app, and ends when a probe is delivered

    kind = models.TextField(choices=Kind.choices)
    gateway = models.TextField(blank=True, default="")  # that is unreachable
    token_type = models.PositiveSmallIntegerField(choices=token_types.choices, null=True)  # of the app that is
    app_topic = models.TextField(blank=True, default="")  # paused or tripped
    since = models.DateTimeField()
    reason = models.TextField(blank=True)
    by = models.TextField(blank=True)  # an operator's name; empty for the server itself
    next_probe_at = models.DateTimeField(null=True)  # when one push may ask whether it is over

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["kind", "gateway", "token_type", "app_topic"], nulls_distinct=False, name="one_halt_each"
            ),
        ]
        permissions: ClassVar = [("operate_drain", "Can stop and start delivery as a whole")]

    def __str__(self) -> str:
        if self.kind == self.Kind.DRAINED:
            return "Draining"
        subject = self.gateway or str(Channel(token_type=self.token_type or 0, app_topic=self.app_topic))
        return f"{subject} {self.kind}"
