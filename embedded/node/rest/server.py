"""The node as an aiohttp application: routes, common headers and errors, and background work."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from email.utils import formatdate

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from embedded.node.envelope import InvalidMessageError
from embedded.node.node import NODE, Node
from embedded.node.rest import dev, relay, status, store
from embedded.node.settings import Settings

MAX_BODY_BYTES = 16 * 1024 * 1024
RETENTION_SECONDS = 1800


def create_app(
    settings: Settings,
    *,
    clock_ns: Callable[[], int] = time.time_ns,
    node: Node | None = None,
    middlewares: Sequence[Middleware] = (),
    routes: web.RouteTableDef | None = None,
) -> web.Application:
    """Return the application of one node.

    ``node``, ``middlewares`` and ``routes`` let a test add to nwaku's own behaviour.
    """
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[answer, *middlewares])
    app[NODE] = node or Node(settings, clock_ns=clock_ns)
    app.add_routes(routes or ())
    for module in (relay, store, status, dev):
        app.add_routes(module.routes)
    app.router.add_route("*", "/{path:.*}", refuse_unknown)
    app.cleanup_ctx.append(background_work)
    return app


@web.middleware
async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer a refusal of a handler with 400 and its text. Every answer has the node's time and ends its connection."""
    try:
        response = await handler(request)
    except InvalidMessageError as exc:
        response = web.Response(status=400, text=str(exc))
    response.headers["Date"] = formatdate(request.app[NODE].clock_ns() / 10**9, usegmt=True)
    response.force_close()
    return response


async def refuse_unknown(_request: web.Request) -> web.Response:
    """Answer with 404 and an empty body to any path or method that the node lacks, HEAD among them."""
    return web.Response(status=404)


async def background_work(app: web.Application) -> AsyncIterator[None]:
    """Run a node's background work until the application ends."""
    node = app[NODE]
    tasks = [asyncio.create_task(work) for work in (_forget(node), *(link.run() for link in node.peers))]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    node.close()


async def _forget(node: Node) -> None:
    """Delete messages older than two days, nwaku's default retention. Their cursors become invalid."""
    while True:
        node.archive.forget_before(node.clock_ns() - node.settings.retention_seconds * 10**9)
        await asyncio.sleep(RETENTION_SECONDS)
