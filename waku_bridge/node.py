"""HTTP client of a Waku node: nwaku's REST interface, with the differences of go-waku (`dialect`). See docs/waku.md.

Reading drains: the messages that a GET returned are gone from the node. So the caller must store a page before it does
anything else.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from time import monotonic
from typing import Any
from urllib.parse import quote, urlencode

import orjson

from kit.display import host_of
from kit.http import ERRORS, NEVER_SENT, Answer, Connections, Peers
from waku_bridge.dialect import (
    Busy,
    NodeError,
    NoPeers,
    NotSubscribed,
    StorePage,
    Unreachable,
    parse,
    read_skew,
    read_store_page,
    refusal,
    reports_no_peers,
    store_refusal,
    to_json,
)
from waku_bridge.messages import WakuMessage

JSON_HEADERS = {"Content-Type": "application/json"}
HTTP_OK = 200
HTTP_BAD_REQUEST = 400
HTTP_NOT_FOUND = 404
HTTP_NOT_IMPLEMENTED = 501
SUBSCRIPTIONS = "/relay/v1/subscriptions"
# All messages that are published within this time share one answer of the node about its peers.
PEERS_SECONDS = 1.0
MAX_REASON_BYTES = 1000


class WakuNode:
    """One node at ``url``. The caller owns the connections, which nodes share."""

    def __init__(self, url: str, connections: Connections) -> None:
        self.url = url
        self.name = host_of(url)
        self._connections = connections
        self._peers: asyncio.Task[NodeError | None] | None = None
        self._peers_until = 0.0
        self._dated = ("", datetime.now(UTC), datetime.now(UTC))

    @property
    def skew_seconds(self) -> float | None:
        """Return how far the node's clock is ahead of ours at least, by the date of its answer to the last read."""
        date, asked_at, answered_at = self._dated
        return read_skew(date, asked_at=asked_at, answered_at=answered_at) if date else None

    async def subscribe(self, pubsub_topic: str) -> None:
        """Have the node keep the messages of a shard for us.

        Call it after NotSubscribed only: go-waku adds a second subscription, and each read takes from one of the two at
        random.

        nwaku marks the shard as subscribed before it has joined it. After a failure it would answer reads with empty
        pages and repeated subscriptions with OK for ever. So a failed subscription is removed again.
        """
        try:
            await self._post(SUBSCRIPTIONS, [pubsub_topic])
        except NodeError:
            with suppress(NodeError):
                await self._call("DELETE", SUBSCRIPTIONS, [pubsub_topic])
            raise

    async def read(self, pubsub_topic: str) -> list[Any]:
        """Drain the node's cache, and return raw JSON objects, roughly in order of arrival."""
        asked_at = datetime.now(UTC)
        response = await self._call("GET", f"/relay/v1/messages/{quote(pubsub_topic, safe='')}")
        self._dated = (response.headers.get("date", ""), asked_at, datetime.now(UTC))
        if response.status == HTTP_NOT_FOUND:
            raise NotSubscribed(self.name)
        page = self._json(response)
        if page is None:  # go-waku's form of an empty list
            return []
        if not isinstance(page, list):
            raise NodeError(f"{self.name} answered a read without a list")
        return page

    async def publish(self, pubsub_topic: str, message: WakuMessage) -> None:
        """Publish a message by relay.

        Raises NoPeers, and sends nothing, while the node reports that its relay has no peers: relay would answer OK,
        keep the message for its own store, and for two minutes pass the same bytes to nobody.
        """
        if error := await self._trouble_with_peers():
            raise error
        path = f"/relay/v1/messages/{quote(pubsub_topic, safe='')}"
        try:
            await self._post(path, to_json(message))
        except NotSubscribed:
            await self.subscribe(pubsub_topic)
            await self._post(path, to_json(message))

    async def known(self, hashes: Sequence[bytes]) -> set[bytes]:
        """Return the hashes among these (32 bytes each, 100 at most) that the node's store has."""
        texts = ",".join(f"0x{each.hex()}" for each in hashes)
        page = await self.store_page(hashes=texts, includeData="false", pageSize=len(hashes))
        return {entry.message_hash for entry in page.entries}

    async def store_page(self, **params: Any) -> StorePage:
        """Return one page of store v3 (GET /store/v3/messages). Raises Busy, CursorLost, NoStore or another NodeError.

        ``ascending`` has to be the text `true`: nwaku treats every other text as `false`.
        """
        query = urlencode(params, quote_via=quote, safe="")  # for nwaku, a plain comma separates two values
        response = await self._call("GET", f"/store/v3/messages?{query}")
        if response.status != HTTP_OK:
            raise self._refusal(response, store_refusal)
        return read_store_page(self._json(response))

    async def stored(self, **params: Any) -> list[Any]:
        """Return the raw messages of one page of store v3, oldest first."""
        return [entry.message for entry in (await self.store_page(includeData="true", **params)).entries]

    async def _trouble_with_peers(self) -> NodeError | None:
        if monotonic() >= self._peers_until:
            self._peers_until = monotonic() + PEERS_SECONDS
            self._peers = asyncio.create_task(self._look_for_peers())
        assert self._peers is not None  # noqa: S101 - the first call is after `_peers_until`
        error = await asyncio.shield(self._peers)  # others wait for the same answer
        if error and not isinstance(error, NoPeers):
            self._peers_until = 0.0
        return error

    async def _look_for_peers(self) -> NodeError | None:
        """Return NoPeers, or the error that the health was answered with, or None.

        A node without a report (go-waku) refuses the message itself when it has no peers.
        """
        try:
            response = await self._call("GET", "/health")
            if response.status in (HTTP_NOT_FOUND, HTTP_NOT_IMPLEMENTED):
                return None
            health = self._json(response)
        except NodeError as error:
            return error
        return NoPeers(f"{self.name} has no peers") if reports_no_peers(health) else None

    async def _post(self, path: str, body: Any) -> None:
        response = await self._call("POST", path, body)
        if response.status == HTTP_BAD_REQUEST and b"subscribed" in response.body:
            raise NotSubscribed(self.name)
        if response.status != HTTP_OK:
            raise self._refusal(response, path=path)

    async def _call(self, method: str, path: str, body: Any = None) -> Answer:
        content = None if body is None else orjson.dumps(body)
        try:
            return await self._connections.request(method, self.url + path, body=content, headers=JSON_HEADERS)
        except ERRORS as error:
            kind = Unreachable if isinstance(error, NEVER_SENT) else NodeError
            raise kind(f"{self.name} cannot be reached: {type(error).__name__}") from error

    def _json(self, response: Answer) -> Any:
        if response.status != HTTP_OK:
            raise self._refusal(response)
        try:
            return parse(response.body)
        except (ValueError, RecursionError) as error:
            raise NodeError(f"{self.name} answered without JSON") from error

    def _refusal(self, response: Answer, read: Callable[..., NodeError] = refusal, path: str = "") -> NodeError:
        text = response.body[:MAX_REASON_BYTES].decode(errors="replace")
        error = read(response.status, text, where=self.name + path)
        error.status = response.status
        return error


