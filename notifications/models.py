"""Requests of senders, their notifications, and the attempts to deliver these.

A request holds notifications, and a notification has attempts. Payloads for devices are removed as soon as a
notification ends.

Requests and notifications that are open have a table each, in which workers look for work. The statement that ends a
row deletes it there, and inserts it into the history, which has a partition for each day on which rows ended: see
`kit.db.partitions`. A view of both serves whoever reads.
"""

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import ClassVar, LiteralString

from django.contrib.postgres.indexes import BrinIndex
from django.db import models

from kit.db.fields import BytesField
from notifications.messages import Effect, Outcome, QueueKey
from registrations import messages
from registrations.models import Route


def choices_of(words: Iterable[StrEnum]) -> list[tuple[str, str]]:
    """Return the choices of a column that holds one of these words."""
    return [(word.value, word.capitalize()) for word in words]


class RequestFacts(models.Model):
    """The columns that a request has while it waits and when it is answered."""

    bridge = models.TextField()  # the bridge that took it, and that its answer goes to
    request_key = BytesField()  # the bridge's key of a repeat; Waku: id of the metadata message, 32 bytes
    source_key = BytesField()  # the bridge's key of the message with it; Waku: hash of the envelope, 32 bytes
    message_id = BytesField()  # the message that it notifies about; chosen by the sender
    # The verdicts about notifications that were decided at once and have no row of their own: see `reports`. It
    # is null when there are none, which is usual.
    decided = BytesField(null=True)
    # Keyed digest of the signer, for reports on volumes by sender. It is null for requests accepted before the column
    # existed.
    sender_digest = BytesField()
    received_at = models.DateTimeField()
    reply_due_at = models.DateTimeField()

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"Request {bytes(self.request_key).hex()[:16]}"


class OpenRequest(RequestFacts):
    """A request that waits for the first attempt of every notification, at most until the reply deadline."""

    reply_address = BytesField(null=True)  # where its answer goes, in the bridge's own form
    reports = BytesField()  # of all its notifications, as far as they are known: see `reports`
    names = BytesField()  # the recipients of the reports, for whichever worker answers

    class Meta:
        default_permissions = ()
        indexes: ClassVar = [
            models.Index(fields=["reply_due_at"], name="open_request_due"),
            models.Index(fields=["request_key"], name="open_request_key"),  # of a repeat
        ]


class AnsweredRequest(RequestFacts):
    """A request whose reports are fixed. The table has a partition for each day on which requests were answered."""

    # It is null where a server answered that kept the report of each notification with the notification.
    reports = BytesField(null=True)
    answered_at = models.DateTimeField(null=True)
    ended_on = models.DateField()  # the UTC day of its answer

    class Meta:
        default_permissions = ()
        indexes: ClassVar = [
            models.Index(fields=["received_at"], name="request_received"),
            models.Index(fields=["request_key"], name="request_key"),  # of a repeat; also searched in the console
            models.Index(fields=["message_id"], name="request_message"),  # searched in the console
        ]


class NotificationRequest(RequestFacts):
    """One sender's request through a bridge. It is stored so that a repeat is recognised and gets the same answer.

    It is read from a view of open and answered requests. In the view, an open request ends on the last possible day, so
    a condition on `ended_on` keeps PostgreSQL from reading the days before.
    """

    class State(models.TextChoices):
        WAITING = "waiting"
        ANSWERED = "answered"

    state = models.TextField(choices=State.choices)
    reply_address = BytesField(null=True)
    reports = BytesField(null=True)
    names = BytesField(null=True)
    answered_at = models.DateTimeField(null=True)
    ended_on = models.DateField()

    class Meta:
        managed = False
        db_table = "notifications_notificationrequest"
        verbose_name = "request"


# The columns that a request keeps when it is answered, in SQL, but for its reports.
REQUEST: LiteralString = (
    "id, bridge, request_key, source_key, message_id, decided, sender_digest, received_at, reply_due_at"
)


