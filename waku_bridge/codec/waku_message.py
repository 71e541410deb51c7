"""14/WAKU2-MESSAGE: its protobuf bytes, and the hash that names a message on one pubsub topic."""

from hashlib import sha256

from google.protobuf.message import DecodeError

from waku_bridge.codec.errors import MalformedWakuMessage
from waku_bridge.codec.pb.waku_message_pb2 import WakuMessage as WakuMessageBytes
from waku_bridge.messages import WakuMessage


def parse(data: bytes) -> WakuMessage:
    """Read a WakuMessage. Fields that are absent are 0 or empty.

    Raises MalformedWakuMessage.
    """
    try:
        message = WakuMessageBytes.FromString(data)
    except DecodeError as error:
        raise MalformedWakuMessage from error
    return WakuMessage(
        payload=message.payload,
        content_topic=message.content_topic,
        timestamp_ns=message.timestamp,
        version=message.version,
        ephemeral=message.ephemeral,
        meta=message.meta,
    )


def serialize(message: WakuMessage) -> bytes:
    """Write a WakuMessage as status-go does: an empty ``meta`` and ``ephemeral=false`` are written out."""
    return WakuMessageBytes(
        payload=message.payload,
        content_topic=message.content_topic,
        version=message.version,
        timestamp=message.timestamp_ns,
        meta=message.meta,
        ephemeral=message.ephemeral,
    ).SerializeToString()


def message_hash(pubsub_topic: str, message: WakuMessage) -> bytes:
    """Return the deterministic hash (32 bytes), the key of caches, of the store protocol and of our inbox.

    It is SHA-256 of pubsub topic ‖ payload ‖ content topic ‖ meta ‖ timestamp (8 bytes, big-endian two's complement).
    Version and ephemeral are not part of it. Raises OverflowError when the timestamp does not fit 64 signed bits.
    """
    timestamp = message.timestamp_ns.to_bytes(8, "big", signed=True)
    parts = (pubsub_topic.encode(), message.payload, message.content_topic.encode(), message.meta, timestamp)
    return sha256(b"".join(parts)).digest()
