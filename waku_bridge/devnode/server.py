"""The node as an aiohttp application: routes, what all answers share, and the work beside requests."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from email.utils import formatdate

from aiohttp import web
from aiohttp.typedefs import Handler

from waku_bridge.devnode import dev, lightpush, relay, status, store
from waku_bridge.devnode.envelope import InvalidMessageError
from waku_bridge.devnode.http import not_mounted
from waku_bridge.devnode.node import NODE, Node
from waku_bridge.devnode.settings import Settings

MAX_BODY_BYTES = 16 * 1024 * 1024
COMMIT_SECONDS = 0.25
RETENTION_SECONDS = 1800
ALWAYS_THERE = frozenset({"/health", "/info", "/version", "/debug/v1/info", "/debug/v1/version"})
UNMOUNTED = ("/filter/", "/admin/", "/store/v1/", "/relay/v1/auto/", "/lightpush/v1/", "/messaging/")


def create_app(settings: Settings, *, clock_ns: Callable[[], int] = time.time_ns) -> web.Application:
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[answer])
    app[NODE] = Node(settings, clock_ns=clock_ns)
    for module in (relay, lightpush, store, status, dev):
        app.add_routes(module.routes)
    app.router.add_route("*", "/{path:.*}", refuse_unknown)
    app.cleanup_ctx.append(background_work)
    return app


@web.middleware
async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn what a handler refuses into 400 with a text, and let the faults strike that concern every answer."""
    node, is_ours = request.app[NODE], request.path.startswith("/dev/")
    try:
        response = _not_yet(request) or await handler(request)
    except InvalidMessageError as exc:
        response = web.Response(status=400, text=str(exc))
    response.headers["Date"] = formatdate(node.clock_ns() / 10**9, usegmt=True)
    if node.faults.reply_delay_ms and not is_ours:
        await asyncio.sleep(node.faults.reply_delay_ms / 1000)
    return response


def _not_yet(request: web.Request) -> web.Response | None:
    """What nwaku answers while it mounts its protocols: only what is about the node itself works."""
    if request.path in ALWAYS_THERE or request.path.startswith("/dev/"):
        return None
    if not request.app[NODE].faults.strikes("starting"):
        return None
    return web.Response(status=404, text="The endpoint is not available while the node is initializing")


async def refuse_unknown(request: web.Request) -> web.Response:
    """Answer like nwaku: 404 for a namespace that is not mounted, 400 for any other path or method it lacks."""
    if request.path.startswith(UNMOUNTED):
        return not_mounted()
    return web.Response(status=400, text="bad request")


async def background_work(app: web.Application) -> AsyncIterator[None]:
    node = app[NODE]
    tasks = [asyncio.create_task(work) for work in (_commit(node), _forget(node), *(link.run() for link in node.peers))]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    node.close()


async def _commit(node: Node) -> None:
    while True:
        await asyncio.sleep(COMMIT_SECONDS)
        node.archive.commit()


async def _forget(node: Node) -> None:
    """Retention, nwaku's default: messages older than two days go, and with them the cursors that name them."""
    while True:
        node.archive.forget_before(node.clock_ns() - node.settings.retention_seconds * 10**9)
        await asyncio.sleep(RETENTION_SECONDS)
