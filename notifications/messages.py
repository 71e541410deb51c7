"""What senders ask for and what we answer, as plain values.

These dataclasses travel between the stages of a message's life. They know neither Django nor protobuf.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple

from registrations.messages import TokenType


class NotificationType(IntEnum):
    """What the recipient is woken for. Wire values; the enum is open, so a message carries a plain int."""

    UNKNOWN = 0
    MESSAGE = 1
    MENTION = 2
    REQUEST_TO_JOIN_COMMUNITY = 3
    CONTACT_REQUEST = 4  # number unconfirmed: seen by name only in status-go of 2026-06


class ReportError(IntEnum):
    """PushNotificationReport.ErrorType, wire values."""

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
    """PushNotificationRequest. ``message_id`` names the Status message notified about and is opaque to us."""

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
    """The reports due to a sender, in the order of its request. ``reply_to`` (33 bytes) signed the request."""

    envelope_hash: bytes
    reply_to: bytes
    message_id: bytes
    reports: tuple[Report, ...]


class ChannelKey(NamedTuple):
    """One app on one platform: what is set up, breaks and is mended together."""

    token_type: int
    apn_topic: str


def channel_key(token_type: int, apn_topic: str) -> ChannelKey:
    """The app topic counts at Apple only: a Firebase registration may carry one, and it means nothing."""
    return ChannelKey(token_type, apn_topic if token_type == TokenType.APN else "")


# What gorush calls the two.
PLATFORMS: Mapping[int, str] = {TokenType.APN: "ios", TokenType.FIREBASE: "android"}
TOKEN_TYPES = {name: token_type for token_type, name in PLATFORMS.items()}


def platform(token_type: int) -> str:
    return PLATFORMS.get(token_type, "none")


class Outcome(StrEnum):
    """How one try at a gateway ended."""

    DELIVERED = "delivered"  # accepted by Apple or Google
    DEAD = "dead"  # the address no longer exists
    CONFIG = "config"  # an operator must act; the address is fine
    PAYLOAD = "payload"  # this push can never be sent; the address is fine
    TRANSIENT = "transient"  # not sent; try again later
    AMBIGUOUS = "ambiguous"  # may have been sent


# The code of a result when the gateway itself could not be reached, so that nothing was sent.
UNREACHABLE = "unreachable"
# The code of a result when the connection to the gateway broke before there was an answer.
CUT_OFF = "cut_off"
# The code of a result when the gateway was stopped and gave up what it was sending.
CANCELLED = "cancelled"
# The code of a result when the gateway's connection to Apple or Google broke before there was an answer.
CONNECTION_LOST = "connection_lost"
# The code of a result when gorush took a push of the canary and was told to send it nowhere.
DRY_RUN = "dry_run"


@dataclass(frozen=True, slots=True)
class Push:
    """One notification on its way to one device, as a gateway needs it.

    ``collapse_id`` (at most 64 characters) is the same in every attempt, so that the device shows a repeat once.
    """

    notification_id: int
    attempt_number: int
    token_type: int
    device_token: str = field(repr=False)
    apn_topic: str
    type: int
    public_key_hash: bytes
    chat_id: bytes
    message: bytes = field(repr=False)
    collapse_id: str


@dataclass(frozen=True, slots=True)
class Result:
    """What a gateway said about one push. ``code`` is a fixed word of ours, never the gateway's own text.

    ``retry_after_seconds`` is what the gateway asked for, ``retry_base_seconds`` where the backoff of this error starts
    (0: where it always does). ``is_guarded``: tokens that are fine get the same answer when the set-up is wrong.
    ``unknown_signature`` is what remains of an error text that no rule knows, without anything secret or of one device.
    """

    outcome: Outcome
    code: str = ""
    retry_after_seconds: float = 0.0
    latency_ms: int = 0
    is_guarded: bool = False
    retry_base_seconds: float = 0.0
    unknown_signature: str = ""
