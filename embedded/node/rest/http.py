"""HTTP behaviour that all of nwaku's endpoints share: how they read a body, answer, and fail."""

import orjson
from aiohttp import web

from embedded.node.envelope import InvalidMessageError, parse_json

ACCEPTED_TYPES = ("application/json", "text/plain")


async def read_json(request: web.Request) -> object:
    """Parse the body. Raises InvalidMessageError without a body, for another content type, or for lax JSON."""
    body = await request.read()
    if not body:
        raise InvalidMessageError("Missing content body")
    if request.content_type not in ACCEPTED_TYPES:
        raise InvalidMessageError("Wrong Content-Type, expected application/json or text/plain")
    return parse_json(body)


def json_reply(body: object, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")


def not_mounted() -> web.Response:
    return web.Response(status=404, text="The requested protocol is not mounted on this node")


def ok() -> web.Response:
    return web.Response(text="OK")
