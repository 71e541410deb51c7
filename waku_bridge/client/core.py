"""The common part of all client cores: the opening of messages, and the times of repetitions."""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256

from coincurve import PrivateKey

from waku_bridge.client.events import Event, Ignored, Reason, Step
from waku_bridge.codec import wire
from waku_bridge.codec.envelope import decode
from waku_bridge.codec.errors import CodecError, NotDecryptable
from waku_bridge.codec.keys import DecryptionKey, Identity, RandomBytes
from waku_bridge.messages import Decoded, WakuMessage

SECOND_NS = 10**9
WAKU_VERSION = 1
MAX_REMEMBERED = 20_000
MAX_TOPIC_KEYS = 1000

Subscriptions = Mapping[str, tuple[DecryptionKey, ...]]
"""Content topics to read, each with the keys that may open messages on it."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A limit of attempts, and the waits between them: after attempt n, counted from 1, ``base_seconds`` · n · 2ⁿ.

    This is status-go's exponential backoff.
    """

    base_seconds: float
    max_attempts: int

    def delay_ns(self, attempt: int) -> int:
        """Return the wait after this attempt, in nanoseconds."""
        return round(self.base_seconds * attempt * (1 << attempt) * SECOND_NS)


REGISTRATION = Schedule(base_seconds=15.0, max_attempts=12)
"""Waits of 30 s, 120 s, 360 s … and about four days before the last attempt."""

RESENDING = Schedule(base_seconds=2.0, max_attempts=5)
"""A sender resends at most five times. After a wrong token it resends at once, then after 4, 16, 48 and 128 s, since
status-go counts from 0 there. After an internal error, for which status-go does not resend at all, it starts with 4 s.
"""


@dataclass(frozen=True, slots=True)
class Opened:
    """A decoded message, and the key that opened it. An answer belongs to the query or request of that key.

    ``sent_at_ns`` is the message's own timestamp.
    """

    decoded: Decoded
    key: DecryptionKey
    content_topic: str
    sent_at_ns: int

    def ignored(self, reason: Reason) -> Ignored:
        return Ignored(reason, self.content_topic, self.decoded.author)


class Core(ABC):
    """A client without I/O. Each kind of client has further methods for the requests of its user.

    ``now_ns`` is Unix time in nanoseconds. Messages carry it as their timestamp, and stores accept an error of 20 s.
    """

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    @property
    @abstractmethod
    def deadline_ns(self) -> int | None:
        """Return the earliest time at which ``tick`` has work, or None while only a message can cause work."""

    @abstractmethod
    def subscriptions(self) -> Subscriptions:
        """Return the topics to read now. They change with every query and request."""

    @abstractmethod
    def tick(self, now_ns: int) -> Step:
        """Do all work that is due. An early call is harmless, and a late call delays the work."""

    def receive(self, message: WakuMessage, now_ns: int) -> Step:
        """Take in one message from the network, of any topic, in any order, as often as it comes."""
        opened = self._opened(message)
        events = [opened] if isinstance(opened, Ignored) else self._judge(opened, now_ns)
        step = self.tick(now_ns)
        step.events = [*events, *step.events]
        return step

    @abstractmethod
    def _judge(self, opened: Opened, now_ns: int) -> list[Event]:
        """Return the events of a message that opened."""

    def _opened(self, message: WakuMessage) -> Opened | Ignored:
        """Return the opened message, or the reason why it is ignored.

        A repeated answer is ignored in another envelope as well. A repeated contact code is returned, because it
        confirms that the code is still valid. The same answer for two keys is two answers: signatures are
        deterministic, so both have the same id.
        """
        keys = self.subscriptions().get(message.content_topic)
        if not keys:
            return Ignored(Reason.FOREIGN_TOPIC, message.content_topic)
        if message.version != WAKU_VERSION:
            return Ignored(Reason.UNSUPPORTED_VERSION, message.content_topic)
        digest = sha256(message.payload).digest()
        if digest in self._seen:
            return Ignored(Reason.DUPLICATE, message.content_topic)
        opened = self._try(message, keys)
        if isinstance(opened, Ignored):
            return opened
        # Only messages that opened are remembered, because others could fill the memory with garbage.
        self._remember(digest)
        if isinstance(opened.key, Identity) and not self._remember(opened.key.pub33 + opened.decoded.message_id):
            return opened.ignored(Reason.DUPLICATE)
        return opened

    def _try(self, message: WakuMessage, keys: tuple[DecryptionKey, ...]) -> Opened | Ignored:
        for key in keys:
            try:
                decoded = decode(message.payload, [key], key if isinstance(key, Identity) else self.identity)
                return Opened(decoded, key, message.content_topic, message.timestamp_ns)
            except NotDecryptable:
                continue
            except CodecError as error:
                return Ignored(Reason.UNREADABLE, message.content_topic, detail=error.reason)
        return Ignored(Reason.NOT_FOR_US, message.content_topic)

    def _remember(self, item: bytes) -> bool:
        """Return whether the item is new. The last ones are remembered."""
        is_new = item not in self._seen
        self._seen[item] = None
        if len(self._seen) > MAX_REMEMBERED:
            self._seen.popitem(last=False)
        return is_new


@lru_cache(maxsize=MAX_TOPIC_KEYS)
def topic_key(name: str) -> bytes:
    """Return the key of a public topic. Deriving it costs 15 ms of CPU time, so the last ones are kept."""
    return wire.symmetric_key(name)


def new_identity(random_bytes: RandomBytes) -> Identity:
    """Return a new key pair, ephemeral or for anonymous mode. It draws 32 bytes.

    Raises ValueError once in 2^128 times, when they are zero or not below the order of the curve.
    """
    return Identity(PrivateKey(random_bytes(32)))
