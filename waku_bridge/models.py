"""The tables of Waku: the inbox of envelopes, the outbox of replies, and the progress of reading stores.

Payloads are dropped as soon as they are not needed any more. Hashes stay for deduplication.

Envelopes and replies that are open have a table each, in which workers look for work. The statement that ends a row
deletes it there, and inserts it into the history, which has a partition for each day on which rows ended: see
`kit.db.partitions`. A view of both serves whoever reads.
"""

from typing import ClassVar, LiteralString

from django.db import models
from django.db.models.functions import Now

from kit.db.fields import BytesField
from waku_bridge.messages import MessageType


class EnvelopeFault(models.Model):
    """A fault of ours that envelopes failed by: one row for each kind of error and location. See `faults`."""

    error = models.TextField()  # its type, and the constraint that broke
    location = models.TextField(blank=True)  # the innermost frame in our own code: file and function
    line = models.PositiveIntegerField(default=0)  # the line of its last occurrence
    count = models.PositiveBigIntegerField(default=0)
    first_seen_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["error", "location"], name="one_fault_per_location")]

    def __str__(self) -> str:
        file, _, function = self.location.partition(" in ")
        return f"{self.error} at {file}:{self.line} in {function}" if self.location else self.error


class EnvelopeHash(models.Model):
    """The hash of an envelope that came, which identifies its copies.

    The table has a partition for each day of the sender's clock. The hash covers that clock's time, so a hash can be in
    one partition only, and the unique keys of all partitions together are one unique key.
    """

    hash = BytesField(primary_key=True)  # 32 bytes
    sent_on = models.DateField()

    def __str__(self) -> str:
        return f"Envelope hash {bytes(self.hash).hex()[:16]}"


class EnvelopeFacts(models.Model):
    """The columns that an envelope has while it waits and when it has ended."""

    class State(models.TextChoices):
        RECEIVED = "received"
        POSTPONED = "postponed"  # opened, and about no proven address while the inbox was behind: see `steps`
        PENDING_KEY = "pending_key", "Pending key"  # until the key of its topic is derived; exported by this name
        PROCESSED = "processed"
        DROPPED = "dropped"  # not answered, with a `reason`
        FAILED = "failed"  # by a fault of ours; the payload is kept so that it can be processed again

        @property
        def is_terminal(self) -> bool:
            return self not in {self.RECEIVED, self.POSTPONED, self.PENDING_KEY}

    class Types(models.IntegerChoices):
        CONTACT_CODE_ADVERTISEMENT = MessageType.CONTACT_CODE_ADVERTISEMENT, "contact code"
        REGISTRATION = MessageType.REGISTRATION, "registration"
        REGISTRATION_RESPONSE = MessageType.REGISTRATION_RESPONSE, "registration response"
        QUERY = MessageType.QUERY, "query"
        QUERY_RESPONSE = MessageType.QUERY_RESPONSE, "query response"
        REQUEST = MessageType.REQUEST, "request"
        RESPONSE = MessageType.RESPONSE, "response"

    class Path(models.TextChoices):
        LIVE = "live"
        STORE = "store"
        BACKFILL = "backfill"  # from a store as well, for a topic that was new

    hash = BytesField(primary_key=True)  # 32 bytes
    pubsub_topic = models.TextField()
    content_topic = models.TextField()
    timestamp_ns = models.BigIntegerField()  # the sender's clock
    payload = BytesField(null=True)  # encrypted; dropped once processed
    state = models.TextField(choices=State.choices, default=State.RECEIVED)
    source = models.TextField()  # the node that brought it first
    path = models.TextField(choices=Path.choices, db_default=Path.LIVE)  # the path on which it came first
    received_at = models.DateTimeField()

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"Envelope {bytes(self.hash).hex()[:16]}"


class EndedEnvelopeFacts(models.Model):
    """The columns that an envelope has when it has ended alone."""

    reason = models.TextField(blank=True)  # the reason of a drop, a refusal or a failure
    # The fault that it failed by. There is no constraint in the database, because a fault may be removed earlier.
    fault = models.ForeignKey(
        EnvelopeFault, on_delete=models.DO_NOTHING, null=True, db_index=False, db_constraint=False, related_name="+"
    )
    message_type = models.PositiveSmallIntegerField(choices=EnvelopeFacts.Types.choices, null=True)
    message_id = BytesField(null=True)  # id of the metadata message, 32 bytes
    processed_at = models.DateTimeField(null=True)
    ended_on = models.DateField()  # the UTC day of `processed_at`

    class Meta:
        abstract = True


