"""What nodes write and read: JSON, messages in it, and the forms that nwaku and go-waku give the same thing. Pure."""

import base64
import binascii
import json
from typing import Any

import orjson

from waku_bridge.messages import WakuMessage
from waku_bridge.node.errors import BadNodeMessage

INT64_MAX = 2**63 - 1


def parse(content: bytes) -> Any:
    """A page is gone from the node once it is read, so one message with a broken text must not cost its neighbours:
    nwaku passes content topics on as they came, whether they are UTF-8 or not.
    """
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return json.loads(content.decode(errors="replace"), strict=False)


def to_json(message: WakuMessage) -> dict[str, Any]:
    return {
        "payload": base64.b64encode(message.payload).decode(),
        "contentTopic": message.content_topic,
        "version": message.version,
        "timestamp": message.timestamp_ns,
        "ephemeral": message.ephemeral,
    }


def from_json(raw: Any) -> WakuMessage:
    """Read one message of a page; fields that a node leaves out are zero. Raises BadNodeMessage."""
    if not isinstance(raw, dict):
        raise BadNodeMessage("not an object")
    content_topic = raw.get("contentTopic")
    if not isinstance(content_topic, str):
        raise BadNodeMessage("no content topic")
    return WakuMessage(
        payload=_bytes(raw, "payload"),
        content_topic=content_topic,
        timestamp_ns=_integer(raw, "timestamp"),
        version=_integer(raw, "version"),
        ephemeral=bool(raw.get("ephemeral")),
        meta=_bytes(raw, "meta"),
    )


def _bytes(raw: dict[str, Any], name: str) -> bytes:
    text = raw.get(name) or ""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise BadNodeMessage(f"{name} is not base64") from None


def _integer(raw: dict[str, Any], name: str) -> int:
    value = raw.get(name) or 0
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > INT64_MAX:
        raise BadNodeMessage(f"{name} is not a 64-bit integer")
    return value
