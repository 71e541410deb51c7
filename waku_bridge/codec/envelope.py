"""The whole chain between the payload of a WakuMessage and its body.

body → (a registration only: sealed between client and server) → signed message → (a contact code only: ProtocolMessage)
→ signed frame → ECIES to a key, or AES-GCM under the key of a public topic → WakuMessage

Every encoder draws randomness in this order: nonce of a registration's body (12 bytes), padding of the frame (1 to 256;
drawn again while all zero), then for a key the ephemeral private key (32) and the iv (16), for a topic the nonce (12).
The frame and the message in it may have different signers. The author is always the signer of the message.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass

from registrations.messages import RegistrationMessage
from waku_bridge.codec import bodies, metadata, topics
from waku_bridge.codec.bodies import MAX_PAYLOAD_BYTES, OutgoingBody
from waku_bridge.codec.errors import MalformedBody, NotDecryptable, TooLarge, UnsignedFrame
from waku_bridge.codec.keys import (
    SIGNATURE_BYTES,
    DecryptionKey,
    Identity,
    RandomBytes,
    parse_public_key,
    shake256,
    shared_key,
    verify_grant,
)
from waku_bridge.codec.metadata import SignedMessage
from waku_bridge.codec.sealing import (
    build_frame,
    parse_frame,
    seal_body,
    seal_on_topic,
    seal_to_key,
    unseal_body,
    unseal_on_topic,
    unseal_to_key,
)
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
    message = metadata.parse(data, accepted)
    recipient = key if isinstance(key, Identity) else None
    if message.type is MessageType.REGISTRATION:
        body: Body = _unseal_registration(message, recipient or identity)
    else:
        body = bodies.parse(message.type, message.payload)
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
    message_type, payload = bodies.serialize(body)
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
        return topics.query_name(body.public_key_hashes[0])
    if isinstance(body, ContactCodeAdvertisement):
        return topics.contact_code_name(signer.pub33)
    if recipient is None:
        raise ValueError("this message is sealed for one recipient")
    if isinstance(body, RegistrationMessage):
        return topics.personal_name(recipient)
    return topics.partitioned_name(recipient)


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
    frame = build_frame(data, (outer_signer or signer).private_key, random_bytes)
    sealed = _encrypt(frame, recipient, topic_key, random_bytes)
    message = WakuMessage(sealed, topics.content_topic(topic_name), timestamp_ns)
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
        body = bodies.parse_registration(content)
    except (MalformedBody, TooLarge):
        return Registration(request_id, content, None)
    if body.unregister or len(body.grant) != SIGNATURE_BYTES:  # so it costs no key recovery
        return Registration(request_id, content, body)
    is_granted = verify_grant(body.grant, client=message.author, server=identity.pub33, access_token=body.access_token)
    return Registration(request_id, content, body, is_granted)