class OpenEnvelope(EnvelopeFacts):
    """An envelope that waits in the inbox."""

    due_at = models.DateTimeField(db_default=Now())  # when it is taken: at once, or later if it comes again
    attempt_count = models.PositiveSmallIntegerField(default=0, db_default=0)  # how often it came again

    class Meta:
        default_permissions = ()
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=models.Q(state__in=["received", "postponed", "pending_key"]), name="open_envelope_state"
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["state", "due_at", "timestamp_ns"], name="envelope_due"),
            models.Index(fields=["received_at"], name="open_envelope_received"),  # for lists of the console
        ]


class EndedEnvelope(EnvelopeFacts, EndedEnvelopeFacts):
    """An envelope that has ended. The table has a partition for each day on which envelopes ended."""

    class Meta:
        default_permissions = ()
        indexes: ClassVar = [
            models.Index(fields=["received_at"], name="envelope_received"),
            # For lists of the console. Processed envelopes, which are nearly all, are left out: an index of them would
            # add a cost to each.
            models.Index(
                fields=["state", "received_at"],
                condition=models.Q(state__in=["dropped", "failed"]),
                name="envelope_not_processed",
            ),
            # For the envelopes of one fault, when an operator has them processed again.
            models.Index(fields=["fault", "received_at"], condition=models.Q(state="failed"), name="envelope_fault"),
            models.Index(
                fields=["message_type", "received_at"],
                condition=models.Q(message_type__in=[15, 16, 17, 18, 19, 21]),  # all but requests
                name="envelope_type",
            ),
            models.Index(fields=["reason", "received_at"], condition=~models.Q(reason=""), name="envelope_reason"),
        ]


class InboundEnvelope(EnvelopeFacts, EndedEnvelopeFacts):
    """One Waku message on a topic of ours, by its deterministic hash (14/WAKU2-MESSAGE).

    It is read from a view of open and ended envelopes. In the view, an open one ends on the last possible day.
    """

    class Meta:
        managed = False
        db_table = "waku_bridge_inboundenvelope"
        verbose_name = "envelope"
        permissions: ClassVar = [("operate_inboundenvelope", "Can process failed envelopes again, and drop them")]


# The columns that an envelope keeps when it ends, in SQL, but for its state and its payload.
ENVELOPE: LiteralString = "hash, pubsub_topic, content_topic, timestamp_ns, source, path, received_at"


# Replies that no node took or no store had. An unconfirmed reply without a repetition does not count: no store answered
# about it, or none was asked.
LOST_REPLIES = models.Q(state="abandoned") | models.Q(state="unconfirmed", repeat_count__gt=0)


class ReplyFacts(models.Model):
    """The columns that a reply has while it is open and when it has ended."""

    class State(models.TextChoices):
        PENDING = "pending"  # is being sent, or waits for a node to take it
        PUBLISHED = "published"  # a node took it, and no store has it or answers so far
        CONFIRMED = "confirmed"  # a store node has it
        UNCONFIRMED = "unconfirmed"  # a node took it, but no store had it in time, answered in time, or was asked
        ABANDONED = "abandoned"  # no node took it while a client could still wait for it

        @property
        def is_terminal(self) -> bool:
            return self not in {self.PENDING, self.PUBLISHED}

    envelope_hash = BytesField()  # hash of the envelope that it answers
    part = models.PositiveSmallIntegerField(default=0)  # long query answers are sent in several messages
    message_type = models.PositiveSmallIntegerField(choices=InboundEnvelope.Types.choices)
    pubsub_topic = models.TextField()
    content_topic = models.TextField()
    timestamp_ns = models.BigIntegerField()
    message_hash = BytesField(null=True)  # its hash in stores (32 bytes), once a node took it
    state = models.TextField(choices=State.choices, default=State.PENDING)
    attempt_count = models.PositiveSmallIntegerField(default=0)  # how often nodes were offered it, by what is known
    # How often it was published again because no store had it.
    repeat_count = models.PositiveSmallIntegerField(default=0)
    created_at = models.DateTimeField()
    published_at = models.DateTimeField(null=True)  # when it was published last
    node = models.TextField(blank=True)  # the node that took it last

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"Reply {self.pk} ({self.get_message_type_display()}, {self.state})"


