"""The whole chain between the payload of a WakuMessage and its body.

body → (a registration only: sealed between client and server) → signed message → (a contact code only: ProtocolMessage)
→ signed frame → ECIES to a key, or AES-GCM under the key of a public topic → WakuMessage

Every encoder draws randomness in this order: nonce of a registration's body (12 bytes), padding of the frame (1 to 256;
drawn again while all zero), then for a key the ephemeral private key (32) and the iv (16), for a topic the nonce (12).
The frame and the message in it may have different signers. The author is always the signer of the message.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass

from coincurve import PrivateKey

from notifications.messages import PushRequest
from registrations.messages import RegistrationMessage
from waku_bridge.codec import bodies, frame, metadata, topics
from waku_bridge.codec.bodies import OutgoingBody
from waku_bridge.codec.crypto import ecies, symmetric
from waku_bridge.codec.crypto.grants import verify_grant
from waku_bridge.codec.errors import CodecError, MalformedBody, NotDecryptable, TooLarge, UnsignedFrame
from waku_bridge.codec.keys import (
    SIGNATURE_BYTES,
    DecryptionKey,
    Identity,
    RandomBytes,
    parse_public_key,
    shake256,
    shared_key,
)
from waku_bridge.codec.limits import MAX_PAYLOAD_BYTES
from waku_bridge.codec.metadata import SignedMessage
from waku_bridge.messages import (
    Body,
    ContactCodeAdvertisement,
    Decoded,
    MessageType,
    PushResponse,
    Query,
    QueryResponse,
    Registration,
    RegistrationResponse,
    WakuMessage,
)

__all__ = [
    "CodecError",
    "DecryptionKey",
    "Encoded",
    "Identity",
    "OutgoingBody",
    "RandomBytes",
    "Reply",
    "decode",
    "encode",
    "encode_advertisement",
    "encode_payload",
    "encode_query",
    "encode_registration",
    "encode_reply",
    "encode_request",
]

Reply = RegistrationResponse | QueryResponse | PushResponse


@dataclass(frozen=True, slots=True)
class Encoded:
    """A message ready to publish, and the ids that its answer will carry.

    The answer to a query repeats ``message_id`` (32 bytes). The answer to a registration repeats ``request_id``
    (64 bytes, SHAKE-256 of the sealed body), which is empty for other messages.
    """

    message: WakuMessage
    message_id: bytes
    request_id: bytes = b""


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
    data, outer_signer = frame.parse(opened)
    if outer_signer is None:
        raise UnsignedFrame
    message = metadata.parse(data, accepted)
    recipient = key if isinstance(key, Identity) else None
    body = _body(message, recipient or identity)
    return Decoded(message.author, message.message_id, body, recipient.pub33 if recipient else b"")


def encode(
    body: OutgoingBody,
    *,
    signer: Identity,
    topic_name: str,
    timestamp_ns: int,
    random_bytes: RandomBytes,
    outer_signer: Identity | None = None,
    recipient: bytes | None = None,
    topic_key: bytes | None = None,
) -> Encoded:
    """Sign and encrypt any body: to the ``recipient`` (33-byte key), or without one under ``topic_key`` (32 bytes).

    ``outer_signer`` signs the frame, by default the signer itself. The body of a registration is sealed for its
    recipient.

    Raises BadPublicKey when the recipient is no point of the curve, and ValueError when there is neither recipient nor
    topic key, or no recipient for a registration.
    """
    message_type, payload = bodies.serialize(body)
    if message_type is MessageType.REGISTRATION:
        payload = _seal_registration(payload, signer.private_key, recipient, random_bytes)
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
        installation_id=_own_installation_id(body),
    )


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
    data, message_id = metadata.build(payload, message_type, signer)
    if message_type == MessageType.CONTACT_CODE_ADVERTISEMENT:
        data = metadata.wrap(data, installation_id)
    signed_frame = frame.build(data, (outer_signer or signer).private_key, random_bytes)
    message = WakuMessage(
        _encrypt(signed_frame, recipient, topic_key, random_bytes), topics.content_topic(topic_name), timestamp_ns
    )
    request_id = shake256(payload) if message_type == MessageType.REGISTRATION else b""
    return Encoded(message, message_id, request_id)


def encode_reply(
    body: Reply, *, identity: Identity, recipient: bytes, timestamp_ns: int, random_bytes: RandomBytes
) -> WakuMessage:
    """Return a server's answer to the author (33-byte key) of a message, on that key's partitioned topic."""
    topic_name = topics.partitioned_name(recipient)
    return encode(
        body,
        signer=identity,
        topic_name=topic_name,
        timestamp_ns=timestamp_ns,
        random_bytes=random_bytes,
        recipient=recipient,
    ).message


def encode_registration(
    registration: RegistrationMessage,
    *,
    identity: Identity,
    server: bytes,
    timestamp_ns: int,
    random_bytes: RandomBytes,
) -> Encoded:
    """Return a client's registration or unregistration for a server (33-byte key), on the server's personal topic."""
    topic_name = topics.personal_name(server)
    return encode(
        registration,
        signer=identity,
        topic_name=topic_name,
        timestamp_ns=timestamp_ns,
        random_bytes=random_bytes,
        recipient=server,
    )


def encode_query(
    query: Query,
    *,
    signer: Identity,
    topic_key: bytes,
    timestamp_ns: int,
    random_bytes: RandomBytes,
    outer_signer: Identity | None = None,
) -> Encoded:
    """Return a sender's query on the query topic of its first key hash. ``topic_key`` is that topic's symmetric key.

    Both signers should be ephemeral keys, because everybody can open a query. status-go signs the frame with the
    sender's identity, and so reveals the sender.
    """
    topic_name = topics.query_name(query.public_key_hashes[0])
    return encode(
        query,
        signer=signer,
        topic_name=topic_name,
        timestamp_ns=timestamp_ns,
        random_bytes=random_bytes,
        outer_signer=outer_signer,
        topic_key=topic_key,
    )


def encode_request(
    request: PushRequest,
    *,
    signer: Identity,
    server: bytes,
    timestamp_ns: int,
    random_bytes: RandomBytes,
    outer_signer: Identity | None = None,
) -> Encoded:
    """Return a sender's request to one server (33-byte key), on that server's partitioned topic."""
    topic_name = topics.partitioned_name(server)
    return encode(
        request,
        signer=signer,
        topic_name=topic_name,
        timestamp_ns=timestamp_ns,
        random_bytes=random_bytes,
        outer_signer=outer_signer,
        recipient=server,
    )


def encode_advertisement(
    advertisement: ContactCodeAdvertisement,
    *,
    identity: Identity,
    topic_key: bytes,
    timestamp_ns: int,
    random_bytes: RandomBytes,
) -> Encoded:
    """Return a client's contact code on its own topic. ``topic_key`` is the symmetric key of that topic."""
    topic_name = topics.contact_code_name(identity.pub33)
    return encode(
        advertisement,
        signer=identity,
        topic_name=topic_name,
        timestamp_ns=timestamp_ns,
        random_bytes=random_bytes,
        topic_key=topic_key,
    )