class RequestDigest(models.Model):
    """The key of a request. It is unique, so that a repeated request is accepted once.

    It outlives the request, so that a recording sent again later is recognised.
    """

    digest = BytesField(primary_key=True)  # 16 bytes, see `storing.digest_of`
    received_at = models.DateTimeField()

    class Meta:
        indexes: ClassVar = [BrinIndex(fields=["received_at"], name="request_digest_received")]  # they come in order

    def __str__(self) -> str:
        return f"Digest {bytes(self.digest).hex()[:16]}"


class RefusedRequest(models.Model):
    """A request that notified nobody: its recipients are not registered, or the tokens are wrong.

    Anybody can make such requests up, so this short row is all that is kept of one, for three days. A repeat gets the
    same answer again and notifies nobody, also if a recipient has registered meanwhile. The table has a partition for
    each day.
    """

    digest = BytesField(primary_key=True)  # 16 bytes, see `storing.digest_of`
    received_at = models.DateTimeField()
    decided = BytesField()  # the verdicts, as in `NotificationRequest.decided`
    bridge = models.TextField()

    class Meta:
        indexes: ClassVar = [BrinIndex(fields=["received_at"], name="refused_request_received")]  # they come in order

    def __str__(self) -> str:
        return f"Refused request {bytes(self.digest).hex()[:16]}"


class RefusedHour(models.Model):
    """A count of the notifications of an hour that refused requests had asked for, for reports of that day.

    It stays for as long as notifications. Each session of the database has rows of its own, as in `BeyondLimit`.
    """

    pk = models.CompositePrimaryKey("begin_at", "bridge", "verdict", "session")
    begin_at = models.DateTimeField()
    bridge = models.TextField()
    verdict = models.SmallIntegerField()  # as in `NotificationRequest.decided`
    session = models.IntegerField()  # the process id of the session
    count = models.PositiveIntegerField()

    def __str__(self) -> str:
        return f"{self.count} of verdict {self.verdict}"


class DecidedAtOnce(models.Model):
    """A push to a registered user that was decided at once, so that staff find it by its recipient.

    Its verdict stands in `NotificationRequest.decided`, at this position. Equal decisions of a request about one
    recipient have one row. The table has a partition for each day.
    """

    RECIPIENT_BYTES = 8

    pk = models.CompositePrimaryKey("recipient", "decided_on", "request", "position")
    recipient = BytesField()  # the first bytes of the key hash
    # There is no cascade, because it would search all rows for each deleted request.
    request = models.ForeignKey(
        NotificationRequest, on_delete=models.DO_NOTHING, related_name="+", db_index=False, db_constraint=False
    )
    position = models.SmallIntegerField()
    decided_on = models.DateField()  # the UTC day

    def __str__(self) -> str:
        return f"Position {self.position} of request {self.request_id}"


class BeyondLimit(models.Model):
    """A count of pushes beyond a limit: of one installation on one UTC day, or of all in one minute.

    Each session of the database has rows of its own, so that no batch waits for another one.
    """

    pk = models.CompositePrimaryKey("recipient", "installation_id", "begin_at", "effect", "push_limit", "session")
    recipient = BytesField()  # as in `DecidedAtOnce`; empty for devices of a bridge without keys
    installation_id = models.TextField(blank=True)  # empty for all installations together
    begin_at = models.DateTimeField()  # of the day, or of the minute
    effect = models.TextField(choices=choices_of(Effect))
    push_limit = models.TextField()  # a `PushLimit`, or a limit of a bridge
    session = models.IntegerField()  # the process id of the session
    count = models.PositiveIntegerField()

    class Meta:
        indexes: ClassVar = [BrinIndex(fields=["begin_at"], name="beyond_limit_begin")]  # for their retention

    def __str__(self) -> str:
        return f"{self.count} {self.effect} by the limit {self.push_limit}"


