"""A Waku message as JSON, as nwaku's REST reads and writes it. The module is pure: bytes and values in, values out.

Reading is as strict as nwaku's hand-written readers are by their source. These refuse the whole message for an unknown
or repeated field, a wrong type, or base64 of another alphabet. v0.38.1 accepts base64 without padding and any length of
`meta`, and takes a version modulo 2^32 (measured). A negative version ends its process, which is not imitated.
"""

import binascii
import json
import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from waku_bridge.messages import WakuMessage

FIELD_TYPES: Mapping[str, type] = {
    "payload": str,
    "contentTopic": str,
    "version": int,
    "timestamp": int,
    "meta": str,
    "ephemeral": bool,
    "proof": str,
}
VERSIONS = 2**32
LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")  # JSON can spell them, UTF-8 cannot
STATIC_SHARD = re.compile(r"/waku/2/rs/(\d{1,5})/(\d{1,5})", re.ASCII)


class InvalidMessageError(ValueError):
    """JSON from the sender that is not a Waku message. The text may be shown to the sender."""


def is_static_shard(pubsub_topic: str) -> bool:
    """Return whether this is `/waku/2/rs/<cluster>/<shard>`, the only kind of pubsub topic since nwaku v0.37."""
    match = STATIC_SHARD.fullmatch(pubsub_topic)
    return match is not None and all(int(number) <= 0xFFFF for number in match.groups())


def parse_json(body: bytes) -> Any:
    """Parse JSON and refuse repeated fields, which lenient parsers accept."""
    try:
        return json.loads(body, object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError) as exc:
        raise InvalidMessageError("Invalid content body, could not decode") from exc


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise InvalidMessageError("Multiple fields with the same name found")
    return fields


def read_message(fields: object, *, now_ns: int) -> WakuMessage:
    """Read a message; a timestamp that is absent or 0 becomes `now_ns`, as nwaku does when publishing."""
    checked = _check_types(fields)
    message = WakuMessage(
        payload=_read_base64(checked, "payload"),
        content_topic=checked.get("contentTopic", ""),
        timestamp_ns=checked.get("timestamp", 0) or now_ns,
        version=checked.get("version", 0) % VERSIONS,
        ephemeral=checked.get("ephemeral", False),
        meta=_read_base64(checked, "meta"),
    )
    _check_values(message, checked.get("version", 0))
    return message


def _check_types(fields: object) -> dict[str, Any]:
    if not isinstance(fields, dict):
        raise InvalidMessageError("Invalid content body, could not decode: not an object")
    for name, value in fields.items():
        if name not in FIELD_TYPES:
            raise InvalidMessageError(f"Unknown field {name[:40]!r}")
        if type(value) is not FIELD_TYPES[name]:  # not isinstance: True is an int to Python
            raise InvalidMessageError(f"Field `{name}` has a wrong type")
        if isinstance(value, str) and LONE_SURROGATE.search(value):
            raise InvalidMessageError(f"Field `{name}` is not UTF-8")
    return fields


def _check_values(message: WakuMessage, version: int) -> None:
    if not message.payload:
        raise InvalidMessageError("Field `payload` is missing or empty")
    if not message.content_topic.strip():
        raise InvalidMessageError("Field `contentTopic` is missing or empty")
    if not 0 <= version < 2**63:
        raise InvalidMessageError("Field `version` is out of range")
    if not -(2**63) <= message.timestamp_ns < 2**63:
        raise InvalidMessageError("Field `timestamp` is out of range")


def _read_base64(fields: Mapping[str, Any], name: str) -> bytes:
    text = fields.get(name, "")
    try:
        return binascii.a2b_base64(text + "=" * (-len(text) % 4), strict_mode=True)
    except ValueError as exc:
        raise InvalidMessageError(f"Field `{name}` is not base64") from exc


def relay_fields(message: WakuMessage) -> dict[str, object]:
    """Write a message as a relay GET does: `meta` only when there is one, `proof` always."""
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
    if message.meta:
        fields["meta"] = b64encode(message.meta).decode()
    return fields
