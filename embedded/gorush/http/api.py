"""gorush's own endpoints, at its default paths."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict

import orjson
from aiohttp import web

from embedded.gorush.config import CONFIG
from embedded.gorush.gateway import GATEWAY, Gateway, Settled
from embedded.gorush.outcomes import Answer, Platform
from embedded.gorush.request import BadRequestError, count, is_enabled, read_push
from embedded.gorush.statistics import METRICS_TYPE, RESPONSES, as_prometheus
from notifications.gateways.gorush.answers.masking import mask

VERSION = "v1.22.0-devserver"
JSON = "application/json"
HANG_CHECK_SECONDS = 0.5
REDIRECT = 307
routes = web.RouteTableDef()


@routes.post("/api/push")
async def push(request: web.Request) -> web.Response:
    """Answer in sync mode: when every push of the request is settled, and with failures only."""
    gateway = request.app[GATEWAY]
    try:
        notifications = read_push(await request.read())
    except BadRequestError as exc:
        return _json({"code": 400, "message": str(exc)}, status=400)
    settled = await gateway.send_all(notifications)
    answer = max((one.outcome.answer for one in settled), default=Answer.RESULT)
    if answer is not Answer.RESULT:
        return await _withhold(request, answer)
    counts = sum(map(count, filter(is_enabled, notifications)))
    return _json({"counts": counts, "logs": _failures(gateway, settled), "success": "ok"})


def _failures(gateway: Gateway, settled: Sequence[Settled]) -> list[dict[str, str]]:
    hide = gateway.settings.hide_token
    return [_failure(one, mask(one.token) if hide else one.token) for one in settled if one.outcome.error]


def _failure(settled: Settled, token: str) -> dict[str, str]:
    notification = settled.notification
    entry = {"notif_id": notification.notif_id} if notification.notif_id else {}
    return {
        **entry,
        "type": "failed-push",
        "platform": Platform(notification.platform).name.lower(),
        "token": token,
        "message": notification.message,
        "error": settled.outcome.error,
    }


async def _withhold(request: web.Request, answer: Answer) -> web.Response:
    if answer is Answer.GARBAGE:
        return web.Response(text="<html><body>It works!</body></html>", content_type="text/html")
    if answer is Answer.EMPTY_500:
        return web.Response(status=500)
    if answer is Answer.HANG:
        await _caller_gone(request)
    return cut(request)


async def _caller_gone(request: web.Request) -> None:
    # aiohttp keeps a handler running when its caller leaves, and has no event for it.
    while request.transport is not None and not request.transport.is_closing():  # noqa: ASYNC110
        await asyncio.sleep(HANG_CHECK_SECONDS)


def cut(request: web.Request) -> web.Response:
    """Break the connection. The returned response is not sent."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


@routes.post("/api/push/")
async def redirect(_request: web.Request) -> web.Response:
    return web.Response(status=REDIRECT, headers={"Location": "/api/push"})


@routes.get("/healthz")
async def health(_request: web.Request) -> web.Response:
    """Report that the process lives. The answer says nothing about Apple or Google."""
    return web.Response()


@routes.get("/version", allow_head=False)
async def version(_request: web.Request) -> web.Response:
    return _json({"source": "https://github.com/appleboy/gorush", "version": VERSION})


@routes.get("/", allow_head=False)
async def welcome(_request: web.Request) -> web.Response:
    return _json({"text": "Welcome to notification server."})


@routes.get("/api/stat/app")
async def statistics(request: web.Request) -> web.Response:
    return _json({"version": VERSION, "busy_workers": 0, **asdict(request.app[GATEWAY].counters)})


@routes.get("/metrics", allow_head=False)
async def metrics(request: web.Request) -> web.Response:
    text = as_prometheus(request.app[GATEWAY].counters)
    return web.Response(body=text.encode(), headers={"Content-Type": METRICS_TYPE})


@routes.get("/sys/stats", allow_head=False)
async def response_statistics(request: web.Request) -> web.Response:
    return _json(request.app[RESPONSES].as_dict())


@routes.get("/api/config")
async def config(request: web.Request) -> web.Response:
    """Show the settings as YAML."""
    text = CONFIG.format(hide_token=str(request.app[GATEWAY].settings.hide_token).lower())
    return web.Response(text=text, content_type="application/yaml", charset="utf-8")


def _json(body: object, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type=JSON, charset="utf-8")