class NotificationFacts(models.Model):
    """The columns that a notification has while it is open and when it has ended."""

    class State(models.TextChoices):
        PENDING = "pending"  # accepted, without an attempt yet
        IN_FLIGHT = "in_flight"  # one worker is sending it until its lease ends
        RETRYING = "retrying"  # an attempt failed for now; the next one is scheduled
        AMBIGUOUS = "ambiguous"  # an attempt may have reached the device; the next one has the same collapse id
        DELIVERED = "delivered"  # accepted by Apple or Google, according to the gateway
        DEAD_TOKEN = "dead_token"  # the address no longer exists; a sender that still waits gets an error
        # The payload can never be sent, or it failed too often at an address that nothing was ever delivered to.
        UNDELIVERABLE = "undeliverable"
        UNCONFIRMED = "unconfirmed"  # its time is over, and some attempt may have delivered it
        EXPIRED = "expired"  # its time to live ran out before an attempt succeeded
        WITHDRAWN = "withdrawn"  # the recipient unregistered first, or an operator dropped it
        COALESCED = "coalesced"  # a later one to the same address wakes the phone for it; counts as success

        @property
        def is_terminal(self) -> bool:
            return self not in {self.PENDING, self.IN_FLIGHT, self.RETRYING, self.AMBIGUOUS}

    class Reports(models.TextChoices):
        """The answer to the sender. It is fixed once, so that a repeated request gets the same one."""

        SUCCESS = "success"
        WRONG_TOKEN = "wrong_token"
        NOT_REGISTERED = "not_registered"
        INTERNAL_ERROR = "internal_error"

    # Both references hold an id alone, which PostgreSQL does not check.
    request = models.ForeignKey(
        NotificationRequest, on_delete=models.DO_NOTHING, related_name="%(class)ss", db_constraint=False
    )
    position = models.PositiveSmallIntegerField()  # index in the request, whose order the reports keep
    public_key_hash = BytesField()
    installation_id = models.TextField()
    type = models.BigIntegerField()  # an open enum: any 32-bit number
    # The id stays when the route is removed. Clearing it would rewrite everything that was ever sent there.
    route = models.ForeignKey(Route, null=True, on_delete=models.DO_NOTHING, db_constraint=False)
    route_generation = models.PositiveBigIntegerField(default=0)
    state = models.TextField(choices=State.choices)
    # The queue that it waits in, by the id of its row: see `queues`. It is 0 until the notification is sorted into a
    # queue.
    queue_id = models.PositiveIntegerField(default=0, db_default=0)
    # Digest of Status message id, key hash and installation: unique for a day, see `storing`. It is cleared when it may
    # be used again.
    dedup_key = BytesField(null=True)
    # The device replaces an earlier push with the same id. 16 bytes, the same for every attempt.
    collapse_id = BytesField(null=True)
    # The urgency, where the bridge states it (`messages.Grade`). Without a grade the gateway's own settings apply.
    grade = models.TextField(blank=True, default="", db_default="")
    # The payload was too large for Apple or Google, so the push goes without the ciphertext.
    payload_dropped = models.BooleanField(default=False)
    # It waits until the limits allow it, and wakes the phone for all notifications beyond them. It has no content of
    # its own.
    is_wake_up = models.BooleanField(default=False, db_default=False)
    # The limit beyond which it lost its content: a `PushLimit`, or a limit of its bridge.
    shortened_by = models.TextField(blank=True, default="", db_default="")
    attempt_count = models.PositiveIntegerField(default=0)
    # The number of ambiguous attempts. With one of them the push may have been sent.
    ambiguous_count = models.PositiveSmallIntegerField(default=0)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"Notification {self.pk} ({self.state})"


class OpenFacts(models.Model):
    """The columns that a notification has while it is open alone."""

    # The content, where the bridge states it (`messages.Content`).
    chat_id = BytesField(null=True)
    message = BytesField(null=True)
    # The content of a graded notification without its payload. It is sent where the payload is too large, or where
    # there is none.
    wake = BytesField(null=True)
    # Since when it waits for its first push: the arrival of its message, or the time for which it is planned. It is
    # null once a push has begun.
    unsent_since = models.DateTimeField(null=True)

    class Meta:
        abstract = True


