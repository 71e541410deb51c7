"""What senders ask for and what we answer, as plain values.

These dataclasses travel between the stages of a message's life. They know neither Django nor protobuf.
"""

from dataclasses import dataclass, field
from enum import IntEnum


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

    ``public_key_hash``, ``chat_id`` and ``author`` are SHAKE-256 hashes (64 bytes) when the sender is honest; ``message``
    is opaque to us. None of the lengths is guaranteed.
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