MAX_DISTRUST_SECONDS = 120.0
# A node that limits our rate gets no request for at least this long.
BUSY_SECONDS = 60.0
# A second node is offered the same message for at most this share of all messages, because otherwise slow nodes would
# get twice the load. What was not used is saved up, for the messages that are under way when a node begins to hang.
HEDGED_SHARE = 0.1
HEDGED_AT_ONCE = 100


class Nodes:
    """The nodes in the order of their recent health. Only one event loop may use an instance."""

    def __init__(self, nodes: Iterable[WakuNode]) -> None:
        self._nodes = {node.url: node for node in nodes}
        self._peers = Peers(self._nodes, max_distrust_seconds=MAX_DISTRUST_SECONDS)
        self._hedges: float = HEDGED_AT_ONCE

    def in_order(self, *, last: str = "") -> list[WakuNode]:
        """Return all nodes, the healthiest first, and the node at the URL ``last`` at the end."""
        urls = sorted(self._peers.in_order(monotonic()), key=lambda url: url == last)
        return [self._nodes[url] for url in urls]

    def trusted(self, *, last: str = "") -> list[WakuNode]:
        """Return the nodes that did not fail a moment ago."""
        now = monotonic()
        return [node for node in self.in_order(last=last) if self._peers.is_trusted(node.url, now)]

    def failed(self, node: WakuNode, error: NodeError) -> None:
        """Note that a node failed, and prefer others for a while."""
        self._peers.failed(node.url, monotonic(), min_seconds=BUSY_SECONDS if isinstance(error, Busy) else 0.0)

    def answered(self, node: WakuNode, seconds: float) -> None:
        """Note that a node answered within these seconds."""
        self._hedges = min(self._hedges + HEDGED_SHARE, HEDGED_AT_ONCE)
        self._peers.answered(node.url)
        self._peers.took(node.url, seconds, monotonic())

    def may_hedge(self) -> bool:
        """Return whether a message may be offered to a second node while the first does not answer, and count it."""
        may = self._hedges >= 1
        self._hedges -= may
        return may
