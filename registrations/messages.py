"""What registering and querying clients say, as plain values.

These dataclasses travel between the steps of a message's way. They know neither Django nor protobuf: the codec
builds them from bytes, the rules read them, the use cases store them. Secrets are left out of every repr.
"""

from dataclasses import dataclass, field
from enum import IntEnum


class TokenType(IntEnum):
    """The kind of a device token. These are wire values; the enum is open, so a message carries a plain int."""

    UNKNOWN = 0
    APN = 1
    FIREBASE = 2


@dataclass(frozen=True, slots=True)
class RegistrationMessage:
    """The fields of PushNotificationRegistration, as the client sent them."""

    installation_id: str
    version: int
    token_type: int = TokenType.UNKNOWN
    device_token: str = field(default="", repr=False)
    app_topic: str = ""
    access_token: str = field(default="", repr=False)
    grant: bytes = field(default=b"", repr=False)
    enabled: bool = False
    unregister: bool = False
    allow_from_contacts_only: bool = False
    block_mentions: bool = False
    allowed_key_list: tuple[bytes, ...] = field(default=(), repr=False)
    blocked_chat_list: tuple[bytes, ...] = field(default=(), repr=False)
    muted_chat_list: tuple[bytes, ...] = field(default=(), repr=False)
    allowed_mentions_chat_list: tuple[bytes, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class QueryInfo:
    """One installation as a sender who asked for it is told (PushNotificationQueryInfo).

    Exactly one of ``access_token`` (open) and ``allowed_key_list`` (contacts only) is filled. ``server_public_key`` (33
    bytes) is the server that the grant is for; on the wire it stands in advertisements only.
    """

    public_key_hash: bytes
    installation_id: str
    version: int
    grant: bytes
    access_token: str = field(default="", repr=False)
    allowed_key_list: tuple[bytes, ...] = field(default=(), repr=False)
    server_public_key: bytes = b""


@dataclass(frozen=True, slots=True)
class Named:
    """An installation as a message names it. Without an ``access_token`` it was its own key that signed the message, a
    registration of this ``version``.
    """

    public_key_hash: bytes
    installation_id: str
    access_token: str | None = field(default=None, repr=False)
    version: int = 0

    @property
    def installation(self) -> tuple[bytes, str]:
        """Return what tells the installation from others."""
        return self.public_key_hash, self.installation_id
