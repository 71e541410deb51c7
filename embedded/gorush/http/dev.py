"""The endpoints of a development server only: the recorded pushes. They show tokens, and log none."""

import orjson
from aiohttp import web

from embedded.gorush.gateway import GATEWAY
from embedded.gorush.pushes import PAGE

routes = web.RouteTableDef()


@routes.get("/dev/pushes")
async def list_pushes(request: web.Request) -> web.Response:
    """Return the pushes after `since`, at most `limit`. `last_id` is the `since` of the next call."""
    pushes = request.app[GATEWAY].pushes
    since, limit = _number(request, "since", 0), _number(request, "limit", PAGE)
    page = pushes.since(since, limit)
    last_id = page[-1]["id"] if page else since
    return _json({"pushes": page, "last_id": last_id, "counts": pushes.count_by_token()})


@routes.delete("/dev/pushes")
async def forget_pushes(request: web.Request) -> web.Response:
    request.app[GATEWAY].pushes.clear()
    return web.Response(status=204)


def _number(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name, "")
    if text and not text.isdecimal():
        raise web.HTTPBadRequest(text=f"{name} is not a number")
    return int(text) if text else default


def _json(body: object) -> web.Response:
    return web.Response(body=orjson.dumps(body), content_type="application/json")