class OpenNotification(NotificationFacts, OpenFacts):
    """One push to one installation that has not ended. Workers and operators act on this row alone."""

    # When its next attempt is due. While it is in flight, this is the end of its lease: whoever finds it due then takes
    # it over.
    due_at = models.DateTimeField()
    # The attempt that is under way, or else the last one: see `AttemptFacts`.
    attempt_id = models.BigIntegerField(null=True)
    claimed_at = models.DateTimeField(null=True)
    gateway = models.TextField(blank=True, default="", db_default="")
    token_type = models.PositiveSmallIntegerField(default=0, db_default=0)
    app_topic = models.TextField(blank=True, default="", db_default="")
    is_probe = models.BooleanField(default=False, db_default=False)
    late_code = models.TextField(blank=True, default="", db_default="")
    failure_count = models.PositiveSmallIntegerField(default=0, db_default=0)  # of its attempts with `is_counted`

    class Meta:
        default_permissions = ()
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=models.Q(state__in=["pending", "in_flight", "retrying", "ambiguous"]),
                name="open_notification_state",
            ),
            models.UniqueConstraint(fields=["dedup_key"], name="one_open_notification"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["queue_id", "due_at"], name="notification_due"),  # the head of each queue
            # Notifications that expire while their queue does not move, or is not read.
            models.Index(fields=["expires_at"], name="notification_expiring"),
            models.Index(fields=["public_key_hash", "id"], name="open_by_recipient"),
        ]


class EndedNotification(NotificationFacts):
    """A notification that has ended. The table has a partition for each day on which notifications ended."""

    finished_at = models.DateTimeField(null=True)
    ended_on = models.DateField()  # the UTC day of `finished_at`
    # Where its request has no `reports`. The column goes when all such requests are too old to be kept.
    report = models.TextField(null=True)  # noqa: DJ001 - null: see its request

    class Meta:
        default_permissions = ()
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["dedup_key", "ended_on"],
                condition=models.Q(dedup_key__isnull=False),
                name="one_ended_notification",
            ),
        ]
        indexes: ClassVar = [
            # By recipient, then by id: the console shows the newest notifications of one recipient. The condition is
            # true of all rows. Statements that find rows by another key do not repeat it, so that PostgreSQL does not
            # choose this index for them.
            models.Index(
                fields=["public_key_hash", "id"],
                condition=models.Q(public_key_hash__gt=b""),
                name="notification_by_recipient",
            ),
            # The console's lists by state. Delivered notifications, which are most, are left out. So the usual
            # notification never writes to this index.
            models.Index(
                fields=["state", "id"],
                condition=models.Q(
                    state__in=["dead_token", "undeliverable", "unconfirmed", "expired", "withdrawn", "coalesced"]
                ),
                name="notification_ended",
            ),
            # The ends that the dashboard counts, by time. Delivered notifications are counted by their attempts.
            models.Index(
                fields=["state", "finished_at"],
                condition=models.Q(
                    state__in=["dead_token", "undeliverable", "unconfirmed", "expired", "withdrawn", "coalesced"]
                ),
                name="notification_ended_at",
            ),
        ]


class Notification(NotificationFacts, OpenFacts):
    """One push to one installation, open or ended. It is read from a view, as `NotificationRequest` is.

    The view finds the report to the sender in the row of its request, once that is answered.
    """

    report = models.TextField(choices=NotificationFacts.Reports.choices, null=True)  # noqa: DJ001 - null: not answered
    due_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    ended_on = models.DateField()

    class Meta:
        managed = False
        db_table = "notifications_notification"
        permissions: ClassVar = [("operate_notification", "Can try notifications at once, and drop them")]

    @property
    def next_attempt_at(self) -> datetime | None:
        """Return when the next attempt is due, or None when none is due before the notification expires."""
        is_planned = self.due_at and self.state != self.State.IN_FLIGHT and self.due_at < self.expires_at
        return self.due_at if is_planned else None

    @property
    def lease_until(self) -> datetime | None:
        """Return until when a worker is sending it, or None while it waits or when it has ended."""
        return self.due_at if self.state == self.State.IN_FLIGHT else None


# The columns that a notification keeps when it ends, in SQL, but for its state and its report.
NOTIFICATION: LiteralString = """id, request_id, position, public_key_hash, installation_id, type, route_id,
    route_generation, queue_id, dedup_key, collapse_id, grade, payload_dropped, is_wake_up, shortened_by, attempt_count,
    ambiguous_count, created_at, expires_at"""
