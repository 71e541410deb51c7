"""HTTP behaviour that all of nwaku's endpoints share: how they read a body, answer, and fail."""

import orjson
from aiohttp import web

from embedded.node.envelope import InvalidMessageError, parse_json

ACCEPTED_TYPES = ("application/json", "text/plain")


async def read_json(request: web.Request) -> object:
    """Parse the body. Raises InvalidMessageError, for no body without a text."""
    body = await request.read()
    if not body:
        raise InvalidMessageError
    if request.content_type not in ACCEPTED_TYPES:
        raise InvalidMessageError("Wrong Content-Type, expected application/json or text/plain")
    return parse_json(body)


def json_reply(body: object, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")


def ok() -> web.Response:
    return web.Response(text="OK")
