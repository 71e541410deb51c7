"""ApplicationMetadataMessage (AMM): the author, the type and the id of a message.

The signature covers the payload alone, not the type. The id covers all bytes as received, so a re-encoded copy has
another id: an id names one message, never its content.
Source: status-go protocol/v1/message.go, protocol/v1/status_message.go.
"""

from collections.abc import Container
from dataclasses import dataclass, field

from coincurve import PublicKey
from google.protobuf.message import DecodeError

from waku_bridge.codec.errors import (
    BadSignature,
    CodecError,
    EmptyPayload,
    MalformedMessage,
    NotAccepted,
    Segment,
    UnknownType,
    UnsignedMessage,
)
from waku_bridge.codec.keys import SIGNATURE_BYTES, Identity, compress, keccak256, recover, sign
from waku_bridge.codec.pb.application_metadata_message_pb2 import ApplicationMetadataMessage
from waku_bridge.codec.pb.protocol_message_pb2 import ProtocolMessage
from waku_bridge.codec.pb.segment_message_pb2 import SegmentMessage
from waku_bridge.messages import MessageType

_KECCAK_BYTES = 32
_BEGIN_OF_SEGMENT = b"\x0a\x20"  # field 1, 32 bytes
_MESSAGE_TYPES = {
    int(message_type): message_type for message_type in MessageType
}  # a dict costs a third of the enum's call


@dataclass(frozen=True, slots=True)
class SignedMessage:
    """An opened AMM. ``author`` (33 bytes) is ``signer`` compressed; ``message_id`` has 32 bytes."""

    signer: PublicKey
    author: bytes
    message_id: bytes
    type: MessageType
    payload: bytes = field(repr=False)


def parse(data: bytes, accepted: Container[int] = frozenset(MessageType)) -> SignedMessage:
    """Open the data of a frame.

    It is read as an AMM, then as ProtocolMessage.public_message (the contact code), then as SegmentMessage. Any of the
    three may parse as another, so the order and the length of the signature decide. status-go reads them the other way
    round, which accepts the same real messages.

    Raises NotAccepted for a type that is not in ``accepted``, and UnsignedMessage, BadSignature, EmptyPayload,
    UnknownType, Segment or MalformedMessage.
    """
    amm = _parse_amm(data)
    if amm is None or not _is_ours(amm):
        return _parse_wrapped(data, amm, accepted)
    return _open(amm, data, accepted)


def build(payload: bytes, message_type: int, signer: Identity) -> tuple[bytes, bytes]:
    """Return the bytes of a signed AMM, and its message id."""
    signature = sign(payload, signer.private_key)
    amm = ApplicationMetadataMessage(
        signature=signature,
        payload=payload,
        type=message_type,  # type: ignore[arg-type]  # open enum
    ).SerializeToString()
    return amm, message_id(signer.pub65, amm)


def wrap(amm: bytes, installation_id: str) -> bytes:
    """Return the ProtocolMessage of a contact code. Its bundles are optional, and left out."""
    return ProtocolMessage(installation_id=installation_id, public_message=amm).SerializeToString()


def message_id(pub65: bytes, amm: bytes) -> bytes:
    """Return Keccak-256 (32 bytes) of the signer's uncompressed key and the AMM exactly as received."""
    return keccak256(pub65 + amm)


def _open(amm: ApplicationMetadataMessage, data: bytes, accepted: Container[int]) -> SignedMessage:
    if amm.type not in accepted:
        raise NotAccepted
    payload = amm.payload
    if not payload:
        raise EmptyPayload
    signer = recover(amm.signature, payload)
    pub65 = signer.format(compressed=False)
    return SignedMessage(signer, compress(pub65), message_id(pub65, data), _MESSAGE_TYPES[amm.type], payload)


def _parse_wrapped(data: bytes, unusable: ApplicationMetadataMessage | None, accepted: Container[int]) -> SignedMessage:
    public_message = _public_message(data)
    if public_message:
        amm = _parse_amm(public_message)
        if amm is None or not _is_ours(amm):
            raise _fault(amm)
        return _open(amm, public_message, accepted)
    raise Segment if _is_segment(data) else _fault(unusable)


def _is_ours(amm: ApplicationMetadataMessage) -> bool:
    return len(amm.signature) == SIGNATURE_BYTES and amm.type in _MESSAGE_TYPES


def _fault(amm: ApplicationMetadataMessage | None) -> CodecError:
    """Return the reason why an AMM cannot be used, for the operator's statistics."""
    if amm is None:
        return MalformedMessage()
    if amm.type not in _MESSAGE_TYPES:
        return UnknownType()
    return BadSignature() if amm.signature else UnsignedMessage()


def _parse_amm(data: bytes) -> ApplicationMetadataMessage | None:
    try:
        return ApplicationMetadataMessage.FromString(data)
    except DecodeError:
        return None


def _public_message(data: bytes) -> bytes:
    """Return the public part of a ProtocolMessage. It is empty for other data, and where the message is encrypted."""
    try:
        return ProtocolMessage.FromString(data).public_message
    except DecodeError:
        return b""


def _is_segment(data: bytes) -> bool:
    """Return whether the data is a segment: a 32-byte hash and a payload, as newer status-go requires.

    By wire types alone an AMM would pass as well. Every writer begins with the hash, so other data is not parsed again.
    """
    if not data.startswith(_BEGIN_OF_SEGMENT):
        return False
    try:
        segment = SegmentMessage.FromString(data)
    except DecodeError:
        return False
    return len(segment.entire_message_hash) == _KECCAK_BYTES and bool(segment.payload)
