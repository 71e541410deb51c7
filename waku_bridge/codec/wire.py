"""The seven inner messages, from bytes to dataclasses and back, with the limits of their size, and their topics.

Strings that are not UTF-8 make the whole message malformed. Unknown fields are skipped, and unknown enum values are
kept as numbers, as proto3 requires. status-go has no limits. They cost an honest client nothing, and they keep one
message from occupying a worker, the database or, through query answers, the network.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from hashlib import pbkdf2_hmac, sha256
from operator import attrgetter
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError, Message

from notifications.messages import PushNotification, PushRequest, Report
from registrations.messages import QueryInfo, RegistrationMessage
from waku_bridge.codec.errors import MalformedBody, TooLarge
from waku_bridge.codec.keys import chat_key, keccak256
from waku_bridge.codec.pb import push_notifications_pb2 as pb
from waku_bridge.codec.pb.waku_message_pb2 import WakuMessage as WakuMessageBytes
from waku_bridge.messages import (
    ContactCodeAdvertisement,
    MessageType,
    PushResponse,
    Query,
    QueryResponse,
    RegistrationResponse,
    WakuMessage,
)

# Encrypted payload of a WakuMessage: the limit of status-go's relay. nwaku forwards 150 KiB.
MAX_PAYLOAD_BYTES = 1024 * 1024
# Decrypted registration, query or request: nwaku's 150 KiB less a reserve for the wrapping.
MAX_BODY_BYTES = 128 * 1024
# Encrypted payload that a server stores: the largest body and its wrapping.
MAX_ENVELOPE_BYTES = MAX_BODY_BYTES + 4 * 1024
# Entries of each list of a registration. One is 64 bytes, and every query answer repeats the list of allowed keys.
MAX_LIST_ENTRIES = 2000
# Each text of a registration, in UTF-8. Tokens of Apple and Firebase have 64 to some 200 characters today.
MAX_TOKEN_BYTES = 4 * 1024
# Key hashes in one query. status-go asks for one at a time.
MAX_QUERY_KEYS = 100
# Notifications in one request: as many as a gateway takes in one call by default. status-go sends one per device.
MAX_NOTIFICATIONS = 100
# Key hash in a request. A longer one belongs to nobody, and would not fit the index.
MAX_KEY_HASH_BYTES = 64
# Installation id and message id in a request. Both are stored and answered. Honest ones have 36 and 32 bytes.
MAX_ID_BYTES = 256
# Fields that a message with a list may have beside its entries: the known ones, and some of a later version.
OTHER_FIELDS = 16

# Bodies that travel in clear inside the signed message: all but the registration.
PlainBody = RegistrationResponse | Query | QueryResponse | PushRequest | PushResponse | ContactCodeAdvertisement
OutgoingBody = RegistrationMessage | PlainBody


def parse(message_type: MessageType, payload: bytes) -> PlainBody:
    """Read the payload of an ApplicationMetadataMessage of any type but REGISTRATION.

    Raises MalformedBody or TooLarge.
    """
    return _parse(message_type, payload)  # type: ignore[no-any-return]  # the class follows from the type


def parse_registration(content: bytes) -> RegistrationMessage:
    """Read a decrypted registration. Raises MalformedBody or TooLarge."""
    return _parse(MessageType.REGISTRATION, content)  # type: ignore[no-any-return]


def serialize(body: OutgoingBody) -> tuple[MessageType, bytes]:
    """Return the message type of a body, and its bytes with the fields in ascending order.

    A query without keys becomes empty bytes, which no receiver dispatches.
    """
    message_type = TYPES[type(body)]
    return message_type, _BODIES[message_type].shape.write(body).SerializeToString()


def _parse(message_type: MessageType, payload: bytes) -> Any:
    shape, max_bytes, max_entries = _BODIES[message_type]
    if len(payload) > max_bytes or (max_entries and has_more_fields(payload, max_entries + OTHER_FIELDS)):
        raise TooLarge
    try:
        message = shape.wire.FromString(payload)
    except DecodeError as error:
        raise MalformedBody from error
    if _is_over_limit(message):
        raise TooLarge
    return shape.read(message)


def _is_over_limit(message: Message) -> bool:
    """Return whether a text or a list is over its limit. It is not copied into objects of ours then."""
    match message:
        case pb.PushNotificationRequest():
            is_id_too_long = len(message.message_id) > MAX_ID_BYTES
            is_too_long = is_id_too_long or len(message.requests) > MAX_NOTIFICATIONS
            return is_too_long or any(map(_has_long_name, message.requests))
        case pb.PushNotificationQuery():
            return len(message.public_keys) > MAX_QUERY_KEYS
        case pb.PushNotificationRegistration():
            texts, lists = _REGISTRATION_TEXTS(message), _REGISTRATION_LISTS(message)
            is_text_too_long = any(len(text.encode()) > MAX_TOKEN_BYTES for text in texts)
            return is_text_too_long or any(len(entries) > MAX_LIST_ENTRIES for entries in lists)
    return False


_REGISTRATION_TEXTS = attrgetter("installation_id", "device_token", "apn_topic", "access_token")
_REGISTRATION_LISTS = attrgetter(
    "allowed_key_list", "blocked_chat_list", "muted_chat_list", "allowed_mentions_chat_list"
)


def _has_long_name(item: pb.PushNotification) -> bool:
    return len(item.public_key) > MAX_KEY_HASH_BYTES or len(item.installation_id.encode()) > MAX_ID_BYTES


def has_more_fields(data: bytes, limit: int) -> bool:
    """Return whether a message has more than ``limit`` fields, without parsing it.

    So a body of a hundred thousand empty entries costs no more than one with the allowed number. Bytes that are not
    well-formed are left to the parser.
    """
    at = count = 0
    try:
        while at < len(data) and count <= limit:
            at = _skip(data, at)
            count += 1
    except (IndexError, ValueError):
        return False
    return count > limit


def _skip(data: bytes, at: int) -> int:
    """Return the end of the field that begins at ``at``.

    The begin and the end of a group count as a field each. If a group were left to the parser, one before a hundred
    thousand entries would hide them from the count.

    Raises IndexError beyond the end of the data, and ValueError for an unknown wire type or an overlong varint.
    """
    tag, at = _varint(data, at)
    match tag & 7:
        case 0:
            return _varint(data, at)[1]
        case 1:
            return at + 8
        case 2:
            length, at = _varint(data, at)
            return at + length
        case 3 | 4:
            return at
        case 5:
            return at + 4
    raise ValueError("unknown wire type")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while (byte := data[at]) & 0x80:
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if shift > 63:
            raise ValueError("overlong varint")
    return value | byte << shift, at + 1


class _Shape:
    """A dataclass and its protobuf class, which are copied field by field.

    Fields are on the wire under their own names, unless ``renamed`` has another one. ``entries`` has the shapes of the
    messages in lists. Fields that the wire does not have are left out.
    """

    def __init__(
        self,
        plain: type[Any],
        wire: type[Message],
        renamed: Mapping[str, str] | None = None,
        **entries: "_Shape",
    ) -> None:
        self.plain, self.wire = plain, wire
        on_wire = wire.DESCRIPTOR.fields_by_name
        renaming = ((each.name, (renamed or {}).get(each.name, each.name)) for each in fields(plain))
        names = {name: wire_name for name, wire_name in renaming if wire_name in on_wire}
        self._wire_names = list(names.values())
        self._of_wire, self._of_plain = _getter(self._wire_names), _getter(list(names))
        numbered = enumerate(names.items())
        self._lists = [(i, entries.get(name)) for i, (name, wire_name) in numbered if on_wire[wire_name].is_repeated]

    def read(self, message: Any) -> Any:
        """Return the dataclass with the values of a message."""
        values = self._of_wire(message)
        if self._lists:
            values = list(values)
            for index, shape in self._lists:
                values[index] = tuple(map(shape.read, values[index]) if shape else values[index])
        return self.plain(*values)

    def write(self, body: Any) -> Message:
        """Return the message with the values of a dataclass."""
        values = list(self._of_plain(body))
        for index, shape in self._lists:
            if shape:
                values[index] = list(map(shape.write, values[index]))
        return self.wire(**dict(zip(self._wire_names, values, strict=True)))


def _getter(names: Sequence[str]) -> Callable[[Any], Sequence[Any]]:
    """Return a function that returns the values of these attributes, also a single one in a sequence."""
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda source: [get(source)]


class _Body(NamedTuple):
    shape: _Shape
    max_bytes: int = MAX_PAYLOAD_BYTES
    max_entries: int | None = None


_KEY = {"public_key_hash": "public_key"}
_INFO = _Shape(QueryInfo, pb.PushNotificationQueryInfo, _KEY)
_REPORT = _Shape(Report, pb.PushNotificationReport, _KEY)
_NOTIFICATION = _Shape(PushNotification, pb.PushNotification, _KEY)
_ADVERTISED = {"info": "push_notification_info"}
_QUERIED = {"public_key_hashes": "public_keys"}
_REQUESTED = {"notifications": "requests"}
_REGISTERED = {"app_topic": "apn_topic"}
_BODIES = {
    MessageType.CONTACT_CODE_ADVERTISEMENT: _Body(
        _Shape(ContactCodeAdvertisement, pb.ContactCodeAdvertisement, _ADVERTISED, info=_INFO)
    ),
    MessageType.REGISTRATION: _Body(
        _Shape(RegistrationMessage, pb.PushNotificationRegistration, _REGISTERED), MAX_BODY_BYTES
    ),
    MessageType.REGISTRATION_RESPONSE: _Body(_Shape(RegistrationResponse, pb.PushNotificationRegistrationResponse)),
    MessageType.QUERY: _Body(_Shape(Query, pb.PushNotificationQuery, _QUERIED), MAX_BODY_BYTES, MAX_QUERY_KEYS),
    MessageType.QUERY_RESPONSE: _Body(_Shape(QueryResponse, pb.PushNotificationQueryResponse, info=_INFO)),
    MessageType.REQUEST: _Body(
        _Shape(PushRequest, pb.PushNotificationRequest, _REQUESTED, notifications=_NOTIFICATION),
        MAX_BODY_BYTES,
        MAX_NOTIFICATIONS,
    ),
    MessageType.RESPONSE: _Body(_Shape(PushResponse, pb.PushNotificationResponse, reports=_REPORT)),
}
TYPES = {body.shape.plain: message_type for message_type, body in _BODIES.items()}

# Topics, and hash and bytes of a message (14/WAKU2-MESSAGE) -----------------------------------------------------------
#
# A content topic is the hash of a topic name. The symmetric key of a public topic is derived from the name, as from a
# password. Source of the names: status-go protocol/transport/topic.go, wakuv2/common/topic.go, wakuv2/waku.go.

PREFIX, SUFFIX = "/waku/1/0x", "/rfc26"
CONTENT_TOPIC_LENGTH = len(PREFIX) + 8 + len(SUFFIX)
PARTITIONS = 5000
SYMMETRIC_KEY_ROUNDS = 65356  # not 65536: a typo in the reference client that became the protocol


def partitioned_name(public_key: bytes) -> str:
    """Return the partitioned topic of a key (33 bytes), for requests to a server and for every answer.

    The keys of all users are spread over 5000 such topics.
    """
    return f"contact-discovery-{int.from_bytes(public_key[1:33], 'big') % PARTITIONS}"


def personal_name(public_key: bytes) -> str:
    """Return the topic of one key (33 bytes), for registrations. The spec text names the partitioned topic instead."""
    return "contact-discovery-" + chat_key(public_key).removeprefix("0x")


def contact_code_name(public_key: bytes) -> str:
    """Return the topic on which a client (33-byte key) advertises where it can be reached."""
    return chat_key(public_key) + "-contact-code"


def query_name(public_key_hash: bytes) -> str:
    """Return the topic of queries about a key hash: its bare hex. No client uses the spec text's form with ``0x``."""
    return public_key_hash.hex()