def _decrypt(payload: bytes, keys: Sequence[DecryptionKey]) -> tuple[bytes, DecryptionKey]:
    """Return the decrypted frame, and the key that opened it. Raises NotDecryptable."""
    for key in keys:
        try:
            if isinstance(key, Identity):
                return ecies.unseal(payload, key.private_key), key
            return symmetric.unseal_frame(payload, key), key
        except NotDecryptable:
            continue
    raise NotDecryptable


def _encrypt(signed_frame: bytes, recipient: bytes | None, topic_key: bytes | None, random_bytes: RandomBytes) -> bytes:
    if recipient is not None:
        return ecies.seal(signed_frame, recipient, random_bytes)
    if topic_key is not None:
        return symmetric.seal_frame(signed_frame, topic_key, random_bytes)
    raise ValueError("neither a recipient nor a topic key to encrypt to")


def _body(message: SignedMessage, identity: Identity) -> Body:
    if message.type is MessageType.REGISTRATION:
        return _unseal_registration(message, identity)
    return bodies.parse(message.type, message.payload)


def _unseal_registration(message: SignedMessage, identity: Identity) -> Registration:
    """Open the body of a registration.

    Raises BodyNotDecryptable. The server does not answer such a message, because anybody could make it publish then.
    """
    content = symmetric.unseal_body(message.payload, shared_key(identity.private_key, message.signer))
    request_id = shake256(message.payload)
    try:
        registration = bodies.parse_registration(content)
    except (MalformedBody, TooLarge):
        return Registration(request_id, content, None)
    return Registration(request_id, content, registration, _grant_verified(registration, message.author, identity))


def _grant_verified(registration: RegistrationMessage, client: bytes, identity: Identity) -> bool:
    """Return whether the grant is valid.

    For an unregistration, which needs no grant, return False without the cost of a key recovery.
    """
    if registration.unregister or len(registration.grant) != SIGNATURE_BYTES:
        return False
    return verify_grant(
        registration.grant, client=client, server=identity.pub33, access_token=registration.access_token
    )


def _seal_registration(content: bytes, client: PrivateKey, server: bytes | None, random_bytes: RandomBytes) -> bytes:
    if server is None:
        raise ValueError("a registration is sealed for one server")
    return symmetric.seal_body(content, shared_key(client, parse_public_key(server)), random_bytes)


def _own_installation_id(body: OutgoingBody) -> str:
    """Return the installation id of a contact code's sender. All its entries are about that installation."""
    if isinstance(body, ContactCodeAdvertisement) and body.info:
        return body.info[0].installation_id
    return ""