# The states of a notification that waits for an attempt.
WAITING = (Notification.State.PENDING, Notification.State.RETRYING, Notification.State.AMBIGUOUS)


class AttemptFacts(models.Model):
    """The columns of an attempt at a gateway."""

    # The notification may be gone: an attempt stays until its own day is dropped.
    notification = models.ForeignKey(
        Notification, on_delete=models.DO_NOTHING, related_name="%(class)ss", db_index=False, db_constraint=False
    )
    number = models.PositiveIntegerField()
    gateway = models.TextField()
    token_type = models.PositiveSmallIntegerField()
    app_topic = models.TextField(blank=True)
    started_at = models.DateTimeField()  # when a batch claimed its push
    began_at = models.DateTimeField(null=True)  # when its POST began; null when nothing was sent, or nobody knows
    ended_at = models.DateTimeField(null=True)  # when its result was known
    # From `Notification.unsent_since` to `began_at`; null for all but the first push.
    waited_ms = models.IntegerField(null=True)
    latency_ms = models.PositiveIntegerField(null=True)
    outcome = models.TextField(choices=choices_of(Outcome), null=True)  # noqa: DJ001 - null: not known yet
    code = models.TextField(blank=True)  # the gateway's error in our words
    # The gateway's error text, without the token and any other detail of one device, so that people can tell errors
    # apart. Only people read it.
    error = models.TextField(blank=True, default="", db_default="")
    is_guarded = models.BooleanField(default=False)  # the same answer also comes when the set-up is wrong
    # The push was sent although a halt covers its queue, to find out whether the halt can end.
    is_probe = models.BooleanField(default=False, db_default=False)
    # It failed at an address that nothing was ever delivered to, while others were delivered: see `UNPROVEN_FAILURES`.
    is_counted = models.BooleanField(default=False, db_default=False)
    # As `code`, but from the gateway's feedback hook. Only operators read it.
    late_code = models.TextField(blank=True, default="", db_default="")

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"Attempt {self.number} of notification {self.notification_id}"


class EndedAttempt(AttemptFacts):
    """An attempt, written with its result: the source of error rates. A late result replaces `worker_lost`.

    The table has a partition for each day on which attempts were claimed. The attempt that is under way stands in its
    `OpenNotification`. Whoever finds that its worker has died writes it as ambiguous.
    """

    class Meta:
        default_permissions = ()
        indexes: ClassVar = [
            models.Index(fields=["started_at"], name="attempt_started"),
            models.Index(fields=["notification", "number"], name="attempt_of_notification"),
            # The newest sends of one app, for its breaker.
            models.Index(fields=["token_type", "app_topic", "started_at"], name="attempt_channel"),
            # The console's lists by outcome and error. Only failures are in it, so that a success costs nothing more.
            models.Index(
                fields=["outcome", "id"],
                condition=models.Q(outcome__in=["dead", "config", "payload", "transient", "ambiguous"]),
                name="attempt_failed",
            ),
            models.Index(fields=["code", "id"], condition=~models.Q(code=""), name="attempt_code"),
        ]


class Attempt(AttemptFacts):
    """One attempt at a gateway, ended or under way. It is read from a view."""

    class Meta:
        managed = False
        db_table = "notifications_attempt"


class Channel(models.Model):
    """One app on one platform that has had a delivery. Operators pause it, and a breaker trips it: see `Halt`."""

    token_type = models.PositiveSmallIntegerField(choices=messages.token_type_choices)
    app_topic = models.TextField(blank=True)  # empty for Firebase, where it means nothing
    last_success_at = models.DateTimeField()  # exact to the minute
    # The end of its last halt. Earlier sends no longer count for its breaker.
    judged_from = models.DateTimeField(null=True)
    # Since when its dead tokens are distrusted, because too many proven ones are refused: see `breakers`.
    deaths_distrusted_since = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["token_type", "app_topic"], name="one_channel_each"),
        ]
        permissions: ClassVar = [("operate_channel", "Can pause, trip and resume apps, and undo disabling")]

    def __str__(self) -> str:
        return f"{self.get_token_type_display()} {self.app_topic}".strip()


