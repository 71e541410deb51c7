"""What nwaku's REST reads and writes: messages, queries to the store, and the record of a node. The module is pure.

A message is read as strictly as by nwaku's hand-written readers, known by their source: an unknown field, a wrong type
or base64 of another alphabet refuses all of it. v0.38.1 accepts base64 without padding and any length of `meta`, and
takes a version modulo 2^32 (measured). A negative version ends its process, which is not imitated.
"""

import binascii
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus

from waku_bridge.messages import WakuMessage

FIELD_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("payload", "contentTopic", "meta", "proof"), str),
    **dict.fromkeys(("version", "timestamp"), int),
    "ephemeral": bool,
}
INT64 = range(-(2**63), 2**63)
SHARD = re.compile(r"/waku/2/rs/(\d{1,5})/(\d{1,5})", re.ASCII)
DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE = 20, 100
BOOLEANS = {"": False, "false": False, "true": True}
SIGNATURE = bytes(64)
RELAY_STORE_LIGHTPUSH = 0b1011


class InvalidRequestError(ValueError):
    """A body or a parameter that cannot be read. The text may be shown to the sender."""


def is_static_shard(pubsub_topic: str) -> bool:
    """Return whether this is `/waku/2/rs/<cluster>/<shard>`, the only kind of pubsub topic since nwaku v0.37."""
    match = SHARD.fullmatch(pubsub_topic)
    return match is not None and all(int(number) <= 0xFFFF for number in match.groups())


def read_message(fields: Any, *, now_ns: int) -> WakuMessage:
    """Read a message; a timestamp that is absent or 0 becomes `now_ns`, as nwaku does when publishing."""
    if not isinstance(fields, dict):
        raise InvalidRequestError("Invalid content body, could not decode: not an object")
    for name, value in fields.items():
        if type(value) is not FIELD_TYPES.get(name):  # not isinstance: True is an int to Python
            raise InvalidRequestError(f"Field {name[:40]!r} is unknown or has a wrong type")
    message = WakuMessage(
        payload=_read_base64(fields, "payload"),
        content_topic=fields.get("contentTopic", ""),
        timestamp_ns=fields.get("timestamp", 0) or now_ns,
        version=fields.get("version", 0) % 2**32,
        ephemeral=fields.get("ephemeral", False),
        meta=_read_base64(fields, "meta"),
    )
    if not (message.payload and message.content_topic.strip()):
        raise InvalidRequestError("Field `payload` or `contentTopic` is missing or empty")
    if message.timestamp_ns not in INT64 or fields.get("version", 0) < 0:
        raise InvalidRequestError("Field `timestamp` or `version` is out of range")
    return message


def _read_base64(fields: Mapping[str, Any], name: str) -> bytes:
    text = fields.get(name, "")
    try:
        return binascii.a2b_base64(text + "=" * (-len(text) % 4), strict_mode=True)
    except ValueError as exc:
        raise InvalidRequestError(f"Field `{name}` is not base64") from exc


def message_fields(message: WakuMessage) -> dict[str, object]:
    """Write a message as the store does: `meta` only when there is one, `proof` never (there is no RLN here)."""
    fields: dict[str, object] = {
        "payload": b64encode(message.payload).decode(),
        "contentTopic": message.content_topic,
        "version": message.version,
        "timestamp": message.timestamp_ns,
        "ephemeral": message.ephemeral,
    }
    return fields | ({"meta": b64encode(message.meta).decode()} if message.meta else {})


@dataclass(frozen=True, slots=True)
class StoreQuery:
    """A query. Times are inclusive nanoseconds. `cursor` is the hash of the previous page's last message, exclusive."""

    include_data: bool = False
    pubsub_topics: tuple[str, ...] = ()
    content_topics: tuple[str, ...] = ()
    hashes: tuple[bytes, ...] = ()
    start_ns: int = 0
    end_ns: int = INT64[-1]
    cursor: bytes | None = None
    is_forward: bool = True
    page_size: int = DEFAULT_PAGE_SIZE


def read_query(parameters: Mapping[str, str]) -> StoreQuery:
    """Return a query. An empty parameter counts as absent. Raises InvalidRequestError.

    Topics and hashes are URL-decoded a second time, after the HTTP layer did it once. `ascending` is forward for the
    exact text `true` only; absent is forward too.
    """
    given = {name: unquote_plus(text) for name, text in parameters.items() if text}

    def split(name: str) -> list[str]:
        return given[name].removesuffix(",").split(",") if name in given else []

    try:
        size, start_ns, end_ns = (int(given.get(name, "0")) for name in ("pageSize", "startTime", "endTime"))
        return StoreQuery(
            include_data=BOOLEANS[given.get("includeData", "").lower()],
            pubsub_topics=(given["pubsubTopic"],) if "pubsubTopic" in given else (),
            content_topics=tuple(split("contentTopics")),
            hashes=tuple(map(_hash, split("hashes"))),
            start_ns=max(start_ns, 0),
            end_ns=end_ns if end_ns > 0 else INT64[-1],
            cursor=_hash(given["cursor"]) if "cursor" in given else None,
            is_forward=given.get("ascending", "true") == "true",
            # nwaku casts a negative number to unsigned.
            page_size=MAX_PAGE_SIZE if size < 0 else min(size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE),
        )
    except (KeyError, ValueError) as exc:
        raise InvalidRequestError("a parameter cannot be parsed") from exc


def _hash(text: str) -> bytes:
    raw = bytes.fromhex(text.removeprefix("0x"))
    if len(raw) != 32:
        raise ValueError("length")
    return raw


def write_enr(pubsub_topics: Sequence[str], *, seq: int) -> str:
    """Return the record (31/WAKU2-ENR), with its pairs in the order of their names, as the format requires.

    It has no keys, no address and no valid signature, because no peer uses it to connect to a development node.
    """
    clusters, shards = ([int(topic.split("/")[part]).to_bytes(2) for topic in pubsub_topics] for part in (4, 5))
    # Cluster (2 bytes), of which a node has one, count (1 byte), and 2 bytes for each shard (51/WAKU2-RELAY-SHARDING).
    value = b"".join([*clusters[:1], bytes([len(shards)]), *sorted(shards)])
    number = seq.to_bytes((seq.bit_length() + 7) // 8)
    pairs = [*([b"rs", value] if pubsub_topics else []), b"waku2", bytes([RELAY_STORE_LIGHTPUSH])]
    body = b"".join(map(_rlp_string, [SIGNATURE, number, b"id", b"v4", *pairs]))
    return "enr:" + urlsafe_b64encode(bytes([0xF8, len(body)]) + body).decode().rstrip("=")


def _rlp_string(value: bytes) -> bytes:
    """Return up to 255 bytes with their length."""
    if len(value) == 1 and value[0] < 0x80:
        return value
    return (bytes([0x80 + len(value)]) if len(value) <= 55 else bytes([0xB8, len(value)])) + value
