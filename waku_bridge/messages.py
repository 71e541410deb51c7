"""Messages that travel between the node, the codec and the use cases: plain values, without Django and protobuf."""

from dataclasses import dataclass, field
from enum import IntEnum

from notifications.messages import PushRequest, Report
from registrations.messages import QueryInfo, RegistrationMessage

BRIDGE = "waku"  # the name of this bridge in the database
LEADER = "push-bridge"  # the name of the sessions of its reading processes


class MessageType(IntEnum):
    """The types of ApplicationMetadataMessage that concern push notifications, in wire values."""

    CONTACT_CODE_ADVERTISEMENT = 15
    REGISTRATION = 16
    REGISTRATION_RESPONSE = 17
    QUERY = 18
    QUERY_RESPONSE = 19
    REQUEST = 20
    RESPONSE = 21


class RegistrationError(IntEnum):
    """The error of an answer (PushNotificationRegistrationResponse.ErrorType), in wire values."""

    NONE = 0
    MALFORMED_MESSAGE = 1
    VERSION_MISMATCH = 2
    UNSUPPORTED_TOKEN_TYPE = 3
    INTERNAL_ERROR = 4


@dataclass(frozen=True, slots=True)
class WakuMessage:
    """A message of Waku (14/WAKU2-MESSAGE). ``timestamp_ns`` is the sender's Unix time as a signed 64-bit number."""

    payload: bytes
    content_topic: str
    timestamp_ns: int
    version: int = 1
    ephemeral: bool = False
    meta: bytes = b""


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message as received, with the hash (32 bytes) that names it."""

    hash: bytes
    pubsub_topic: str
    message: WakuMessage


@dataclass(frozen=True, slots=True)
class Registration:
    """A REGISTRATION whose body decrypted under the author's shared key.

    ``content`` is the decrypted body, which is compared to recognise a retransmission. ``registration`` is None when
    the body does not parse. ``request_id`` (64 bytes) is SHAKE-256 of the encrypted body.
    """

    request_id: bytes
    content: bytes = field(repr=False)
    registration: RegistrationMessage | None = field(repr=False)
    grant_verified: bool = False


@dataclass(frozen=True, slots=True)
class RegistrationResponse:
    """Our answer to a REGISTRATION."""

    request_id: bytes
    success: bool
    error: int = RegistrationError.NONE


@dataclass(frozen=True, slots=True)
class Query:
    """A sender's query for the installations of these key hashes."""

    public_key_hashes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class QueryResponse:
    """Our answer to a QUERY. ``message_id`` is the id of that query (32 bytes)."""

    message_id: bytes
    success: bool
    info: tuple[QueryInfo, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class PushResponse:
    """Our answer to a REQUEST. ``message_id`` is the one in the request, not the id of the Waku or metadata message."""

    message_id: bytes
    reports: tuple[Report, ...] = ()


@dataclass(frozen=True, slots=True)
class ContactCodeAdvertisement:
    """Where a client can be reached, published by the client itself."""

    info: tuple[QueryInfo, ...] = field(default=(), repr=False)


ReplyBody = RegistrationResponse | QueryResponse | PushResponse  # what a server answers
Body = (
    Registration | RegistrationResponse | Query | QueryResponse | PushRequest | PushResponse | ContactCodeAdvertisement
)


@dataclass(frozen=True, slots=True)
class Decoded:
    """One decoded message: its author, its id, and its body.

    ``author`` is the compressed key (33 bytes) that signed the ApplicationMetadataMessage, never the outer frame's.
    ``recipient`` is the key (33 bytes) that it was sealed for, and empty when everybody could open it.
    """

    author: bytes
    message_id: bytes
    body: Body
    recipient: bytes = b""
