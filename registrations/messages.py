"""Registrations and query answers as plain values, without Django and protobuf.

The codec builds them from bytes, the rules read them, and the use cases store them. Rule: no secret appears in a repr.
"""

from dataclasses import dataclass, field
from enum import IntEnum


class TokenType(IntEnum):
    """The kind of a device token, with its value on the wire. The wire enum is open, so messages have a plain int."""

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
    """One installation in the answer to a query (PushNotificationQueryInfo).

    It has either ``access_token`` (open) or ``allowed_key_list`` (contacts only). ``server_public_key`` (33 bytes) is
    the server of the grant; on the wire only advertisements have it. ``has_proven_address`` is never on the wire.
    """

    public_key_hash: bytes
    installation_id: str
    version: int
    grant: bytes
    access_token: str = field(default="", repr=False)
    allowed_key_list: tuple[bytes, ...] = field(default=(), repr=False)
    server_public_key: bytes = b""
    has_proven_address: bool = False


@dataclass(frozen=True, slots=True)
class Named:
    """An installation that a message names. Without an ``access_token``, the message is a registration of this
    ``version``, signed with the installation's own key.
    """

    public_key_hash: bytes
    installation_id: str
    access_token: str | None = field(default=None, repr=False)
    version: int = 0

    @property
    def installation(self) -> tuple[bytes, str]:
        """Return the identity of the installation."""
        return self.public_key_hash, self.installation_id
