"""The results of the requests: replies from a store while they come, then the pushes that gorush recorded."""

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from embedded.load import recorded
from kit.http.connections import HttpClient
from waku_bridge.client.reading import CLOCK_SKEW_NS, PAGE_SIZE
from waku_bridge.codec import topics
from waku_bridge.codec.envelope import decode
from waku_bridge.codec.errors import CodecError
from waku_bridge.codec.keys import Identity
from waku_bridge.messages import PushResponse
from waku_bridge.node import BadNodeMessage, NodeError, WakuNode, from_json

POLL_SECONDS = 0.05
# Replies are archived nearly in the order of their dates. A reply that is later than this is read at the end.
OVERLAP_NS = 500_000_000
# The key of the ciphertext in a phone's push.
CIPHERTEXT_KEY, NO_CIPHERTEXT = "encryptedMessage", "0x"
# The key of the recipient's key hash there.
RECIPIENT_KEY = "publicKey"

# The message id, whether it was a success, and when it was read (Unix nanoseconds).
Reply = tuple[bytes, bool, int]


class ReplyReader:
    """A reader of the replies to some senders in a store.

    During the load it only keeps the messages, because opening one costs as much as a request. A message that the store
    has lost, or never had, is not read.
    """

    def __init__(self, node: WakuNode, pubsub_topic: str, senders: Iterable[Identity]) -> None:
        self._node = node
        self._pubsub_topic = pubsub_topic
        self._senders: dict[str, list[Identity]] = {}
        for sender in senders:
            content_topic = topics.content_topic(topics.partitioned_name(sender.pub33))
            self._senders.setdefault(content_topic, []).append(sender)
        self._newest_ns = self._begin_ns = time.time_ns() - CLOCK_SKEW_NS
        self._noted: dict[bytes, tuple[Any, int]] = {}  # raw message and when it was read, by hash
        self._opened: dict[bytes, Reply | None] = {}

    @property
    def count(self) -> int:
        """Return how many messages were read."""
        return len(self._noted)

    async def follow(self) -> None:
        """Read new messages until cancelled."""
        while True:
            await self._poll(self._newest_ns - OVERLAP_NS)
            await asyncio.sleep(POLL_SECONDS)

    async def read_again(self) -> None:
        """Read everything once more, for messages that came out of order."""
        await self._poll(self._begin_ns)

    def replies(self) -> list[Reply]:
        """Return every answer to a request, opened. Each message is opened once."""
        for message_hash, noted in self._noted.items():
            if message_hash not in self._opened:
                self._opened[message_hash] = self._open(*noted)
        return [reply for reply in self._opened.values() if reply]

    def unanswered(self, message_ids: Collection[bytes]) -> int:
        """Return the number of these requests without an answer so far.

        The number of messages is not enough: other senders get answers on the same topics.
        """
        if self.count < len(message_ids):
            return len(message_ids) - self.count
        return len(set(message_ids) - {message_id for message_id, *_ in self.replies()})

    async def _poll(self, since_ns: int) -> None:
        cursor = ""
        while True:
            more = {"cursor": cursor} if cursor else {}
            try:
                page = await self._node.store_page(
                    pubsubTopic=self._pubsub_topic,
                    contentTopics=",".join(self._senders),
                    startTime=since_ns,
                    ascending="true",
                    pageSize=PAGE_SIZE,
                    includeData="true",
                    **more,
                )
            except NodeError:  # the node is busy, and the next query finds the same messages
                return
            now_ns = time.time_ns()
            for entry in page.entries:
                self._note(entry.message_hash, entry.message, now_ns)
            cursor = page.cursor
            if not cursor:
                return

    def _note(self, message_hash: bytes, raw: Any, now_ns: int) -> None:
        if message_hash not in self._noted and isinstance(raw, dict):
            self._noted[message_hash] = (raw, now_ns)
            timestamp = raw.get("timestamp")
            if isinstance(timestamp, int) and timestamp <= now_ns:
                self._newest_ns = max(self._newest_ns, timestamp)

    def _open(self, raw: Any, at_ns: int) -> Reply | None:
        try:
            message = from_json(raw)
        except BadNodeMessage:
            return None
        for sender in self._senders.get(message.content_topic, ()):
            try:
                body = decode(message.payload, [sender], sender).body
            except CodecError:  # it is for another sender
                continue
            if isinstance(body, PushResponse):
                return body.message_id, bool(body.reports) and all(r.success for r in body.reports), at_ns
        return None


async def pushes_recorded(
    gorush_url: str, client: HttpClient, *, since: int
) -> tuple[list[tuple[bytes, int]], int] | None:
    """Return what `recorded.pushes_recorded` does, as bytes: the ciphertext of a push, or the key hash of its recipient
    if it is a wake-up without one.
    """
    found = await recorded.pushes_recorded(gorush_url, client, identify=_identify, since=since)
    if found is None:
        return None
    pushes, last_id = found
    return [(bytes.fromhex(identifier.removeprefix("0x")), at_ns) for identifier, at_ns in pushes], last_id


def _identify(data: Mapping[str, str]) -> str:
    ciphertext = data.get(CIPHERTEXT_KEY, "")
    return data.get(RECIPIENT_KEY, "") if ciphertext == NO_CIPHERTEXT else ciphertext
