"""Plain values for the requests of senders and the answers to them.

These dataclasses pass between the steps that process a message. They import neither Django nor protobuf.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import NamedTuple

from registrations.messages import has_topic


class NotificationType(IntEnum):
    """The occasion of a push, in wire values. The enum is open, so a message carries a plain int."""

    UNKNOWN = 0
    MESSAGE = 1
    MENTION = 2
    REQUEST_TO_JOIN_COMMUNITY = 3
    CONTACT_REQUEST = 4  # number unconfirmed: status-go of 2026-06 shows it by name only


class Grade(StrEnum):
    """The urgency of a push, where the bridge states one."""

    VOIP = "voip"  # a call that rings now or not at all
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"  # shows nothing to a person


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a graded push, as its bridge composed it.

    ``text`` and ``sound`` are for the person, on platforms that show pushes by themselves. ``data`` are the texts that
    the app reads.
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


# Types with limits of their own, so that a flood of messages does not hide them.
APART = frozenset(
    {NotificationType.MENTION, NotificationType.REQUEST_TO_JOIN_COMMUNITY, NotificationType.CONTACT_REQUEST}
)


class PushLimit(StrEnum):
    """A limit of pushes (docs/limits.md). What becomes of a push beyond it is an `Effect`.

    A bucket has one limit for bursts, and one for the long run.
    """

    ADDRESS = "address"
    ADDRESS_LONG = "address_long"
    APART = "apart"  # of an address, for the types in `APART`
    APART_LONG = "apart_long"
    SENDER = "sender"
    SENDER_LONG = "sender_long"
    SERVER = "server"
    SERVER_LONG = "server_long"
    WAITING = "waiting"  # of the pushes that wait for an address
    QUEUE = "queue"  # of the pushes that wait in a queue

    @property
    def long(self) -> "PushLimit":
        """Return the limit for the long run of the same bucket."""
        return PushLimit(f"{self}_long")


class Effect(StrEnum):
    """The effect of a limit on a push beyond it."""

    MERGED = "merged"  # another push to the same address wakes the phone for it
    SHORTENED = "shortened"  # it goes out as a wake-up, without its content
    REFUSED = "refused"  # its sender receives an error


class ReportError(IntEnum):
    """The error of a report (PushNotificationReport.ErrorType), in wire values."""

    NONE = 0
    WRONG_TOKEN = 1
    INTERNAL_ERROR = 2
    NOT_REGISTERED = 3


@dataclass(frozen=True, slots=True)
class PushNotification:
    """One push to one installation, as a sender requests it.

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
    """One request of a sender (PushNotificationRequest).

    ``message_id`` is the id of the Status message that the pushes are about. It is opaque to us.
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

    ``bridge`` took the request. ``source_key`` and ``reply_address`` are what it stored with the request. No other
    module reads them. ``is_traceable`` says whether anything about the request is kept that staff could find.
    """

    bridge: str
    source_key: bytes
    reply_address: bytes
    message_id: bytes
    reports: tuple[Report, ...]
    is_traceable: bool = field(default=True, compare=False)


class AppKey(NamedTuple):
    """One app on one platform. Its pushes share one set-up, so they fail and recover together."""

    token_type: int
    app_topic: str


def app_key(token_type: int, app_topic: str) -> AppKey:
    """Return the app of an address. The app topic is dropped for platforms whose tokens belong to no app."""
    return AppKey(token_type, app_topic if has_topic(token_type) else "")


class QueueKey(NamedTuple):
    """The pushes that are sent together: through one gateway, to one app, to proven addresses or to unproven ones.

    ``app_topic`` is None for the queue shared by all apps of the platform that nothing was delivered to yet.
    """

    gateway: str
    token_type: int
    app_topic: str | None
    is_proven: bool


class Outcome(StrEnum):
    """The result of one attempt at a gateway."""

    DELIVERED = "delivered"  # accepted by Apple or Google
    DEAD = "dead"  # the address no longer exists
    CONFIG = "config"  # an operator must act; the address is fine
    PAYLOAD = "payload"  # this push can never be sent; the address is fine
    TRANSIENT = "transient"  # not sent; is sent again later
    AMBIGUOUS = "ambiguous"  # may have been sent


# Outcomes that count as failures of a gateway. Dead tokens and payloads that can never be sent do not.
FAILURES = (Outcome.CONFIG, Outcome.TRANSIENT, Outcome.AMBIGUOUS)
# Outcomes that Apple or Google decided about one push.
ANSWERS = (Outcome.DELIVERED, Outcome.DEAD, Outcome.PAYLOAD)
# Code of a result with `Result.is_unreached`. The flag counts, because a rule of the gateway may give any code.
UNREACHABLE = "unreachable"
# Code of a result: the gateway could not reach Apple or Google, so nothing was sent.
PROVIDER_UNREACHABLE = "provider_unreachable"
# Code of a result: Apple takes no more pushes to this one device for a while. It says nothing about the app.
DEVICE_LIMITED = "TooManyRequests"
# Code of a result: the connection to the gateway broke before an answer came.
CUT_OFF = "cut_off"
# Code of a result: no answer came in time.
TIMEOUT = "timeout"
# Code of a result: the gateway took the push and sent it nowhere, as the push asked for.
DRY_RUN = "dry_run"
# Code of a result: the gateway was stopped and gave up its pushes in flight.
CANCELLED = "cancelled"
# Code of a result: the gateway's connection to Apple or Google broke before an answer came.
CONNECTION_LOST = "connection_lost"


@dataclass(frozen=True, slots=True)
class Push:
    """One notification on its way to one device, as a gateway needs it.

    Only the gateway of the route reads ``address``. ``collapse_id`` (at most 64 characters) is the same in every
    attempt, so that the device shows a repeat once.

    A push with a ``grade`` brings along what it shows: ``message`` and ``wake`` are then encoded contents, with the
    payload and without it. Such a push is of no use after ``expires_at``.
    """

    notification_id: int
    attempt_number: int
    app: AppKey
    address: bytes = field(default=b"", repr=False)
    type: int = 0
    public_key_hash: bytes = b""
    chat_id: bytes = b""
    message: bytes = field(default=b"", repr=False)
    collapse_id: str = ""
    grade: str = ""
    wake: bytes = field(default=b"", repr=False)
    is_payload_dropped: bool = False
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one push at its gateway. ``code`` is a fixed word of ours, never the gateway's own text.

    ``retry_after_seconds`` is the pause that the gateway asked for. ``retry_base_seconds`` is the first pause of this
    error's backoff, or 0 for the usual one. ``is_guarded`` says that valid tokens get the same answer when the set-up
    is wrong. ``is_untried`` says that nothing was sent, because the push is faulty or there is no gateway for it.
    ``is_unreached`` says that the client of this process failed to connect to the gateway. ``is_dry_run`` says that the
    gateway took it and sent it nowhere. ``error`` is the gateway's error text, redacted: nothing secret and nothing of
    one device is left in it. ``began_at`` and ``ended_at`` are when sending began and when the result was known, by the
    database's clock. The process that sends fills in what the gateway leaves out.
    """

    outcome: Outcome
    code: str = ""
    retry_after_seconds: float = 0.0
    latency_ms: int = 0
    is_guarded: bool = False
    is_untried: bool = False
    is_unreached: bool = False
    is_dry_run: bool = False
    retry_base_seconds: float = 0.0
    # Only people read these, so results that differ in them are equal.
    error: str = field(default="", compare=False)
    began_at: datetime | None = field(default=None, compare=False)
    ended_at: datetime | None = field(default=None, compare=False)
