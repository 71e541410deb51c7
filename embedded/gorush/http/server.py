"""The development gorush as an aiohttp application: routes, and the version header."""

from collections.abc import Callable, Sequence

from aiohttp import web
from aiohttp.typedefs import Middleware

from embedded.gorush.gateway import GATEWAY, Gateway, Settings
from embedded.gorush.http import api, dev
from embedded.gorush.statistics import RESPONSES, Responses, count_response

MAX_BODY_BYTES = 64 * 1024 * 1024


def create_app(
    settings: Settings,
    *,
    gateway: Callable[[Settings], Gateway] = Gateway,
    middlewares: Sequence[Middleware] = (),
    routes: web.RouteTableDef | None = None,
) -> web.Application:
    """Return the application. ``gateway``, ``middlewares`` and ``routes`` let a test add to gorush's own behaviour."""
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[count_response, *middlewares])
    app.add_routes(routes or ())
    app[GATEWAY] = gateway(settings)
    app[RESPONSES] = Responses()
    for module in (api, dev):
        app.add_routes(module.routes)
    app.router.add_route("*", "/{path:.*}", refuse_unknown)
    app.on_response_prepare.append(add_version)
    app.on_cleanup.append(close_pushes)
    return app


async def refuse_unknown(_request: web.Request) -> web.Response:
    """Answer 404, also for a known path with a wrong method, and for `//api/push`, which bare gorush does not merge."""
    return web.Response(status=404, body=b"404 page not found", content_type="text/plain")


async def add_version(_request: web.Request, response: web.StreamResponse) -> None:
    if response.status != api.REDIRECT:  # gin redirects before gorush's own code runs
        response.headers["X-GORUSH-VERSION"] = api.VERSION


async def close_pushes(app: web.Application) -> None:
    app[GATEWAY].pushes.close()