def topic(name: str) -> bytes:
    """Return the 4 bytes that a name is shortened to. Two names may share one topic."""
    return keccak256(name.encode())[:4]


def content_topic(name: str) -> str:
    """Return ``/waku/1/0x<8 hex digits>/rfc26``, as Waku routes it."""
    return topic_of_number(int.from_bytes(topic(name)))


def topic_of_number(topic: int) -> str:
    """Return the content topic of 4 bytes that are given as an integer."""
    return f"{PREFIX}{topic:08x}{SUFFIX}"


def topic_number(content_topic: str) -> int | None:
    """Return the 4 bytes in a content topic of the canonical form, as an integer, or None.

    Other spellings of a number (capitals, signs, underscores) are other topics to Waku, and so to us.
    """
    if len(content_topic) != CONTENT_TOPIC_LENGTH or not content_topic.startswith(PREFIX):
        return None
    try:
        topic = int(content_topic[len(PREFIX) : -len(SUFFIX)], 16)
    except ValueError:
        return None
    return topic if topic >= 0 and content_topic == topic_of_number(topic) else None


def symmetric_key(name: str) -> bytes:
    """Return the 32-byte key of a public topic, derived from its name.

    It costs about 15 ms of CPU time by design, so derive it once and keep it.
    """
    return pbkdf2_hmac("sha256", name.encode(), b"", SYMMETRIC_KEY_ROUNDS, 32)


def message_hash(pubsub_topic: str, message: WakuMessage) -> bytes:
    """Return the deterministic hash (32 bytes) that identifies a message in caches, in the store protocol and here.

    It is SHA-256 of pubsub topic ‖ payload ‖ content topic ‖ meta ‖ timestamp (8 bytes, big-endian two's complement).
    Version and ephemeral are not part of it. Raises OverflowError when the timestamp does not fit 64 signed bits.
    """
    timestamp = message.timestamp_ns.to_bytes(8, "big", signed=True)
    parts = (pubsub_topic.encode(), message.payload, message.content_topic.encode(), message.meta, timestamp)
    return sha256(b"".join(parts)).digest()


def serialize_message(message: WakuMessage) -> bytes:
    """Write a WakuMessage as status-go does: an empty ``meta`` and ``ephemeral=false`` are written out."""
    return WakuMessageBytes(
        payload=message.payload,
        content_topic=message.content_topic,
        version=message.version,
        timestamp=message.timestamp_ns,
        meta=message.meta,
        ephemeral=message.ephemeral,
    ).SerializeToString()
