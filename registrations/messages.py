"""What registering and querying clients say, as plain values.

These dataclasses travel between the stages of a message's life. They know neither Django nor protobuf: the codec
builds them from bytes, the rules read them, the use cases store them.
"""

from dataclasses import dataclass
from enum import IntEnum


class TokenType(IntEnum):
    """Whose address a device token is. Wire values; the enum is open, so a message carries a plain int."""

    UNKNOWN = 0
    APN = 1
    FIREBASE = 2


@dataclass(frozen=True, slots=True)
class RegistrationMessage:
    """PushNotificationRegistration, field by field, as the client sent it."""

    installation_id: str
    version: int
    token_type: int = TokenType.UNKNOWN
    device_token: str = ""
    apn_topic: str = ""
    access_token: str = ""
    grant: bytes = b""
    enabled: bool = False
    unregister: bool = False
    allow_from_contacts_only: bool = False
    block_mentions: bool = False
    allowed_key_list: tuple[bytes, ...] = ()
    blocked_chat_list: tuple[bytes, ...] = ()
    muted_chat_list: tuple[bytes, ...] = ()
    allowed_mentions_chat_list: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class QueryInfo:
    """One installation as told to a sender who asked for it (PushNotificationQueryInfo).

    Exactly one of ``access_token`` (open) and ``allowed_key_list`` (contacts only) is filled. ``server_public_key``
    (33 bytes) is filled in advertisements only.
    """

    public_key_hash: bytes
    installation_id: str
    version: int
    grant: bytes
    access_token: str = ""
    allowed_key_list: tuple[bytes, ...] = ()
    server_public_key: bytes = b""
