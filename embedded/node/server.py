"""The REST interface of nwaku, as far as our code looks, with the node's faults; and what a development node adds.

Every answer has the node's time and ends its connection. `/health` is 200 even when the node is not ready.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from email.utils import formatdate

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from embedded.dev_server import add_faults, cut, json_reply
from embedded.node.node import NODE, Node, Settings
from embedded.node.store import QueryRefusedError
from embedded.node.wire import InvalidRequestError, is_static_shard, message_fields, read_message, read_query, write_enr
from waku_bridge.codec.wire import serialize_message

MAX_BODY_BYTES = 16 * 1024 * 1024
ACCEPTED_TYPES = ("application/json", "text/plain")
VERSION = "v0.38.1-devnode"
# What a store answers while it has a fault of this name.
STORE_FAULTS = {
    "store_no_peer": (412, "No suitable service peer & no discovery method"),
    "store_rate_limited": (429, "Request rate limit reached"),
    "store_too_many_requests": (500, "Error occurred in queryFut.read() [TOO_MANY_REQUESTS]"),
}
REFUSED = "error in handleSelfStoreRequest: BAD_RESPONSE: archive error"
ALWAYS_THERE = frozenset({"/health", "/debug/v1/info", "/debug/v1/version"})
routes = web.RouteTableDef()


def create_app(settings: Settings, *, clock_ns: Callable[[], int] = time.time_ns) -> web.Application:
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[answer])
    app[NODE] = node = Node(settings, clock_ns=clock_ns)
    add_faults(app, node.faults)
    app.add_routes(routes)
    app.cleanup_ctx.append(background_work)
    return app


async def background_work(app: web.Application) -> AsyncIterator[None]:
    """Let the node gossip until the application ends."""
    node = app[NODE]
    gossiping = asyncio.gather(*map(node.push_to, node.peers))
    yield
    gossiping.cancel()
    await asyncio.gather(gossiping, return_exceptions=True)
    node.close()


@web.middleware
async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer a refusal of a handler with its text, and strike with the faults of the whole node.

    A path or method that the node lacks, HEAD among them, is answered with 404 and an empty body.
    """
    node, is_dev = request.app[NODE], request.path.startswith("/dev/")
    text = "The endpoint is not available while the node is initializing"
    response: web.StreamResponse = web.Response(status=404, text=text)
    try:
        if is_dev or request.path in ALWAYS_THERE or not node.faults.strikes("starting"):
            response = await handler(request)
    except (web.HTTPNotFound, web.HTTPMethodNotAllowed):
        response = web.Response(status=404)
    except InvalidRequestError as exc:
        response = web.Response(status=400, text=str(exc))
    except QueryRefusedError as exc:
        response = web.Response(status=500, text=f"{REFUSED}: {exc}")
    if node.faults.reply_delay_ms and not is_dev:
        await asyncio.sleep(node.faults.reply_delay_ms / 1000)
    response.headers["Date"] = formatdate(node.clock_ns() / 10**9, usegmt=True)
    response.force_close()
    return response


# Relay with static sharding -------------------------------------------------------------------------------------------


@routes.post("/relay/v1/subscriptions")
async def subscribe(request: web.Request) -> web.Response:
    joined = [request.app[NODE].subscribe(topic) for topic in await _read_topics(request)]
    return web.Response(text="OK") if all(joined) else web.Response(status=500, text="Subscribe failed: not joined")


@routes.delete("/relay/v1/subscriptions")
async def unsubscribe(request: web.Request) -> web.Response:
    for topic in await _read_topics(request):
        request.app[NODE].unsubscribe(topic)
    return web.Response(text="OK")


async def _read_topics(request: web.Request) -> list[str]:
    topics = await _read_json(request)
    if not isinstance(topics, list) or not all(isinstance(topic, str) and is_static_shard(topic) for topic in topics):
        raise InvalidRequestError("Invalid content body, could not decode: not a list of static shards")
    return topics


async def _read_json(request: web.Request) -> object:
    """Parse the body. Raises InvalidRequestError, for no body without a text."""
    if not (body := await request.read()):
        raise InvalidRequestError
    if request.content_type not in ACCEPTED_TYPES:
        raise InvalidRequestError("Wrong Content-Type, expected application/json or text/plain")
    try:
        return orjson.loads(body)
    except ValueError as exc:
        raise InvalidRequestError("Invalid content body, could not decode") from exc


