"""Topic names, their content topics, their symmetric keys, and hash and bytes of a message (14/WAKU2-MESSAGE).

A content topic is the hash of a topic name. The symmetric key of a public topic is derived from the name as a password.
Source of the names: status-go protocol/transport/topic.go, wakuv2/common/topic.go, wakuv2/waku.go.
"""

from hashlib import pbkdf2_hmac, sha256

from waku_bridge.codec.keys import chat_key, keccak256
from waku_bridge.codec.pb.waku_message_pb2 import WakuMessage as WakuMessageBytes
from waku_bridge.messages import WakuMessage

PREFIX, SUFFIX = "/waku/1/0x", "/rfc26"
CONTENT_TOPIC_LENGTH = len(PREFIX) + 8 + len(SUFFIX)
PARTITIONS = 5000
SYMMETRIC_KEY_ROUNDS = 65356  # not 65536: a typo in the reference client that became the protocol


def partitioned_name(public_key: bytes) -> str:
    """Return the partitioned topic of a key (33 bytes), for requests to a server and for every answer.

    The keys of all users are spread over 5000 such topics.
    """
    return f"contact-discovery-{int.from_bytes(public_key[1:33], 'big') % PARTITIONS}"


def personal_name(public_key: bytes) -> str:
    """Return the topic of one key (33 bytes), for registrations. The spec text names the partitioned topic instead."""
    return "contact-discovery-" + chat_key(public_key).removeprefix("0x")


def contact_code_name(public_key: bytes) -> str:
    """Return the topic on which a client (33-byte key) advertises where it can be reached."""
    return chat_key(public_key) + "-contact-code"


def query_name(public_key_hash: bytes) -> str:
    """Return the topic of queries about a key hash: its bare hex. No client uses the spec text's form with ``0x``."""
    return public_key_hash.hex()


def topic(name: str) -> bytes:
    """Return the 4 bytes that a name is shortened to. Two names may share one topic."""
    return keccak256(name.encode())[:4]


def content_topic(name: str) -> str:
    """Return ``/waku/1/0x<8 hex digits>/rfc26``, as Waku routes it."""
    return of_number(int.from_bytes(topic(name)))


def of_number(topic: int) -> str:
    """Return the content topic of 4 bytes that are given as an integer."""
    return f"{PREFIX}{topic:08x}{SUFFIX}"


def number(content_topic: str) -> int | None:
    """Return the 4 bytes in a content topic of the canonical form, as an integer, or None.

    Other spellings of a number (capitals, signs, underscores) are other topics to Waku, and so to us.
    """
    if len(content_topic) != CONTENT_TOPIC_LENGTH or not content_topic.startswith(PREFIX):
        return None
    try:
        topic = int(content_topic[len(PREFIX) : -len(SUFFIX)], 16)
    except ValueError:
        return None
    return topic if topic >= 0 and content_topic == of_number(topic) else None


def symmetric_key(name: str) -> bytes:
    """Return the 32-byte key of a public topic, derived from its name.

    It costs about 15 ms of CPU time by design, so derive it once and keep it.
    """
    return pbkdf2_hmac("sha256", name.encode(), b"", SYMMETRIC_KEY_ROUNDS, 32)


def message_hash(pubsub_topic: str, message: WakuMessage) -> bytes:
    """Return the deterministic hash (32 bytes) that identifies a message in caches, in the store protocol and here.

    It is SHA-256 of pubsub topic ‖ payload ‖ content topic ‖ meta ‖ timestamp (8 bytes, big-endian two's complement).
    Version and ephemeral are not part of it. Raises OverflowError when the timestamp does not fit 64 signed bits.
    """
    timestamp = message.timestamp_ns.to_bytes(8, "big", signed=True)
    parts = (pubsub_topic.encode(), message.payload, message.content_topic.encode(), message.meta, timestamp)
    return sha256(b"".join(parts)).digest()


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
