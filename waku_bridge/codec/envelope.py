"""The whole chain between the payload of a WakuMessage and its body.

body → (a registration only: sealed between client and server) → signed message → (a contact code only: ProtocolMessage)
→ signed frame → ECIES to a key, or AES-GCM under the key of a public topic → WakuMessage

Every encoder draws randomness in this order: nonce of a registration's body (12 bytes), padding of the frame (1 to 256;
drawn again while all zero), then for a key the ephemeral private key (32) and the iv (16), for a topic the nonce (12).
The frame and the message in it may have different signers. The author is always the signer of the message.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from coincurve import PublicKey
from google.protobuf.message import DecodeError, Message

from registrations.messages import RegistrationMessage
from waku_bridge.codec import wire
from waku_bridge.codec.errors import (
    BadSignature,
    CodecError,
    EmptyPayload,
    MalformedBody,
    MalformedMessage,
    NotAccepted,
    NotDecryptable,
    Segment,
    TooLarge,
    UnknownType,
    UnsignedFrame,
    UnsignedMessage,
)
from waku_bridge.codec.keys import (
    SIGNATURE_BYTES,
    DecryptionKey,
    Identity,
    RandomBytes,
    build_frame,
    compress,
    keccak256,
    parse_frame,
    parse_public_key,
    recover,
    seal_body,
    seal_on_topic,
    seal_to_key,
    shake256,
    shared_key,
    sign,
    unseal_body,
    unseal_on_topic,
    unseal_to_key,
    verify_grant,
)
from waku_bridge.codec.pb.application_metadata_message_pb2 import ApplicationMetadataMessage
from waku_bridge.codec.pb.protocol_message_pb2 import ProtocolMessage
from waku_bridge.codec.pb.segment_message_pb2 import SegmentMessage
from waku_bridge.codec.wire import MAX_PAYLOAD_BYTES, OutgoingBody
from waku_bridge.messages import (
    Body,
    ContactCodeAdvertisement,
    Decoded,
    MessageType,
    Query,
    Registration,
    WakuMessage,
)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A message ready to publish, and the ids that its answer will carry.

    The answer to a query repeats ``message_id`` (32 bytes). The answer to a registration repeats ``request_id``
    (64 bytes, SHAKE-256 of the sealed body), which is empty for other messages.
    """

    message: WakuMessage
    message_id: bytes
    request_id: bytes = b""


@dataclass(frozen=True, slots=True)
class SignedMessage:
    """An opened ApplicationMetadataMessage (AMM): the author, the type and the id of a message.

    ``author`` (33 bytes) is ``signer`` compressed. The signature covers the payload alone, not the type. The id (32
    bytes) covers all bytes as received, so a re-encoded copy has another id: an id names one message, never its
    content. Source: status-go protocol/v1/message.go, protocol/v1/status_message.go.
    """

    signer: PublicKey
    author: bytes
    message_id: bytes
    type: MessageType
    payload: bytes = field(repr=False)


def decode(
    payload: bytes,
    keys: Sequence[DecryptionKey],
    identity: Identity,
    *,
    accepted: Container[int] = frozenset(MessageType),
) -> Decoded:
    """Open the payload of a WakuMessage.

    ``keys`` are attempted in turn, since several topic names may share one content topic. The identity among them that
    opens the payload is the receiver, or ``identity`` where a topic's key opens it. The receiver opens the body of a
    registration, and the grant in it is checked against the receiver's key.

    A registration that decrypts but does not parse, or that is over a limit, is returned with ``registration=None``,
    because the server has to answer it. A message of a type that is not ``accepted`` is refused before its body is
    parsed, because bodies of other types have no limits and could occupy a core.

    Raises CodecError for everything else that is not a signed push message: see ``errors`` for the reasons.
    """
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise TooLarge
    opened, key = _decrypt(payload, keys)
    data, outer_signer = parse_frame(opened)
    if outer_signer is None:
        raise UnsignedFrame
    message = open_signed(data, accepted)
    recipient = key if isinstance(key, Identity) else None
    if message.type is MessageType.REGISTRATION:
        body: Body = _unseal_registration(message, recipient or identity)
    else:
        body = wire.parse(message.type, message.payload)
    return Decoded(message.author, message.message_id, body, recipient.pub33 if recipient else b"")


