"""The record that a node shows of itself (31/WAKU2-ENR): `enrUri` in `/info`. The module is pure.

The record has no keys, no address and no valid signature, because no peer uses it to connect to a development node.
"""

import re
from base64 import urlsafe_b64encode
from collections.abc import Sequence

SHARD = re.compile(r"/waku/2/rs/(\d+)/(\d+)")
SIGNATURE = bytes(64)
RELAY_STORE_LIGHTPUSH = 0b1011


def write_enr(pubsub_topics: Sequence[str], *, seq: int) -> str:
    """Return the record. Its pairs are in the order of their names, as the format requires."""
    parts = [SIGNATURE, _bytes(seq), b"id", b"v4"]
    if pubsub_topics:
        parts += [b"rs", _shards(pubsub_topics)]
    parts += [b"waku2", bytes([RELAY_STORE_LIGHTPUSH])]
    body = b"".join(map(_rlp_string, parts))
    return "enr:" + urlsafe_b64encode(_rlp_length(len(body), 0xC0) + body).decode().rstrip("=")


def _shards(pubsub_topics: Sequence[str]) -> bytes:
    """Return cluster (2 bytes), count (1 byte), and 2 bytes for each shard (51/WAKU2-RELAY-SHARDING).

    A node has one cluster.
    """
    numbers = [tuple(map(int, match.groups())) for topic in pubsub_topics if (match := SHARD.fullmatch(topic))]
    cluster = numbers[0][0] if numbers else 0
    shards = sorted({shard for own, shard in numbers if own == cluster})
    return cluster.to_bytes(2) + bytes([len(shards)]) + b"".join(shard.to_bytes(2) for shard in shards)


def _rlp_string(value: bytes) -> bytes:
    return value if len(value) == 1 and value[0] < 0x80 else _rlp_length(len(value), 0x80) + value


def _rlp_length(size: int, offset: int) -> bytes:
    if size <= 55:
        return bytes([offset + size])
    return bytes([offset + 55 + len(_bytes(size))]) + _bytes(size)


def _bytes(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8)
