"""The two messages of a sender, the query and the push request. Pure.

An ephemeral key signs each message and its frame, so that neither the network nor a server learns the sender's
identity. status-go signs the frame with its identity.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from notifications.messages import NotificationType, PushNotification, PushRequest
from waku_bridge.client.events import Destination
from waku_bridge.codec.envelope import Encoded, encode_query, encode_request
from waku_bridge.codec.keys import Identity, RandomBytes, author_hash, key_hash
from waku_bridge.messages import Query


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a notification. ``chat_id`` and ``author`` are hashes (64 bytes). ``message`` is for the device.

    ``type`` is a NotificationType. A notification with an unknown number is delivered with a general text.
    """

    type: int
    chat_id: bytes
    author: bytes
    message: bytes = field(default=b"", repr=False)


def one_to_one(author: bytes, message: bytes = b"") -> Content:
    """Return the content of a message from ``author`` (33-byte chat key) to the recipient alone.

    The id of a one-to-one chat is the chat key of the other side.
    """
    me = author_hash(author)
    return Content(NotificationType.MESSAGE, chat_id=me, author=me, message=message)


def mention(author: bytes, chat_id: bytes, message: bytes = b"") -> Content:
    """Return the content of a message in which ``author`` (33-byte chat key) mentions the recipient, or replies to it.

    ``chat_id`` is the `chat_hash` of the chat's id.
    """
    return Content(NotificationType.MENTION, chat_id=chat_id, author=author_hash(author), message=message)


def ask_for(
    client: bytes, *, signer: Identity, topic_key: bytes, timestamp_ns: int, random_bytes: RandomBytes
) -> Encoded:
    """Return a query to all servers about this client (33 bytes). ``topic_key`` is the key of its query topic.

    The same client and signer give the same message id, which answers repeat.
    """
    return encode_query(
        Query((key_hash(client),)),
        signer=signer,
        topic_key=topic_key,
        timestamp_ns=timestamp_ns,
        random_bytes=random_bytes,
    )


def ask_to_push(
    destinations: Sequence[Destination],
    content: Content,
    message_id: bytes,
    *,
    signer: Identity,
    timestamp_ns: int,
    random_bytes: RandomBytes,
) -> Encoded:
    """Return a request to one server to push the same content to several installations.

    ``message_id`` is the id of the Status message. Its sender chooses it, and the answer repeats it. The same arguments
    give the same signed message in another envelope, and servers answer it as before.

    Raises ValueError unless all destinations are of the same server.
    """
    servers = {destination.server for destination in destinations}
    if len(servers) != 1:
        raise ValueError("a request goes to exactly one server")
    return encode_request(
        PushRequest(message_id, tuple(_notification(destination, content) for destination in destinations)),
        signer=signer,
        server=servers.pop(),
        timestamp_ns=timestamp_ns,
        random_bytes=random_bytes,
    )


def _notification(destination: Destination, content: Content) -> PushNotification:
    return PushNotification(
        public_key_hash=destination.public_key_hash,
        installation_id=destination.installation_id,
        access_token=destination.access_token,
        type=content.type,
        chat_id=content.chat_id,
        author=content.author,
        message=content.message,
    )
