"""What senders ask for and what we answer, as plain values.

These dataclasses travel between the steps of a message's way. They know neither Django nor protobuf.
"""

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import NamedTuple

from registrations.token_types import has_topic


class NotificationType(IntEnum):
    """The occasion that the recipient is woken for. These are wire values; the enum is open, so a message carries a
    plain int.
    """

    UNKNOWN = 0
    MESSAGE = 1
    MENTION = 2
    REQUEST_TO_JOIN_COMMUNITY = 3
    CONTACT_REQUEST = 4  # the number is unconfirmed: it was seen by name only in status-go of 2026-06


class Grade(StrEnum):
    """How urgently a push is to reach its device, where the bridge says so."""

    VOIP = "voip"  # a call that rings now, or not at all
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"  # nothing that a person is to be shown


@dataclass(frozen=True, slots=True)
class Content:
    """What a graded push shows and brings, as its bridge has put it together.

    ``text`` and ``sound`` are for the person, and only where the platform shows something by itself. ``data`` are the
    texts that the app reads.
    """

    text: str = field(default="", repr=False)
    sound: str = ""
    data: Mapping[str, str] = field(default_factory=dict, repr=False)

    def encode(self) -> bytes:
        """Return the content as it is stored with the notification."""
        return json.dumps([self.text, self.sound, dict(self.data)], ensure_ascii=False).encode()

    @classmethod
    def decode(cls, stored: bytes) -> "Content":
        """Return a stored content."""
        text, sound, data = json.loads(stored)
        return cls(text, sound, data)


# Occasions with limits of their own, so that a flood of messages does not hide them.
APART = frozenset(
    {NotificationType.MENTION, NotificationType.REQUEST_TO_JOIN_COMMUNITY, NotificationType.CONTACT_REQUEST}
)


class ReportError(IntEnum):
    """The error of a report (PushNotificationReport.ErrorType), in wire values."""

    NONE = 0
    WRONG_TOKEN = 1
    INTERNAL_ERROR = 2
    NOT_REGISTERED = 3


@dataclass(frozen=True, slots=True)
class PushNotification:
    """One push to one installation, as a sender asks for it.

    ``public_key_hash``, ``chat_id`` and ``author`` are SHAKE-256 hashes (64 bytes) when the sender is honest;
    ``message`` is opaque to us. None of the lengths is guaranteed.
    """

    public_key_hash: bytes
    installation_id: str
    access_token: str = field(repr=False)
    type: int
    chat_id: bytes = b""
    author: bytes = b""
    message: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class PushRequest:
    """What a sender sends (PushNotificationRequest).

    ``message_id`` names the Status message notified about and is opaque to us.
    """

    message_id: bytes
    notifications: tuple[PushNotification, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """Our answer for one notification of a request."""

    public_key_hash: bytes
    installation_id: str
    success: bool
    error: int = ReportError.NONE


@dataclass(frozen=True, slots=True)
class Answer:
    """The reports due to a sender, in the order of its request.

    ``bridge`` took the request. ``source_key`` and ``reply_address`` are what it stored with the request, and mean
    nothing to anybody else.
    """

    bridge: str
    source_key: bytes
    reply_address: bytes
    message_id: bytes
    reports: tuple[Report, ...]


class ChannelKey(NamedTuple):
    """The name of one app on one platform, whose pushes are set up, break and are mended together."""

    token_type: int
    app_topic: str


def channel_key(token_type: int, app_topic: str) -> ChannelKey:
    """Return the channel of an address. Where tokens belong to no app, its app topic means nothing."""
    return ChannelKey(token_type, app_topic if has_topic(token_type) else "")


class QueueKey(NamedTuple):
    """What is sent together: through one gateway to one app, to addresses that are proven or to others.

    ``app_topic`` is None where it stands for all apps of the platform that nothing was delivered to yet.
    """

    gateway: str
    token_type: int
    app_topic: str | None
    is_proven: bool


def queue_key(gateway: str, app: ChannelKey, delivered: Container[ChannelKey], *, is_proven: bool) -> QueueKey:
    """Return the queue that a push to an app belongs to. ``delivered`` are the apps that something was delivered to."""
    if app in delivered:
        return QueueKey(gateway, app.token_type, app.app_topic, is_proven)
    return QueueKey(gateway, app.token_type, None, is_proven=False)


class Outcome(StrEnum):
    """How one attempt at a gateway ended."""

    DELIVERED = "delivered"  # accepted by Apple or Google
    DEAD = "dead"  # the address no longer exists
    CONFIG = "config"  # an operator must act; the address is fine
    PAYLOAD = "payload"  # this push can never be sent; the address is fine
    TRANSIENT = "transient"  # not sent; to be sent again later
    AMBIGUOUS = "ambiguous"  # may have been sent


# What counts as a failure of a gateway: neither a dead token nor a payload that can never be sent is one.
FAILURES = (Outcome.CONFIG, Outcome.TRANSIENT, Outcome.AMBIGUOUS)
# The code of a result when the gateway itself could not be reached, so that nothing was sent.
UNREACHABLE = "unreachable"
# The code of a result when the connection to the gateway broke before there was an answer.
CUT_OFF = "cut_off"
# The code of a result that was taken and sent nowhere, as the push asked for.
DRY_RUN = "dry_run"
# The code of a result when the gateway was stopped and gave up what it was sending.
CANCELLED = "cancelled"
# The code of a result when the gateway's connection to Apple or Google broke before there was an answer.
CONNECTION_LOST = "connection_lost"


@dataclass(frozen=True, slots=True)
class Push:
    """One notification on its way to one device, as a gateway needs it.

    ``address`` is a document that only the gateway of the route reads. ``collapse_id`` (at most 64 characters) is the
    same in every attempt, so that the device shows a repeat once.

    A push with a ``grade`` brings along what it shows: ``message`` and ``wake`` are then contents, with the payload and
    without it, and it is of no use after ``expires_at``.
    """

    notification_id: int
    attempt_number: int
    channel: ChannelKey
    address: bytes = field(repr=False)
    type: int
    public_key_hash: bytes
    chat_id: bytes
    message: bytes = field(repr=False)
    collapse_id: str
    grade: str = ""
    wake: bytes = field(default=b"", repr=False)
    is_payload_dropped: bool = False
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What a gateway said about one push. ``code`` is a fixed word of ours, never the gateway's own text.

    ``retry_after_seconds`` is what the gateway asked for, and ``retry_base_seconds`` is where the backoff of this error
    starts (0: where it always does). ``is_guarded`` says that tokens that are fine get the same answer when the set-up
    is wrong. ``is_untried`` says that the push was found faulty before anything was sent, ``is_dry_run`` that it was
    taken and sent nowhere. ``unknown_signature`` is what remains of an error text that no rule knows, without anything
    secret or of one device, and ``error`` is the same of any error text.
    """

    outcome: Outcome
    code: str = ""
    retry_after_seconds: float = 0.0
    latency_ms: int = 0
    is_guarded: bool = False
    is_untried: bool = False
    is_dry_run: bool = False
    retry_base_seconds: float = 0.0
    unknown_signature: str = ""
    # Only for people to read, and so no part of what a result means.
    error: str = field(default="", compare=False)
