"""What all client cores have in common, and how they take messages in."""

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
"""Content topics to listen to, each with the keys that may open what comes there."""


class Core(Protocol):
    """A client without I/O. What its user wants are methods of its own, and everything else passes through these.

    ``now_ns`` is Unix time in nanoseconds. Messages carry it as their timestamp, and stores admit 20 s of error.
    """

    @property
    def deadline_ns(self) -> int | None:
        """Return when ``tick`` has something to do, at the earliest, or None while nothing is due without a message."""
        ...

    def subscriptions(self) -> Subscriptions:
        """Return what to listen to now. It changes with every question."""
        ...

    def tick(self, now_ns: int) -> Step:
        """Do what is due. Calling it too often is harmless; calling it too late delays."""
        ...

    def receive(self, message: WakuMessage, now_ns: int) -> Step:
        """Take in one message from the network, of any topic, in any order, as often as it comes."""
        ...


@dataclass(frozen=True, slots=True)
class Heard:
    """A message that opened, and the key that opened it: an answer belongs to the key it is sealed for."""

    decoded: Decoded
    key: DecryptionKey


class Recent:
    """A memory of the last items that were seen, at most ``limit``."""

    def __init__(self, limit: int = MAX_REMEMBERED) -> None:
        self._limit = limit
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def __contains__(self, item: bytes) -> bool:
        return item in self._seen

    def add(self, item: bytes) -> None:
        """Remember an item."""
        self._seen[item] = None
        if len(self._seen) > self._limit:
            self._seen.popitem(last=False)


class Ear:
    """The part of a core that opens messages, each once.

    ``receiver`` is used where the codec wants a receiver and a topic has none.
    """

    def __init__(self, receiver: Identity) -> None:
        self._receiver = receiver
        self._payloads = Recent()
        self._answers = Recent()

    def open(self, message: WakuMessage, subscriptions: Subscriptions) -> Heard | Ignored:
        """Return the message opened, or the reason why it is ignored."""
        keys = subscriptions.get(message.content_topic)
        if not keys:
            return Ignored(Reason.FOREIGN_TOPIC, message.content_topic)
        if message.version != WAKU_VERSION:
            return Ignored(Reason.UNSUPPORTED_VERSION, message.content_topic)
        digest = sha256(message.payload).digest()
        if digest in self._payloads:
            return Ignored(Reason.DUPLICATE, message.content_topic)
        heard = self._try(message, keys)
        if isinstance(heard, Heard):
            # What did not open is not remembered, because garbage could otherwise push out what did.
            self._payloads.add(digest)
            return self._unless_repeated(heard, message.content_topic)
        return heard

    def _try(self, message: WakuMessage, keys: tuple[DecryptionKey, ...]) -> Heard | Ignored:
        for key in keys:
            try:
                receiver = key if isinstance(key, Identity) else self._receiver
                return Heard(decode(message.payload, [key], receiver), key)
            except NotDecryptable:
                continue
            except CodecError as error:
                return Ignored(Reason.UNREADABLE, message.content_topic, detail=error.reason)
        return Ignored(Reason.NOT_FOR_US, message.content_topic)

    def _unless_repeated(self, heard: Heard, content_topic: str) -> Heard | Ignored:
        """Return the message, unless it is an answer that came before: in a new envelope an answer says nothing new.

        A contact code does say something: that it still holds. The same answer for two keys is two answers, because
        signatures are deterministic, and so are ids.
        """
        if not isinstance(heard.key, Identity):
            return heard
        answer = heard.key.pub33 + heard.decoded.message_id
        if answer in self._answers:
            return Ignored(Reason.DUPLICATE, content_topic, heard.decoded.author)
        self._answers.add(answer)
        return heard


@lru_cache(maxsize=MAX_TOPIC_KEYS)
def topic_key(name: str) -> bytes:
    """Return the key of a public topic. To derive it costs 15 ms of CPU, so that the last ones are kept."""
    return topics.symmetric_key(name)


def new_identity(random_bytes: RandomBytes) -> Identity:
    """Return a fresh key pair, ephemeral or for anonymous mode.

    It draws 32 bytes, and again in one of 2^128 cases.
    """
    while True:
        try:
            return Identity(PrivateKey(random_bytes(32)))
        except ValueError:  # the number is zero, or not below the order of the curve
            continue
