"""Development Waku node with faults on demand at `/dev/faults`: `python -m tests.faulty.node`.

Real nodes show these faults once a month. Faults of a message strike in `FaultyNode`, faults of an answer in the
functions of `STRIKES`.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from embedded.node.__main__ import main
from embedded.node.archive import QueryRefusedError
from embedded.node.gossip import SeenCache
from embedded.node.node import Node
from embedded.node.rest import server
from embedded.node.rest.http import json_reply
from embedded.node.rest.store import REFUSED
from embedded.node.ring import Ring
from embedded.node.settings import Settings
from embedded.node.store_query import DEFAULT_PAGE_SIZE, InvalidQueryError, read_query
from tests.faulty import go_waku
from tests.faulty.node_faults import Faults, UnknownFaultError
from waku_bridge.messages import WakuMessage

ALWAYS_THERE = frozenset({"/health", "/info", "/version", "/debug/v1/info", "/debug/v1/version"})
FAULTY: web.AppKey["FaultyNode"] = web.AppKey("faulty")
routes = web.RouteTableDef()


def create_app(settings: Settings, *, clock_ns: Callable[[], int] = time.time_ns) -> web.Application:
    node = FaultyNode(settings, clock_ns=clock_ns)
    app = server.create_app(settings, node=node, middlewares=[strike], routes=routes)
    app[FAULTY] = node
    return app


class SubscribeFailsError(Exception):
    """The topic could not be joined."""


class PublishFailsError(Exception):
    """The message was not sent."""


class ResizableRing(Ring):
    """A ring whose capacity changes while it runs."""

    def resize(self, capacity: int) -> int:
        """Set another capacity and return the number of messages that were evicted for it."""
        self._capacity = capacity
        evicted = 0
        while len(self) > capacity and self._evict():
            evicted += 1
        return evicted


class FaultyNode(Node):
    """Node with faults that concern a message."""

    def __init__(self, settings: Settings, *, clock_ns: Callable[[], int] = time.time_ns) -> None:
        super().__init__(settings, clock_ns=clock_ns)
        self.faults = Faults()
        self.ring = ResizableRing(self.ring_capacity, settings.shards)
        self._deaf: set[str] = set()
        self._is_closed = False

    def clock_ns(self) -> int:
        return super().clock_ns() + self.faults.clock_skew_ms * 10**6

    @property
    def ring_capacity(self) -> int:
        return self.faults.ring_capacity_messages or super().ring_capacity

    def resize_ring(self) -> None:
        self.counters.evicted += self.ring.resize(self.ring_capacity)

    def subscribe(self, pubsub_topic: str) -> None:
        """Raises SubscribeFailsError. nwaku marks the topic before it joins (by its source), so it neither reports the
        failure again nor repairs it.
        """
        is_lost = not self.ring.is_subscribed(pubsub_topic) and self.faults.strikes("subscribe_fails")
        super().subscribe(pubsub_topic)
        if is_lost:
            self._deaf.add(pubsub_topic)
            raise SubscribeFailsError

    def unsubscribe(self, pubsub_topic: str) -> None:
        self._deaf.discard(pubsub_topic)
        super().unsubscribe(pubsub_topic)

    def publish(self, pubsub_topic: str, message: WakuMessage) -> None:
        """Raises PublishFailsError."""
        if self.faults.strikes("publish_fails"):
            raise PublishFailsError
        super().publish(pubsub_topic, message)

    def _add_to_ring(self, pubsub_topic: str, message: WakuMessage) -> None:
        if pubsub_topic not in self._deaf:
            super()._add_to_ring(pubsub_topic, message)

    def _store(self, digest: bytes, pubsub_topic: str, message: WakuMessage) -> None:
        if self.faults.strikes("archive_refuses"):
            return
        if self.faults.archive_delay_ms:
            delay = self.faults.archive_delay_ms / 1000
            asyncio.get_running_loop().call_later(delay, self._store_late, digest, pubsub_topic, message)
        else:
            super()._store(digest, pubsub_topic, message)

    def _store_late(self, digest: bytes, pubsub_topic: str, message: WakuMessage) -> None:
        if not self._is_closed:
            super()._store(digest, pubsub_topic, message)

    def _gossip(self, pubsub_topic: str, message: WakuMessage) -> None:
        if not self.peers or self.faults.strikes("no_peers") or self.faults.strikes("gossip_lost"):
            return
        if self.faults.gossip_delay_ms:
            delay = self.faults.gossip_delay_ms / 1000
            asyncio.get_running_loop().call_later(delay, super()._gossip, pubsub_topic, message)
        else:
            super()._gossip(pubsub_topic, message)

    def restart(self) -> None:
        """Forget what a restarted node forgets: the ring and every subscription that `--shard` does not bring back."""
        self.ring = ResizableRing(self.ring_capacity, self.settings.shards)
        self._deaf.clear()
        self._seen = SeenCache()
        self.enr_seq += 1

    def forget_store(self) -> None:
        """Lose the whole archive, as when its volume was not kept. Cursors into it are gone, too."""
        self.archive.forget_before(2**63 - 1)

    def close(self) -> None:
        self._is_closed = True
        super().close()


# Answers --------------------------------------------------------------------------------------------------------------


@web.middleware
async def strike(request: web.Request, handler: Handler) -> web.StreamResponse:
    if request.path.startswith("/dev/"):
        return await handler(request)
    node = request.app[FAULTY]
    try:
        if request.path not in ALWAYS_THERE and node.faults.strikes("starting"):
            return web.Response(status=404, text="The endpoint is not available while the node is initializing")
        resource = request.match_info.route.resource
        struck = STRIKES.get((request.method, resource.canonical if resource else ""))
        return await (struck(request, handler, node) if struck else handler(request))
    finally:
        await asyncio.sleep(node.faults.reply_delay_ms / 1000)


async def subscribe(request: web.Request, handler: Handler, _node: FaultyNode) -> web.StreamResponse:
    try:
        return await handler(request)
    except SubscribeFailsError:
        return web.Response(status=500, text="Subscribe failed: could not join the topic")


async def drain(request: web.Request, handler: Handler, node: FaultyNode) -> web.StreamResponse:
    if node.faults.strikes("read_fails"):
        return web.Response(status=500, text="Failed to read messages")
    answer = _drain_go_waku(request, node) if node.faults.go_waku else await handler(request)
    if answer.status == web.HTTPOk.status_code and node.faults.strikes("cut_after_drain"):
        return cut(request)
    return answer


def _drain_go_waku(request: web.Request, node: FaultyNode) -> web.Response:
    messages = node.drain(request.match_info["pubsubTopic"])
    if messages is None:
        return web.Response(status=404)
    return json_reply([go_waku.relay_fields(message) for message in messages] or None)


async def publish(request: web.Request, handler: Handler, node: FaultyNode) -> web.StreamResponse:
    try:
        answer = await handler(request)
    except PublishFailsError:
        return web.Response(status=500, text="Failed to publish: timedout")
    is_cut = answer.status == web.HTTPOk.status_code and node.faults.strikes("cut_after_publish")
    return cut(request) if is_cut else answer


async def ask_store(request: web.Request, handler: Handler, node: FaultyNode) -> web.StreamResponse:
    has_cursor = bool(request.query.get("cursor"))
    if has_cursor and node.faults.strikes("store_cursor_stuck"):
        request = request.clone(rel_url=request.rel_url.without_query_params("cursor"))
    answer = _ask_go_waku(request, node) if node.faults.go_waku else await handler(request)
    if answer.status != web.HTTPOk.status_code:
        return answer
    if has_cursor and node.faults.strikes("store_page_empty"):
        return json_reply(_fields(answer) | {"messages": [], "paginationCursor": None})
    if has_cursor and not _fields(answer).get("paginationCursor") and node.faults.strikes("store_cursor_circles"):
        first = await handler(request.clone(rel_url=request.rel_url.without_query_params("cursor")))
        return json_reply(_fields(answer) | {"paginationCursor": _fields(first)["paginationCursor"]})
    return _refuse(node.faults, has_cursor=has_cursor) or _double(request, answer, node.faults)


def _ask_go_waku(request: web.Request, node: FaultyNode) -> web.Response:
    try:
        query = read_query(go_waku.store_parameters(request.query))
        page = node.archive.find(query)
    except InvalidQueryError as exc:
        return web.Response(status=400, text=str(exc))
    except QueryRefusedError as exc:
        return web.Response(status=500, text=f"{REFUSED}: {exc}")
    return json_reply(go_waku.page_fields(page, include_data=query.include_data))


def _refuse(faults: Faults, *, has_cursor: bool) -> web.Response | None:
    if faults.strikes("store_no_peer"):
        return web.Response(status=412, text="No suitable service peer & no discovery method")
    if faults.strikes("store_rate_limited"):
        return web.Response(status=429, text="Request rate limit reached")
    if faults.strikes("store_too_many_requests"):
        return web.Response(status=500, text="Error occurred in queryFut.read() [TOO_MANY_REQUESTS]")
    if has_cursor and faults.strikes("store_cursor_not_found"):
        return web.Response(status=500, text=f"{REFUSED}: DRIVER_ERROR: cursor not found")
    return None


def _double(request: web.Request, answer: web.StreamResponse, faults: Faults) -> web.StreamResponse:
    """Repeat the last message of a page, without exceeding the requested page size."""
    fields = _fields(answer)
    if not fields["messages"] or not faults.strikes("store_duplicates"):
        return answer
    size = int(request.query.get("pageSize") or DEFAULT_PAGE_SIZE)
    return json_reply(fields | {"messages": [*fields["messages"], fields["messages"][-1]][-size:]})


async def health(request: web.Request, handler: Handler, node: FaultyNode) -> web.StreamResponse:
    if node.faults.starting:
        return json_reply({"nodeHealth": "INITIALIZING", "protocolsHealth": []})
    fields = _fields(await handler(request))
    changes: dict[str, dict[str, str]] = {}
    if node.faults.no_peers:
        fields |= {"connectionStatus": "Disconnected"}
        changes["Relay"] = {"Relay": "NOT_READY", "desc": "No connected peers"}
    if node.faults.store_no_peer:
        changes["Store"] = {"Store": "NOT_MOUNTED"}
    protocols = [changes.get(next(iter(protocol)), protocol) for protocol in fields["protocolsHealth"]]
    return json_reply(fields | {"protocolsHealth": protocols})


def _fields(answer: web.StreamResponse) -> dict[str, object]:
    assert isinstance(answer, web.Response)
    fields: dict[str, object] = orjson.loads(answer.body)
    return fields


def cut(request: web.Request) -> web.Response:
    """Break the connection, as a crash or a bad network does. The returned response is never sent."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