def encode(
    body: OutgoingBody,
    *,
    signer: Identity,
    timestamp_ns: int,
    random_bytes: RandomBytes,
    recipient: bytes | None = None,
    topic_key: bytes | None = None,
    outer_signer: Identity | None = None,
) -> Encoded:
    """Sign and encrypt any body, and address it to the topic of its type.

    A query and a contact code are for everybody who knows the topic: ``topic_key`` (32 bytes) is the topic's key. All
    others are sealed for the ``recipient`` (33-byte key). ``outer_signer`` signs the frame, by default the signer
    itself. Both signers of a query should be ephemeral keys, because everybody can open it. status-go signs the frame
    with the sender's identity, and so reveals the sender.

    Raises BadPublicKey when the recipient is no point of the curve, and ValueError when there is neither recipient nor
    topic key, or no recipient for a body that needs one.
    """
    message_type, payload = wire.serialize(body)
    topic_name = _topic_name(body, signer, recipient)
    if recipient is not None and message_type is MessageType.REGISTRATION:
        shared = shared_key(signer.private_key, parse_public_key(recipient))
        payload = seal_body(payload, shared, random_bytes)
    # All entries of a contact code are about the installation of its sender.
    info = body.info if isinstance(body, ContactCodeAdvertisement) else ()
    return encode_payload(
        payload,
        message_type,
        signer=signer,
        topic_name=topic_name,
        timestamp_ns=timestamp_ns,
        random_bytes=random_bytes,
        outer_signer=outer_signer,
        recipient=recipient,
        topic_key=topic_key,
        installation_id=info[0].installation_id if info else "",
    )


def _topic_name(body: OutgoingBody, signer: Identity, recipient: bytes | None) -> str:
    if isinstance(body, Query):
        return wire.query_name(body.public_key_hashes[0])
    if isinstance(body, ContactCodeAdvertisement):
        return wire.contact_code_name(signer.pub33)
    if recipient is None:
        raise ValueError("this message is sealed for one recipient")
    if isinstance(body, RegistrationMessage):
        return wire.personal_name(recipient)
    return wire.partitioned_name(recipient)


def encode_payload(
    payload: bytes,
    message_type: int,
    *,
    signer: Identity,
    topic_name: str,
    timestamp_ns: int,
    random_bytes: RandomBytes,
    outer_signer: Identity | None = None,
    recipient: bytes | None = None,
    topic_key: bytes | None = None,
    installation_id: str = "",
) -> Encoded:
    """Sign and encrypt the bytes of a payload, valid or not, as ``encode`` does. Tests send invalid ones.

    ``installation_id`` is written for a contact code only.
    """
    data, message_id = build_signed(payload, message_type, signer)
    if message_type == MessageType.CONTACT_CODE_ADVERTISEMENT:
        data = wrap(data, installation_id)
    frame = build_frame(data, (outer_signer or signer).private_key, random_bytes)
    sealed = _encrypt(frame, recipient, topic_key, random_bytes)
    message = WakuMessage(sealed, wire.content_topic(topic_name), timestamp_ns)
    request_id = shake256(payload) if message_type == MessageType.REGISTRATION else b""
    return Encoded(message, message_id, request_id)


def _decrypt(payload: bytes, keys: Sequence[DecryptionKey]) -> tuple[bytes, DecryptionKey]:
    """Return the decrypted frame, and the key that opened it. Raises NotDecryptable."""
    for key in keys:
        try:
            if isinstance(key, Identity):
                return unseal_to_key(payload, key.private_key), key
            return unseal_on_topic(payload, key), key
        except NotDecryptable:
            continue
    raise NotDecryptable


def _encrypt(frame: bytes, recipient: bytes | None, topic_key: bytes | None, random_bytes: RandomBytes) -> bytes:
    if recipient is not None:
        return seal_to_key(frame, recipient, random_bytes)
    if topic_key is not None:
        return seal_on_topic(frame, topic_key, random_bytes)
    raise ValueError("neither a recipient nor a topic key to encrypt to")


