"""Traffic of the Waku network: requests for our server, messages of other applications, and some nonsense on our topic.

All of it is storable, not ephemeral and dated now. A message that no store takes, and whose live answer gets lost,
cannot be found by anybody, and the bridge promises nothing about it.
"""

import os
import random
import time
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from http.client import HTTPException

import orjson
from coincurve import PrivateKey

from tests.conversation import push, registration, request
from tests.rig.peers import ask
from tests.rig.server import PUBSUB_TOPIC
from waku_bridge.codec.keys import Identity
from waku_bridge.codec.topics import message_hash
from waku_bridge.messages import WakuMessage

WAVES_PER_SECOND = 10
FOREIGN_PER_OURS = 0.5
# Nonsense has a version that no client sends, and becomes a dead letter. It is rare, as a bridge keeps only ten in a
# minute.
NONSENSE_EVERY = 2000
PAYLOAD_BYTES = 560
RETRY_SECONDS = 0.1


@dataclass(slots=True)
class Traffic:
    """Sender of messages. ``sent_at`` is when a node took each of our messages, in Unix seconds, by its hash."""

    urls: Sequence[str]
    rng: random.Random
    rate_per_second: int
    sent_at: dict[bytes, float] = field(default_factory=dict)
    nonsense: int = 0
    refused: int = 0

    def register(self) -> None:
        """Send the registration of the phone that all requests are about."""
        self._hand_over([replace(registration(enabled=False), timestamp_ns=time.time_ns())])

    def send_wave(self) -> None:
        """Send the messages of a tenth of a second, dated now."""
        ours = [_request() for _ in range(self.rate_per_second // WAVES_PER_SECOND)]
        now_ns = time.time_ns()
        ours = [replace(message, timestamp_ns=now_ns + number) for number, message in enumerate(ours)]
        others = [_foreign(self.rng, now_ns) for _ in range(round(len(ours) * FOREIGN_PER_OURS))]
        if len(self.sent_at) // NONSENSE_EVERY >= self.nonsense:
            others.append(replace(_request(), version=2, timestamp_ns=now_ns))
            self.nonsense += 1
        mixed = ours + others
        self.rng.shuffle(mixed)
        self._hand_over(mixed)
        at = time.time()
        self.sent_at |= {message_hash(PUBSUB_TOPIC, message): at for message in ours}

    def _hand_over(self, messages: Sequence[WakuMessage]) -> None:
        """Publish messages to a running node, as a peer does by gossip, and repeat until a node has them."""
        body = orjson.dumps([{"pubsubTopic": PUBSUB_TOPIC, "message": _fields(message)} for message in messages])
        while not self._is_taken(self.rng.choice(self.urls), body):
            self.refused += 1
            time.sleep(RETRY_SECONDS)

    def _is_taken(self, url: str, body: bytes) -> bool:
        try:
            return ask(url, "POST", "/dev/gossip", body).status == 204
        except (OSError, HTTPException):
            return False


def _request() -> WakuMessage:
    """Return a new sender's request to the phone that wants no pushes: it leaves rows, and succeeds at its deadline."""
    return request(push(), signer=Identity(PrivateKey()), message_id=os.urandom(32))


def _foreign(rng: random.Random, now_ns: int) -> WakuMessage:
    topic = f"/waku/1/0x{rng.getrandbits(32):08x}/rfc26"
    return WakuMessage(rng.randbytes(PAYLOAD_BYTES), topic, now_ns + rng.randrange(10**6), version=1)


def _fields(message: WakuMessage) -> dict[str, object]:
    return {
        "payload": b64encode(message.payload).decode(),
        "contentTopic": message.content_topic,
        "version": message.version,
        "timestamp": message.timestamp_ns,
    }
