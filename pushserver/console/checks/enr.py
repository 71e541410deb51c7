"""Parser of a node's own record (`enrUri`), which names the shards that it serves. Pure.

A record is RLP of signature, sequence number and name-value pairs, in URL-safe base64 (EIP-778). Shards are the value
of `rs` (a list) or `rsv` (bits), by 51/WAKU2-RELAY-SHARDING. The signature is not checked, because the record comes
from the node itself.
"""

from base64 import urlsafe_b64decode
from collections.abc import Iterator
from dataclasses import dataclass

PREFIX = "enr:"
MAX_BYTES = 600  # the format allows 300
BITS_BYTES = 128


@dataclass(frozen=True, slots=True)
class Shards:
    """A cluster and its shards."""

    cluster: int
    shards: frozenset[int]

    def __str__(self) -> str:
        return f"{self.cluster}: {', '.join(map(str, sorted(self.shards)))}"


def read_shards(enr: str) -> Shards | None:
    """Return the shards of a record, or None when it names none or is not a record."""
    try:
        items = list(_items(_record(enr)))
    except ValueError:
        return None
    pairs = dict(zip(items[2::2], items[3::2], strict=False))
    if b"rs" in pairs:
        return _from_list(pairs[b"rs"])
    return _from_bits(pairs[b"rsv"]) if b"rsv" in pairs else None


def _record(enr: str) -> bytes:
    text = enr.removeprefix(PREFIX)
    if len(text) > MAX_BYTES or not text.isascii():
        raise ValueError(enr[:10])
    raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    body, rest, is_list = _take(raw)
    if rest or not is_list:
        raise ValueError("not one list")
    return body


def _items(body: bytes) -> Iterator[bytes]:
    while body:
        item, body, _is_list = _take(body)
        yield item


def _take(data: bytes) -> tuple[bytes, bytes, bool]:
    """Return the first item of RLP data, the rest of the data, and whether the item is a list. Raises ValueError."""
    if not data:
        raise ValueError("empty")
    first = data[0]
    if first < 0x80:
        return data[:1], data[1:], False
    is_list, short = first >= 0xC0, (first - 0x80) % 0x40
    digits = max(0, short - 55)
    size = int.from_bytes(data[1 : 1 + digits]) if digits else short
    start, end = 1 + digits, 1 + digits + size
    if end > len(data):
        raise ValueError("cut off")
    return data[start:end], data[end:], is_list


def _from_list(value: bytes) -> Shards | None:
    """Read the value of `rs`: cluster (2 bytes), count (1 byte), 2 bytes for each shard; big-endian."""
    if len(value) < 3 or len(value) != 3 + 2 * value[2]:
        return None
    shards = (int.from_bytes(value[at : at + 2]) for at in range(3, len(value), 2))
    return Shards(int.from_bytes(value[:2]), frozenset(shards))


def _from_bits(value: bytes) -> Shards | None:
    """Read the value of `rsv`: cluster (2 bytes) and 1024 bits, the lowest of each byte first."""
    if len(value) != 2 + BITS_BYTES:
        return None
    shards = (8 * at + bit for at, byte in enumerate(value[2:]) for bit in range(8) if byte >> bit & 1)
    return Shards(int.from_bytes(value[:2]), frozenset(shards))