def _unseal_registration(message: SignedMessage, identity: Identity) -> Registration:
    """Open the body of a registration, and check its grant. An unregistration needs none.

    Raises BodyNotDecryptable. The server does not answer such a message, because anybody could make it publish then.
    """
    content = unseal_body(message.payload, shared_key(identity.private_key, message.signer))
    request_id = shake256(message.payload)
    try:
        body = wire.parse_registration(content)
    except (MalformedBody, TooLarge):
        return Registration(request_id, content, None)
    if body.unregister or len(body.grant) != SIGNATURE_BYTES:  # so it costs no key recovery
        return Registration(request_id, content, body)
    is_granted = verify_grant(body.grant, client=message.author, server=identity.pub33, access_token=body.access_token)
    return Registration(request_id, content, body, is_granted)


# The signed message ---------------------------------------------------------------------------------------------------
_KECCAK_BYTES = 32
_BEGIN_OF_SEGMENT = b"\x0a\x20"  # field 1, 32 bytes
_MESSAGE_TYPES = {int(each): each for each in MessageType}  # a dict costs a third of the enum's call
M = TypeVar("M", bound=Message)


def open_signed(data: bytes, accepted: Container[int] = frozenset(MessageType)) -> SignedMessage:
    """Open the data of a frame.

    It is read as an AMM, then as ProtocolMessage.public_message (the contact code), then as SegmentMessage. Any of the
    three may parse as another, so the order and the length of the signature decide. status-go reads them the other way
    round, which accepts the same real messages.

    Raises NotAccepted for a type that is not in ``accepted``, and UnsignedMessage, BadSignature, EmptyPayload,
    UnknownType, Segment or MalformedMessage.
    """
    amm = _read(ApplicationMetadataMessage, data)
    if amm is None or not _is_ours(amm):
        wrapper = _read(ProtocolMessage, data)
        if wrapper is None or not wrapper.public_message:  # other data, or the message is encrypted
            raise Segment if _is_segment(data) else _fault(amm)
        data = wrapper.public_message
        amm = _read(ApplicationMetadataMessage, data)
        if amm is None or not _is_ours(amm):
            raise _fault(amm)
    if amm.type not in accepted:
        raise NotAccepted
    if not amm.payload:
        raise EmptyPayload
    signer = recover(amm.signature, amm.payload)
    pub65 = signer.format(compressed=False)
    return SignedMessage(signer, compress(pub65), keccak256(pub65 + data), _MESSAGE_TYPES[amm.type], amm.payload)


def build_signed(payload: bytes, message_type: int, signer: Identity) -> tuple[bytes, bytes]:
    """Return the bytes of a signed AMM, and its message id."""
    amm = ApplicationMetadataMessage(
        signature=sign(payload, signer.private_key),
        payload=payload,
        type=message_type,  # type: ignore[arg-type]  # open enum
    ).SerializeToString()
    return amm, keccak256(signer.pub65 + amm)


def wrap(amm: bytes, installation_id: str) -> bytes:
    """Return the ProtocolMessage of a contact code. Its bundles are optional, and left out."""
    return ProtocolMessage(installation_id=installation_id, public_message=amm).SerializeToString()


def _read(kind: type[M], data: bytes) -> M | None:
    try:
        return kind.FromString(data)
    except DecodeError:
        return None


def _is_ours(amm: ApplicationMetadataMessage) -> bool:
    return len(amm.signature) == SIGNATURE_BYTES and amm.type in _MESSAGE_TYPES


def _fault(amm: ApplicationMetadataMessage | None) -> CodecError:
    """Return the reason why an AMM cannot be used, for the operator's statistics."""
    if amm is None:
        return MalformedMessage()
    if amm.type not in _MESSAGE_TYPES:
        return UnknownType()
    return BadSignature() if amm.signature else UnsignedMessage()


def _is_segment(data: bytes) -> bool:
    """Return whether the data is a segment: a 32-byte hash and a payload, as newer status-go requires.

    By wire types alone an AMM would pass as well. Every writer begins with the hash, so other data is not parsed again.
    """
    segment = _read(SegmentMessage, data) if data.startswith(_BEGIN_OF_SEGMENT) else None
    return segment is not None and len(segment.entire_message_hash) == _KECCAK_BYTES and bool(segment.payload)
