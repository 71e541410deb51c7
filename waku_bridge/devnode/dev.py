"""What only a development node has: faults on demand, counters, and the door through which peers gossip."""

from collections.abc import Callable, Mapping

import orjson
from aiohttp import web

from waku_bridge.devnode.envelope import InvalidMessageError, read_message
from waku_bridge.devnode.faults import Faults, UnknownFaultError
from waku_bridge.devnode.http import json_reply
from waku_bridge.devnode.node import NODE, Node

ACTS: Mapping[str, Callable[[Node], None]] = {"restart": Node.restart, "forget_store": Node.forget_store}

routes = web.RouteTableDef()


@routes.get("/dev/faults")
async def show_faults(request: web.Request) -> web.Response:
    return json_reply(request.app[NODE].faults.as_dict())


@routes.post("/dev/faults")
async def set_faults(request: web.Request) -> web.Response:
    """Set the named faults. `restart` and `forget_store`, when true, are acts and no states: they happen at once."""
    node = request.app[NODE]
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
    request.app[NODE].faults = Faults()
    request.app[NODE].resize_ring()
    return json_reply(request.app[NODE].faults.as_dict())


@routes.get("/dev/stats")
async def stats(request: web.Request) -> web.Response:
    return json_reply(request.app[NODE].stats())


@routes.post("/dev/gossip")
async def gossip(request: web.Request) -> web.Response:
    node = request.app[NODE]
    try:
        for item in orjson.loads(await request.read()):
            node.receive(item["pubsubTopic"], read_message(item["message"], now_ns=node.clock_ns()))
    except (InvalidMessageError, KeyError, TypeError, ValueError) as exc:
        raise web.HTTPBadRequest(text="not a list of messages of a development node") from exc
    return web.Response(status=204)