class OpenReplyFacts(models.Model):
    """The columns that a reply has while it is open alone."""

    payload = BytesField(null=True)  # encrypted
    due_at = models.DateTimeField(null=True)  # when anybody may act on it: of a claimed one the end of the lease
    # It leaves no history, because anybody can cause any number of such replies.
    is_discarded = models.BooleanField(default=False, db_default=False)
    # Stores are asked for it. If not, it ends when a node has taken it.
    needs_confirmation = models.BooleanField(default=True, db_default=True)

    class Meta:
        abstract = True


class OpenReply(ReplyFacts, OpenReplyFacts):
    """A reply that is being sent, or waits for a node or a store: see `outbound.outbox`."""

    class Meta:
        default_permissions = ()
        constraints: ClassVar = [
            models.CheckConstraint(condition=models.Q(state__in=["pending", "published"]), name="open_reply_state"),
            models.UniqueConstraint(fields=["envelope_hash", "part"], name="one_open_reply"),
        ]
        indexes: ClassVar = [models.Index(fields=["due_at"], name="open_reply_due")]


class EndedReply(ReplyFacts):
    """A reply that has ended. The table has a partition for each day on which replies ended."""

    confirmed_at = models.DateTimeField(null=True)
    ended_on = models.DateField()  # the UTC day on which it got its last state

    class Meta:
        default_permissions = ()
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["envelope_hash", "part", "ended_on"], name="one_reply_per_envelope"),
        ]
        indexes: ClassVar = [
            # For lists of the console. Nearly all other replies are confirmed.
            models.Index(
                fields=["id"], condition=models.Q(state__in=["unconfirmed", "abandoned"]), name="reply_given_up"
            ),
            # For the count of lost replies on the dashboard, and for lists of lost and abandoned ones: where no store
            # answers, nearly all of the index above is unconfirmed ones.
            models.Index(fields=["created_at"], condition=LOST_REPLIES, name="reply_lost"),
        ]


class OutboundReply(ReplyFacts, OpenReplyFacts):
    """One message of ours, sealed for its receiver. There is at most one for each envelope and part.

    It is read from a view of open and ended replies. In the view, an open reply ends on the last possible day.
    """

    confirmed_at = models.DateTimeField(null=True)
    ended_on = models.DateField()

    class Meta:
        managed = False
        db_table = "waku_bridge_outboundreply"
        verbose_name = "reply"
        verbose_name_plural = "replies"


class StoreWatermark(models.Model):
    """How far a node's store was read for a shard: by the clock of our database, never a position in its pages."""

    node = models.TextField()
    pubsub_topic = models.TextField()
    watermark_at = models.DateTimeField()  # everything up to this time was read when it was at least a minute old
    late_searched_at = models.DateTimeField()  # everything that was 65 minutes old then was read again

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["node", "pubsub_topic"], name="one_watermark_per_node_and_topic"),
        ]

    def __str__(self) -> str:
        return f"Watermark {self.pk}"


class DeadLetter(models.Model):
    """A message that may have been for us and cannot be read, as the node wrote it. Its payload is encrypted."""

    digest = BytesField(primary_key=True)  # SHA-256 of the whole message
    reason = models.TextField()
    pubsub_topic = models.TextField()
    content_topic = models.TextField(blank=True)
    raw = models.TextField()  # JSON, cut off at `dead_letters.MAX_RAW_CHARACTERS`
    size_bytes = models.PositiveIntegerField()  # size of the whole message
    source = models.TextField()
    path = models.TextField(choices=InboundEnvelope.Path.choices)
    received_at = models.DateTimeField(db_index=True)

    class Meta:
        permissions: ClassVar = [("operate_deadletter", "Can read dead letters again, and drop them")]

    def __str__(self) -> str:
        return f"Dead letter {bytes(self.digest).hex()[:16]}"


class CanaryEnvelope(models.Model):
    """The hash of a message that the canary published. It marks the envelope as no real traffic."""

    hash = BytesField(primary_key=True)  # 32 bytes
    marked_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"Canary envelope {bytes(self.hash).hex()[:16]}"