@routes.get("/relay/v1/messages/{pubsubTopic}", allow_head=False)
async def drain(request: web.Request) -> web.Response:
    """Answer with everything on the topic, and forget it before the answer has arrived."""
    node = request.app[NODE]
    if node.faults.strikes("read_fails"):
        return web.Response(status=500, text="Failed to read messages")
    messages = node.ring.drain(request.match_info["pubsubTopic"])
    if messages is None:
        return web.Response(status=404)
    page = [message_fields(message) | {"proof": ""} for message in messages]
    return cut(request) if node.faults.strikes("cut_after_drain") else json_reply(page)


@routes.post("/relay/v1/messages/{pubsubTopic}")
async def publish(request: web.Request) -> web.Response:
    """Answer OK even when no peer took the message. The body is read only for a shard that the node has joined."""
    node, topic = request.app[NODE], request.match_info["pubsubTopic"]
    if topic not in node.ring.topics:
        raise InvalidRequestError(f"Failed to publish: Node not subscribed to topic: {topic[:100]}")
    message = read_message(await _read_json(request), now_ns=node.clock_ns())
    if len(serialize_message(message)) > (limit := node.settings.max_message_bytes):
        raise InvalidRequestError(f"Failed to publish: Message size exceeded maximum of {limit} bytes")
    node.publish(topic, message)
    return cut(request) if node.faults.strikes("cut_after_publish") else web.Response(text="OK")


# Store ----------------------------------------------------------------------------------------------------------------


@routes.get("/store/v3/messages", allow_head=False)
async def messages(request: web.Request) -> web.Response:
    """Answer a query from this node's own archive, or refuse a faulty one."""
    faults, query = request.app[NODE].faults, read_query(request.query)
    find, is_later = request.app[NODE].archive.find, query.cursor is not None
    for fault, (status, text) in STORE_FAULTS.items():
        if faults.strikes(fault):
            return web.Response(status=status, text=text)
    if is_later and faults.strikes("store_cursor_not_found"):
        raise QueryRefusedError("DRIVER_ERROR: cursor not found")
    page = find(replace(query, cursor=None) if is_later and faults.strikes("store_cursor_stuck") else query)
    if is_later and "paginationCursor" not in page and faults.strikes("store_cursor_circles"):
        page = find(replace(query, cursor=None)) | page
    if is_later and faults.strikes("store_page_empty"):
        page = {name: value for name, value in page.items() if name != "paginationCursor"} | {"messages": []}
    if page["messages"] and faults.strikes("store_duplicates"):
        page["messages"] = [*page["messages"], page["messages"][-1]][-query.page_size :]
    return json_reply(page)


# About itself ---------------------------------------------------------------------------------------------------------


@routes.get("/health", allow_head=False)
async def health(request: web.Request) -> web.Response:
    """Answer as measured on v0.38.1, with the protocols that somebody reads.

    A lone node stands for the network, and counts that as a peer. A real one without peers gives a message to nobody.
    """
    node = request.app[NODE]
    if node.faults.starting:
        return json_reply({"nodeHealth": "INITIALIZING", "protocolsHealth": []})
    relay, connection = {"Relay": "READY"}, "PartiallyConnected"
    if node.faults.no_peers:
        relay, connection = {"Relay": "NOT_READY", "desc": "No connected peers"}, "Disconnected"
    protocols = [relay, {"Store": "NOT_MOUNTED" if node.faults.store_no_peer else "READY"}]
    return json_reply({"nodeHealth": "READY", "connectionStatus": connection, "protocolsHealth": protocols})


@routes.get("/debug/v1/info", allow_head=False)
async def info(request: web.Request) -> web.Response:
    node, host = request.app[NODE], request.url.host
    record = write_enr(node.settings.shards, seq=node.enr_seq)
    return json_reply({"listenAddresses": [f"/ip4/{host}/tcp/60000/p2p/devnode"], "enrUri": record})


@routes.get("/debug/v1/version", allow_head=False)
async def version(_request: web.Request) -> web.Response:
    return web.Response(text=VERSION)


# What only a development node has -------------------------------------------------------------------------------------


@routes.post("/dev/gossip")
async def gossip(request: web.Request) -> web.Response:
    """Receive messages from a peer."""
    node = request.app[NODE]
    for item in orjson.loads(await request.read()):
        node.receive(item["pubsubTopic"], read_message(item["message"], now_ns=node.clock_ns()))
    return web.Response(status=204)
