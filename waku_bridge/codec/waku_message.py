"""The protobuf bytes of 14/WAKU2-MESSAGE. The hash of a message is in `topics`."""

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
