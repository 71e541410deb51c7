"""Which messages of a page are ours, and what is wrong with the others. Pure.

A page mixes the messages of strangers, and of nodes that we do not know: nothing in it may raise.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from waku_bridge.codec.waku_message import message_hash
from waku_bridge.inbox import Envelope
from waku_bridge.messages import WakuMessage
from waku_bridge.node.dialect import from_json
from waku_bridge.node.errors import BadNodeMessage

WAKU_VERSION = 1
MAX_PAYLOAD_BYTES = 1024 * 1024
# A phone with a wrong time zone is taken seriously, one that lives in another year is not.
MAX_AHEAD_NS = 86_400 * 10**9


@dataclass(frozen=True, slots=True)
class Rejected:
    """A message that may have been for us and cannot be taken. ``content_topic`` is empty unless it is one of ours."""

    raw: Any = field(repr=False)
    reason: str
    content_topic: str = ""


class ContentTopics(Protocol):
    def __contains__(self, content_topic: str, /) -> bool: ...


class Topics:
    """Every content topic that is ours: the server's own, and those of registered keys."""

    def __init__(self, own: ContentTopics, queried: ContentTopics) -> None:
        self._own = own
        self._queried = queried

    def __contains__(self, content_topic: str) -> bool:
        return content_topic in self._own or content_topic in self._queried


@dataclass(frozen=True, slots=True)
class Selection:
    envelopes: list[Envelope]
    rejected: list[Rejected]


def select(page: Iterable[Any], pubsub_topic: str, topics: ContentTopics, *, oldest_ns: int, now_ns: int) -> Selection:
    """The topic is compared before anything is decoded.

    What is older than ``oldest_ns`` is refused: its hash may be forgotten already, so it could be a repetition. A hash
    that comes twice in a page is taken once; version and whatever else is not part of it are checked for each.
    """
    envelopes: list[Envelope] = []
    rejected: list[Rejected] = []
    for raw in page:
        content_topic = raw.get("contentTopic") if isinstance(raw, dict) else None
        if not isinstance(content_topic, str):
            rejected.append(Rejected(raw, "malformed"))
        elif content_topic not in topics:
            continue
        elif isinstance(taken := _take(raw, pubsub_topic, oldest_ns=oldest_ns, now_ns=now_ns), Envelope):
            envelopes.append(taken)
        else:
            rejected.append(Rejected(raw, taken, content_topic))
    return Selection(envelopes, rejected)


def _take(raw: Any, pubsub_topic: str, *, oldest_ns: int, now_ns: int) -> Envelope | str:
    """The envelope, or what is wrong with it."""
    try:
        message = from_json(raw)
    except BadNodeMessage:
        return "malformed"
    if reason := _fault(message, oldest_ns=oldest_ns, now_ns=now_ns):
        return reason
    return Envelope(message_hash(pubsub_topic, message), pubsub_topic, message)


def _fault(message: WakuMessage, *, oldest_ns: int, now_ns: int) -> str:
    if message.version != WAKU_VERSION:
        return "wrong_version"
    if not 0 < len(message.payload) <= MAX_PAYLOAD_BYTES:
        return "wrong_size"
    if not oldest_ns <= message.timestamp_ns <= now_ns + MAX_AHEAD_NS:
        return "wrong_time"
    return ""