class Queue(models.Model):
    """The pushes that wait and are sent together: through one gateway, to one app, to proven addresses or to others.

    A queue is open unless a halt covers it. Apps that nothing was delivered to yet share one queue on each platform,
    because anybody can make up apps.
    """

    id = models.AutoField(primary_key=True)  # a small number, because every notification carries it
    gateway = models.TextField()
    token_type = models.PositiveSmallIntegerField(choices=messages.token_type_choices)
    # The app, as in `Channel`. It is null in the queue shared by all apps that nothing was delivered to yet.
    app_topic = models.TextField(null=True)  # noqa: DJ001 - an empty one is an app, too
    is_proven = models.BooleanField()
    # The number of waiting notifications at the leader's last count.
    waiting_count = models.PositiveBigIntegerField(default=0, db_default=0)
    counted_at = models.DateTimeField(null=True)
    delivered_at = models.DateTimeField(null=True)  # of some delivery, exact to a few seconds

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["gateway", "token_type", "app_topic", "is_proven"], nulls_distinct=False, name="one_queue_each"
            ),
        ]

    def __str__(self) -> str:
        return f"Queue {self.pk}"


class Halts(models.QuerySet["Halt"]):
    """Halts of all times."""

    def in_force(self) -> "Halts":
        """Return those that have not ended."""
        return self.filter(ended_at=None)


class Halt(models.Model):
    """A reason not to send from the queues that it covers: see `halts`. The end of one halt never ends another.

    It is kept as long as notifications, whose timelines show it.
    """

    class Kind(models.TextChoices):
        DRAINED = "drained"  # by an operator: it covers every queue, and ends when an operator starts delivery again
        UNREACHABLE = "unreachable"  # it covers the queues of a gateway, and ends when a probe reaches the gateway
        PAUSED = "paused"  # by an operator: it covers the queues of an app, and ends when an operator resumes the app
        TRIPPED = "tripped"  # by a breaker or an operator: it covers the queues of an app until a probe is answered

    kind = models.TextField(choices=Kind.choices)
    gateway = models.TextField(blank=True, default="")  # of an unreachable gateway
    token_type = models.PositiveSmallIntegerField(
        choices=messages.token_type_choices, null=True
    )  # of a paused or tripped app
    app_topic = models.TextField(blank=True, default="")  # of a paused or tripped app
    since = models.DateTimeField()
    reason = models.TextField(blank=True)
    by = models.TextField(blank=True)  # an operator's name; empty for the server itself
    next_probe_at = models.DateTimeField(null=True)  # when the next push may test whether the halt can end
    probed_route_id = models.BigIntegerField(null=True)  # the route of the last probe: the next one goes to another
    ended_at = models.DateTimeField(null=True)
    ended_by = models.TextField(blank=True, default="", db_default="")  # an operator's name; empty for a probe

    objects = Halts.as_manager()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["kind", "gateway", "token_type", "app_topic"],
                condition=models.Q(ended_at=None),
                nulls_distinct=False,
                name="one_halt_each",
            ),
        ]
        permissions: ClassVar = [("operate_drain", "Can stop and start delivery as a whole")]

    def __str__(self) -> str:
        if self.kind == self.Kind.DRAINED:
            return "Draining"
        subject = self.gateway or str(Channel(token_type=self.token_type or 0, app_topic=self.app_topic))
        return f"{subject} {self.kind}"

    def covers(self, queue: QueueKey) -> bool:
        """Return whether the halt keeps this queue from being sent. `queues.COVERS` is the same in SQL."""
        match self.kind:
            case self.Kind.DRAINED:
                return True
            case self.Kind.UNREACHABLE:
                return self.gateway == queue.gateway
        return (self.token_type, self.app_topic) == (queue.token_type, queue.app_topic)

    def may_be_probed(self, now: datetime) -> bool:
        return self.next_probe_at is not None and self.next_probe_at <= now
