"""The endpoints that only a development node has: counters, and the endpoint for its peers' gossip."""

import orjson
from aiohttp import web

from embedded.node.envelope import InvalidMessageError, read_message
from embedded.node.node import NODE
from embedded.node.rest.http import json_reply

routes = web.RouteTableDef()


@routes.get("/dev/stats", allow_head=False)
async def stats(request: web.Request) -> web.Response:
    return json_reply(request.app[NODE].stats())


@routes.post("/dev/gossip")
async def gossip(request: web.Request) -> web.Response:
    """Receive messages from a peer."""
    node = request.app[NODE]
    try:
        for item in orjson.loads(await request.read()):
            node.receive(item["pubsubTopic"], read_message(item["message"], now_ns=node.clock_ns()))
    except (InvalidMessageError, KeyError, TypeError, ValueError) as exc:
        raise web.HTTPBadRequest(text="not a list of messages of a development node") from exc
    return web.Response(status=204)
