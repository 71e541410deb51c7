"""HTTP client of a Waku node: nwaku's REST interface, with the differences of go-waku.

Reading drains: what a GET returned is gone from the node, so the caller must store a page before it does anything else.
"""

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from time import monotonic
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import orjson

from kit.http.connections import Answer, HttpClient, was_never_sent
from kit.http.failover import Peers
from waku_bridge.messages import WakuMessage
from waku_bridge.node.config_check.readings import read_skew
from waku_bridge.node.dialect import StorePage, parse, read_store_page, refusal, store_refusal, to_json
from waku_bridge.node.errors import Busy, NodeError, NoPeers, NotSubscribed, Unreachable

JSON_HEADERS = {"Content-Type": "application/json"}
HTTP_OK = 200
HTTP_BAD_REQUEST = 400
HTTP_NOT_FOUND = 404
LIGHTPUSH_NO_PEERS = 505  # a code of lightpush; in HTTP it means something else
SUBSCRIPTIONS = "/relay/v1/subscriptions"
# A node that starts answers 404 for what it has not mounted yet, so an absent lightpush is asked for again.
LIGHTPUSH_ABSENT_SECONDS = 60.0
MAX_REASON_BYTES = 1000


class WakuNode:
    """One node at ``url``; ``client`` is shared and belongs to the caller."""

    def __init__(self, url: str, client: HttpClient) -> None:
        self.url = url
        self.name = urlsplit(url).netloc.rpartition("@")[2]  # what errors and logs say: a URL may hold a password
        self._client = client
        self._lightpush_absent_until = 0.0
        self._dated = ("", datetime.now(UTC), datetime.now(UTC))

    @property
    def skew_seconds(self) -> float | None:
        """Return how far the node's clock is ahead of ours at least, as the answer to the last read told it."""
        date, asked_at, answered_at = self._dated
        return read_skew(date, asked_at=asked_at, answered_at=answered_at) if date else None

    async def subscribe(self, pubsub_topic: str) -> None:
        """Have the node keep the messages of a shard for us.

        It is called after NotSubscribed only: on go-waku a second subscription is a twin, and each read takes from one
        of them at random.

        nwaku takes the shard for subscribed before it has joined it. After a failure it would answer reads with nothing
        and repetitions with OK for ever, so the failed subscription is taken back.
        """
        try:
            await self._post(SUBSCRIPTIONS, [pubsub_topic])
        except NodeError:
            with suppress(NodeError):
                await self._call("DELETE", SUBSCRIPTIONS, [pubsub_topic])
            raise

    async def read(self, pubsub_topic: str) -> list[Any]:
        """Drain the node's cache: raw JSON objects, roughly in the order they arrived."""
        asked_at = datetime.now(UTC)
        response = await self._call("GET", f"/relay/v1/messages/{quote(pubsub_topic, safe='')}")
        self._dated = (response.headers.get("date", ""), asked_at, datetime.now(UTC))
        if response.status_code == HTTP_NOT_FOUND:
            raise NotSubscribed(self.name)
        page = self._json(response)
        if page is None:  # go-waku's way of saying nothing
            return []
        if not isinstance(page, list):
            raise NodeError(f"{self.name} answered a read with something else than a list")
        return page

    async def publish(self, pubsub_topic: str, message: WakuMessage) -> str:
        """Hand a message to the network and return the way, "lightpush" or "relay".

        Lightpush is preferred because it tells how many peers took the message; relay says OK also when none did.
        Raises NoPeers when lightpush says that it reached nobody.
        """
        if time.monotonic() >= self._lightpush_absent_until and await self._lightpush(pubsub_topic, message):
            return "lightpush"
        path = f"/relay/v1/messages/{quote(pubsub_topic, safe='')}"
        try:
            await self._post(path, to_json(message))
        except NotSubscribed:
            await self.subscribe(pubsub_topic)
            await self._post(path, to_json(message))
        return "relay"

    async def known(self, hashes: Sequence[bytes]) -> set[bytes]:
        """Return those of these messages (hashes of 32 bytes, 100 at most) that the node's store has."""
        texts = ",".join(f"0x{each.hex()}" for each in hashes)
        page = await self.store_page(hashes=texts, includeData="false", pageSize=len(hashes))
        return {entry.message_hash for entry in page.entries}

    async def store_page(self, **params: Any) -> StorePage:
        """Return one page of store v3 (GET /store/v3/messages). Raises Busy, CursorLost or NoStore where the node says
        so.

        ``ascending`` has to be the text `true`: nwaku takes every other for `false`.
        """
        response = await self._call("GET", "/store/v3/messages", params=params)
        if response.status_code != HTTP_OK:
            raise _answered(response, store_refusal(response.status_code, _text(response), where=self.name))
        return read_store_page(self._json(response))

    async def stored(self, **params: Any) -> list[Any]:
        """Return the raw messages of one page of store v3, oldest first."""
        return [entry.message for entry in (await self.store_page(includeData="true", **params)).entries]

    async def _lightpush(self, pubsub_topic: str, message: WakuMessage) -> bool:
        body = {"pubsubTopic": pubsub_topic, "message": to_json(message)}
        response = await self._call("POST", "/lightpush/v3/message", body)
        if response.status_code == HTTP_NOT_FOUND:
            self._lightpush_absent_until = time.monotonic() + LIGHTPUSH_ABSENT_SECONDS
        if response.status_code == LIGHTPUSH_NO_PEERS or self._relayed_to_nobody(response):
            raise _answered(response, NoPeers(f"{self.name} has no peers"))
        return response.status_code == HTTP_OK

    def _relayed_to_nobody(self, response: Answer) -> bool:
        if response.status_code != HTTP_OK:
            return False
        answer = self._json(response)
        return isinstance(answer, dict) and answer.get("relayPeerCount") == 0

    async def _post(self, path: str, body: Any) -> None:
        response = await self._call("POST", path, body)
        if response.status_code == HTTP_BAD_REQUEST and b"subscribed" in response.content:
            raise NotSubscribed(self.name)
        if response.status_code != HTTP_OK:
            raise _answered(response, refusal(response.status_code, _text(response), where=self.name + path))

    async def _call(self, method: str, path: str, body: Any = None, **options: Any) -> Answer:
        content = None if body is None else orjson.dumps(body)
        try:
            return await self._client.request(method, self.url + path, content=content, headers=JSON_HEADERS, **options)
        except httpx.TransportError as error:
            kind = Unreachable if was_never_sent(error) else NodeError
            raise kind(f"{self.name} cannot be reached: {type(error).__name__}") from error

    def _json(self, response: Answer) -> Any:
        if response.status_code != HTTP_OK:
            raise _answered(response, refusal(response.status_code, _text(response), where=self.name))
        try:
            return parse(response.content)
        except (ValueError, RecursionError) as error:
            raise NodeError(f"{self.name} answered something else than JSON") from error


