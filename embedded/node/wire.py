"""A Waku message as JSON, as nwaku's REST reads and writes it, and the record that a node shows of itself. Pure.

Reading is as strict as nwaku's hand-written readers are by their source: an unknown field, a wrong type or base64 of
another alphabet refuses the whole message. v0.38.1 accepts base64 without padding and any length of `meta`, and takes
a version modulo 2^32 (measured). A negative version ends its process, which is not imitated.
"""

import binascii
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from waku_bridge.messages import WakuMessage

FIELD_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("payload", "contentTopic", "meta", "proof"), str),
    **dict.fromkeys(("version", "timestamp"), int),
    "ephemeral": bool,
}
VERSIONS = 2**32
INT64 = range(-(2**63), 2**63)
SHARD = re.compile(r"/waku/2/rs/(\d{1,5})/(\d{1,5})", re.ASCII)
SIGNATURE = bytes(64)
RELAY_STORE_LIGHTPUSH = 0b1011


class InvalidMessageError(ValueError):
    """JSON from the sender that is not a Waku message. The text may be shown to the sender."""


def is_static_shard(pubsub_topic: str) -> bool:
    """Return whether this is `/waku/2/rs/<cluster>/<shard>`, the only kind of pubsub topic since nwaku v0.37."""
    match = SHARD.fullmatch(pubsub_topic)
    return match is not None and all(int(number) <= 0xFFFF for number in match.groups())


def read_message(fields: Any, *, now_ns: int) -> WakuMessage:
    """Read a message; a timestamp that is absent or 0 becomes `now_ns`, as nwaku does when publishing."""
    if not isinstance(fields, dict):
        raise InvalidMessageError("Invalid content body, could not decode: not an object")
    for name, value in fields.items():
        if type(value) is not FIELD_TYPES.get(name):  # not isinstance: True is an int to Python
            raise InvalidMessageError(f"Field {name[:40]!r} is unknown or has a wrong type")
    message = WakuMessage(
        payload=_read_base64(fields, "payload"),
        content_topic=fields.get("contentTopic", ""),
        timestamp_ns=fields.get("timestamp", 0) or now_ns,
        version=fields.get("version", 0) % VERSIONS,
        ephemeral=fields.get("ephemeral", False),
        meta=_read_base64(fields, "meta"),
    )
    if not (message.payload and message.content_topic.strip()):
        raise InvalidMessageError("Field `payload` or `contentTopic` is missing or empty")
    if message.timestamp_ns not in INT64 or fields.get("version", 0) < 0:
        raise InvalidMessageError("Field `timestamp` or `version` is out of range")
    return message


def _read_base64(fields: Mapping[str, Any], name: str) -> bytes:
    text = fields.get(name, "")
    try:
        return binascii.a2b_base64(text + "=" * (-len(text) % 4), strict_mode=True)
    except ValueError as exc:
        raise InvalidMessageError(f"Field `{name}` is not base64") from exc


def relay_fields(message: WakuMessage) -> dict[str, object]:
    """Write a message as a relay GET does, which has a `proof` always."""
    return {**store_fields(message), "proof": ""}


def store_fields(message: WakuMessage) -> dict[str, object]:
    """Write a message as the store does: `meta` only when there is one, `proof` never (there is no RLN here)."""
    fields: dict[str, object] = {
        "payload": b64encode(message.payload).decode(),
        "contentTopic": message.content_topic,
        "version": message.version,
        "timestamp": message.timestamp_ns,
        "ephemeral": message.ephemeral,
    }
    return fields | ({"meta": b64encode(message.meta).decode()} if message.meta else {})


def write_enr(pubsub_topics: Sequence[str], *, seq: int) -> str:
    """Return the record (31/WAKU2-ENR), with its pairs in the order of their names, as the format requires.

    It has no keys, no address and no valid signature, because no peer uses it to connect to a development node.
    """
    found = [tuple(map(int, match.groups())) for topic in pubsub_topics if (match := SHARD.fullmatch(topic))]
    cluster = found[0][0] if found else 0  # a node has one
    shards = sorted({shard for own, shard in found if own == cluster})
    # Cluster (2 bytes), count (1 byte), and 2 bytes for each shard (51/WAKU2-RELAY-SHARDING).
    value = cluster.to_bytes(2) + bytes([len(shards)]) + b"".join(shard.to_bytes(2) for shard in shards)
    number = seq.to_bytes((seq.bit_length() + 7) // 8)
    pairs = [*([b"rs", value] if pubsub_topics else []), b"waku2", bytes([RELAY_STORE_LIGHTPUSH])]
    body = b"".join(map(_rlp_string, [SIGNATURE, number, b"id", b"v4", *pairs]))
    return "enr:" + urlsafe_b64encode(bytes([0xF8, len(body)]) + body).decode().rstrip("=")


def _rlp_string(value: bytes) -> bytes:
    """Return up to 255 bytes with their length."""
    if len(value) == 1 and value[0] < 0x80:
        return value
    return (bytes([0x80 + len(value)]) if len(value) <= 55 else bytes([0xB8, len(value)])) + value
