"""Registrations, query answers and addresses as plain values, without Django and protobuf.

The codec builds them from bytes, the rules read them, and the use cases store them. Rule: no secret appears in a repr.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

# Kinds of device tokens. Each gateway registers the kinds that it takes -----------------------------------------------

_kinds: dict[int, "TokenKind"] = {}
UNKNOWN_PLATFORM = "none"


@dataclass(frozen=True, slots=True)
class TokenKind:
    """A kind of device token.

    ``number`` is the stored value, ``name`` the word for people, ``platform`` the word in metrics and reports, and
    ``devices`` the word for people's devices with such a token, such as "iPhone". With ``has_topic``, a token belongs
    to one app, and all pushes of an app depend on the same credentials. Otherwise app topics of clients are ignored.
    """

    number: int
    name: str
    platform: str
    has_topic: bool = False
    devices: str = ""


def register_token_kinds(*kinds: TokenKind) -> None:
    """Register kinds of tokens. Several gateways may take the same kind."""
    _kinds.update({kind.number: kind for kind in kinds})


def token_kinds() -> list[TokenKind]:
    """Return all kinds, sorted by number."""
    return [_kinds[number] for number in sorted(_kinds)]


def kind_of(number: int) -> TokenKind | None:
    """Return the kind of a number, or None for one that is no longer registered."""
    return _kinds.get(number)


def token_type_choices() -> list[tuple[int, str]]:
    """Return the choices of a column with the number of a kind."""
    return [(kind.number, kind.name) for kind in token_kinds()]


def platform_of(number: int) -> str:
    """Return the word for a platform in metrics and reports."""
    return _kinds[number].platform if number in _kinds else UNKNOWN_PLATFORM


def has_topic(number: int) -> bool:
    """Return whether tokens of this kind belong to one app."""
    return number in _kinds and _kinds[number].has_topic


def name_of(number: int) -> str:
    """Return the name of a kind for people, or the number of a kind that is no longer registered."""
    kind = kind_of(number)
    return kind.name if kind else str(number)


def devices_of(number: int) -> str:
    """Return the word for devices with tokens of this kind."""
    kind = kind_of(number)
    return (kind and kind.devices) or name_of(number)


def sql_case(column: str, words: Iterable[tuple[int, str]], otherwise: str) -> str:
    """Return an SQL expression for the word of a column's number. The words must be constants of our code."""
    cases = " ".join(f"WHEN {number} THEN '{word}'" for number, word in words)
    return f"CASE {column} {cases} ELSE '{otherwise}' END" if cases else f"'{otherwise}'"


def sql_platform(column: str) -> str:
    """Return an SQL expression that equals `platform_of`."""
    return sql_case(column, [(kind.number, kind.platform) for kind in token_kinds()], UNKNOWN_PLATFORM)


def sql_with_topic() -> str:
    """Return the numbers of the kinds with a topic, as an SQL list."""
    return f"({', '.join(str(kind.number) for kind in token_kinds() if kind.has_topic) or 'NULL'})"


# Messages -------------------------------------------------------------------------------------------------------------

InstallationKey = tuple[bytes, str]  # key hash, installation id


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
    def installation(self) -> InstallationKey:
        """Return the identity of the installation."""
        return self.public_key_hash, self.installation_id


# Exactly the texts that google/uuid's Parse accepts, because status-go uses it. uuid.UUID would also accept dashes in
# wrong places. Parse accepts any two bytes in place of braces around the 36 characters.
_DASHED = "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
_UUID = re.compile(
    rf"[0-9a-fA-F]{{32}}|{_DASHED}|[uU][rR][nN]:[uU][uU][iI][dD]:{_DASHED}|[\x00-\x7f]{_DASHED}[\x00-\x7f]"
)


def is_uuid(text: str) -> bool:
    """Return whether google/uuid's Parse accepts the text.

    This says nothing about equality: ids are compared as the original text.
    """
    return _UUID.fullmatch(text) is not None


# Addresses ------------------------------------------------------------------------------------------------------------

_FIELDS = {"token", "call_token", "environment"}


class Environment(StrEnum):
    """The environment of Apple to which a token belongs."""

    PRODUCTION = "production"
    DEVELOPMENT = "development"


@dataclass(frozen=True, slots=True)
class DeviceAddress:
    """The address of one device at Apple or Google, in the format that its route stores.

    Most devices have one token, which is stored unchanged. A device that also receives calls, or whose app is built for
    Apple's sandbox, has a JSON document instead. No token begins with `{`. ``call_token`` is Apple's token for calls.
    An empty ``environment`` means the gateway's setting.
    """

    token: str = field(repr=False)
    call_token: str = field(default="", repr=False)
    environment: str = ""

    def encode(self) -> bytes:
        """Return the address in the format that its route stores."""
        if not self.call_token and not self.environment:
            return self.token.encode()
        fields = {"token": self.token, "call_token": self.call_token, "environment": self.environment}
        return json.dumps({name: value for name, value in fields.items() if value}, sort_keys=True).encode()


def read_address(address: bytes) -> DeviceAddress:
    """Return the device of a stored address.

    Raises ValueError (or its subclass UnicodeDecodeError) for bytes that are no address of a device.
    """
    text = address.decode()
    if not text.startswith("{"):
        return DeviceAddress(text)
    fields = json.loads(text)
    if not (
        fields.keys() <= _FIELDS and fields.get("token") and all(isinstance(each, str) for each in fields.values())
    ):
        raise ValueError("no address of a device")
    return DeviceAddress(**fields)


# Identity of an address at Apple, where the same token in another app is another address.
_AT_APPLE = b"%d %s\0"


def identity_of(token_type: int, app_topic: str, address: bytes) -> bytes:
    """Return the input of an address digest: the address, and its app if tokens of this type belong to an app.

    A delivery to a token in one app proves nothing about the same token in another app. At Apple only the device token
    counts. Its environment and its token for calls do not make it another device.
    """
    if not has_topic(token_type):
        return address
    return _AT_APPLE % (len(app_topic.encode()), app_topic.encode()) + _token(address)


def _token(address: bytes) -> bytes:
    try:
        return read_address(address).token.encode()
    except ValueError:  # the gateway has addresses in another format
        return address
