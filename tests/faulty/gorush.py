"""Development gorush with faults on demand at `/dev/faults`: `python -m tests.faulty.gorush`."""

import asyncio
import sys
from dataclasses import asdict

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from embedded.gorush.__main__ import main
from embedded.gorush.gateway import GATEWAY, Gateway, Settings, Settled
from embedded.gorush.http import api, server
from embedded.gorush.outcomes import Platform, Refusal, refuse
from embedded.gorush.request import Notification
from tests.faulty.gorush_faults import Faults, InvalidFaultError

FAULTS: web.AppKey[Faults] = web.AppKey("faults", Faults)
routes = web.RouteTableDef()


def create_app(settings: Settings) -> web.Application:
    app = server.create_app(settings, gateway=FaultyGateway, middlewares=[strike], routes=routes)
    app[FAULTS] = app[GATEWAY].faults
    return app


class FaultyGateway(Gateway):
    """Gateway whose pushes can be delayed or refused. A delayed push goes on when its caller closes the connection."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.faults = Faults()

    async def _push(self, notification: Notification, token: str) -> Settled:
        if self.faults.refuses_keys:
            return self._settle(notification, token, refuse(Refusal.CONFIG, Platform(notification.platform), token))
        if not self.faults.delay_ms:
            return await super()._push(notification, token)
        return await asyncio.shield(self._push_later(notification, token))

    async def _push_later(self, notification: Notification, token: str) -> Settled:
        await asyncio.sleep(self.faults.delay_ms / 1000)
        return await super()._push(notification, token)


@web.middleware
async def strike(request: web.Request, handler: Handler) -> web.StreamResponse:
    faults = request.app[FAULTS]
    if request.path.startswith("/dev/"):
        return await handler(request)
    if faults.down:
        return api.cut(request)
    if faults.status and request.path == "/api/push":
        return web.Response(status=faults.status)
    return await handler(request)


@routes.get("/dev/faults")
async def show_faults(request: web.Request) -> web.Response:
    return _json(asdict(request.app[FAULTS]))


@routes.post("/dev/faults")
async def set_faults(request: web.Request) -> web.Response:
    faults = request.app[FAULTS]
    try:
        faults.update(dict(orjson.loads(await request.read())))
    except (InvalidFaultError, TypeError, ValueError) as exc:
        raise web.HTTPBadRequest(text=str(exc)) from exc
    return _json(asdict(faults))


@routes.delete("/dev/faults")
async def clear_faults(request: web.Request) -> web.Response:
    request.app[FAULTS].update(asdict(Faults()))
    return _json(asdict(request.app[FAULTS]))


def _json(body: object) -> web.Response:
    return web.Response(body=orjson.dumps(body), content_type="application/json")


if __name__ == "__main__":
    sys.exit(main(create_app))