Strike = Callable[[web.Request, Handler, FaultyNode], Awaitable[web.StreamResponse]]
STRIKES: Mapping[tuple[str, str], Strike] = {
    ("POST", "/relay/v1/subscriptions"): subscribe,
    ("GET", "/relay/v1/messages/{pubsubTopic}"): drain,
    ("POST", "/relay/v1/messages/{pubsubTopic}"): publish,
    ("GET", "/store/v3/messages"): ask_store,
    ("GET", "/health"): health,
}


# Switches -------------------------------------------------------------------------------------------------------------

ACTS: Mapping[str, Callable[[FaultyNode], None]] = {
    "restart": FaultyNode.restart,
    "forget_store": FaultyNode.forget_store,
}


@routes.get("/dev/faults")
async def show_faults(request: web.Request) -> web.Response:
    return json_reply(request.app[FAULTY].faults.as_dict())


@routes.post("/dev/faults")
async def set_faults(request: web.Request) -> web.Response:
    """Set the named faults. `restart` and `forget_store`, when true, are actions that happen at once."""
    node = request.app[FAULTY]
    try:
        switches = dict(orjson.loads(await request.read()))
        acts = [act for name, act in ACTS.items() if switches.pop(name, False)]
        node.faults.update(switches)
    except (UnknownFaultError, TypeError, ValueError) as exc:
        raise web.HTTPBadRequest(text=str(exc)) from exc
    for act in acts:
        act(node)
    node.resize_ring()
    return json_reply(node.faults.as_dict())


@routes.delete("/dev/faults")
async def clear_faults(request: web.Request) -> web.Response:
    node = request.app[FAULTY]
    node.faults.update(asdict(Faults()))
    node.resize_ring()
    return json_reply(node.faults.as_dict())


if __name__ == "__main__":
    sys.exit(main(create_app))