def _answered(response: Answer, error: NodeError) -> NodeError:
    error.status = response.status_code
    return error


def _text(response: Answer) -> str:
    return response.content[:MAX_REASON_BYTES].decode(errors="replace")


MAX_DISTRUST_SECONDS = 120.0
# A node that says it is asked too often is left alone for at least this long.
BUSY_SECONDS = 60.0


class Nodes:
    """The nodes, and how each of them did. It belongs to the one event loop that asks them."""

    def __init__(self, nodes: Iterable[WakuNode]) -> None:
        self._nodes = {node.url: node for node in nodes}
        self._peers = Peers(self._nodes, max_distrust_seconds=MAX_DISTRUST_SECONDS)

    def in_order(self, *, last: str = "") -> list[WakuNode]:
        """Return all nodes, the best first. The node at the URL ``last`` comes last, for when no other helps."""
        urls = sorted(self._peers.in_order(monotonic()), key=lambda url: url == last)
        return [self._nodes[url] for url in urls]

    def trusted(self, *, last: str = "") -> list[WakuNode]:
        """Return the nodes that did not fail a moment ago."""
        now = monotonic()
        return [node for node in self.in_order(last=last) if self._peers.is_trusted(node.url, now)]

    def failed(self, node: WakuNode, error: NodeError) -> None:
        """Note that a node failed."""
        self._peers.failed(node.url, monotonic(), min_seconds=BUSY_SECONDS if isinstance(error, Busy) else 0.0)

    def answered(self, node: WakuNode, seconds: float) -> None:
        """Note that a node answered, and how long that took."""
        self._peers.answered(node.url)
        self._peers.took(node.url, seconds, monotonic())
