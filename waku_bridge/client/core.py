"""The common part of all client cores: their interface, and the opening of messages."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Protocol

from coincurve import PrivateKey

from waku_bridge.client.events import Ignored, Reason, Step
from waku_bridge.codec import topics
from waku_bridge.codec.envelope import decode
from waku_bridge.codec.errors import CodecError, NotDecryptable
from waku_bridge.codec.keys import DecryptionKey, Identity, RandomBytes
from waku_bridge.messages import Decoded, WakuMessage

WAKU_VERSION = 1
MAX_REMEMBERED = 10_000
MAX_TOPIC_KEYS = 1000

Subscriptions = Mapping[str, tuple[DecryptionKey, ...]]
"""Content topics to read, each with the keys that may open messages on it."""


class Core(Protocol):
    """The interface of a client without I/O. Each client has further methods for the requests of its user.

    ``now_ns`` is Unix time in nanoseconds. Messages carry it as their timestamp, and stores accept an error of 20 s.
    """

    @property
    def deadline_ns(self) -> int | None:
        """Return the earliest time at which ``tick`` has work, or None while only a message can cause work."""
        ...

    def subscriptions(self) -> Subscriptions:
        """Return the topics to read now. They change with every query and request."""
        ...

    def tick(self, now_ns: int) -> Step:
        """Do all work that is due. An early call is harmless, and a late call delays the work."""
        ...

    def receive(self, message: WakuMessage, now_ns: int) -> Step:
        """Take in one message from the network, of any topic, in any order, as often as it comes."""
        ...


@dataclass(frozen=True, slots=True)
class Opened:
    """A decoded message, and the key that opened it. An answer belongs to the query or request of that key."""

    decoded: Decoded
    key: DecryptionKey


class Recent:
    """A memory of the last items."""

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def __contains__(self, item: bytes) -> bool:
        return item in self._seen

    def add(self, item: bytes) -> None:
        self._seen[item] = None
        if len(self._seen) > MAX_REMEMBERED:
            self._seen.popitem(last=False)


class Opener:
    """The part of a core that opens messages, each once.

    ``receiver`` is the codec's receiver for messages that a topic's key opens.
    """

    def __init__(self, receiver: Identity) -> None:
        self._receiver = receiver
        self._payloads = Recent()
        self._answers = Recent()

    def open(self, message: WakuMessage, subscriptions: Subscriptions) -> Opened | Ignored:
        """Return the opened message, or the reason why it is ignored."""
        keys = subscriptions.get(message.content_topic)
        if not keys:
            return Ignored(Reason.FOREIGN_TOPIC, message.content_topic)
        if message.version != WAKU_VERSION:
            return Ignored(Reason.UNSUPPORTED_VERSION, message.content_topic)
        digest = sha256(message.payload).digest()
        if digest in self._payloads:
            return Ignored(Reason.DUPLICATE, message.content_topic)
        opened = self._try(message, keys)
        if isinstance(opened, Opened):
            # Only messages that opened are remembered, because others could fill the memory with garbage.
            self._payloads.add(digest)
            return self._unless_repeated(opened, message.content_topic)
        return opened

    def _try(self, message: WakuMessage, keys: tuple[DecryptionKey, ...]) -> Opened | Ignored:
        for key in keys:
            try:
                receiver = key if isinstance(key, Identity) else self._receiver
                return Opened(decode(message.payload, [key], receiver), key)
            except NotDecryptable:
                continue
            except CodecError as error:
                return Ignored(Reason.UNREADABLE, message.content_topic, detail=error.reason)
        return Ignored(Reason.NOT_FOR_US, message.content_topic)

    def _unless_repeated(self, opened: Opened, content_topic: str) -> Opened | Ignored:
        """Return the message, unless it is an answer that came before in another envelope.

        A repeated contact code is returned, because it confirms that the code is still valid. The same answer for two
        keys is two answers: signatures are deterministic, so both have the same id.
        """
        if not isinstance(opened.key, Identity):
            return opened
        answer = opened.key.pub33 + opened.decoded.message_id
        if answer in self._answers:
            return Ignored(Reason.DUPLICATE, content_topic, opened.decoded.author)
        self._answers.add(answer)
        return opened


@lru_cache(maxsize=MAX_TOPIC_KEYS)
def topic_key(name: str) -> bytes:
    """Return the key of a public topic. Deriving it costs 15 ms of CPU time, so the last ones are kept."""
    return topics.symmetric_key(name)


def new_identity(random_bytes: RandomBytes) -> Identity:
    """Return a new key pair, ephemeral or for anonymous mode.

    It draws 32 bytes, and once in 2^128 times it draws again.
    """
    while True:
        try:
            return Identity(PrivateKey(random_bytes(32)))
        except ValueError:  # the number is zero, or not below the order of the curve
            continue
