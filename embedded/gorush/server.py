"""The server: the pushes that reached the imitated Apple or Google, the faults, and gorush's HTTP interface.

Pushes are recorded in SQLite, in memory or in a file. Each statement commits itself, without waiting for the disk.
`/dev/` has the endpoints of a development server only: they show tokens, and log none.
"""

import asyncio
import sqlite3
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from embedded.dev_server import Switches, add_faults, cut, json_reply
from embedded.gorush.outcomes import Outcome, Platform, Refusal, decide, refuse
from embedded.gorush.request import BadRequestError, Notification, read_push
from notifications.gateways.gorush.errors import mask

VERSION = "v1.22.0-devserver"
MAX_COLLAPSE_ID_BYTES = 64
PAGE = 10_000
# The settings that the config check reads, by gorush's names.
CONFIG = """core: {{address: 127.0.0.1, worker_num: 256, queue_num: 8192, max_notification: 100, sync: true,
  feedback_hook_url: ""}}
android: {{enabled: true, key_path: "[REDACTED]", max_retry: 0}}
ios: {{enabled: true, key_path: "[REDACTED]", max_concurrent_pushes: 256, max_retry: 0}}
queue: {{engine: local}}
log: {{hide_token: {hide_token}}}
grpc: {{enabled: false}}
"""
# `body` has what `/dev/pushes` shows of a push.
SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = OFF;
CREATE TABLE IF NOT EXISTS received (id INTEGER PRIMARY KEY AUTOINCREMENT, token TEXT NOT NULL,
    collapse_id TEXT NOT NULL, error TEXT NOT NULL, body BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS received_token ON received (token, collapse_id, error);
"""


@dataclass(slots=True)
class Faults(Switches):
    """Faults of the whole gorush, as opposed to those of one device token (`outcomes.py`)."""

    down: int = False  # a connection is cut, but none to /dev/
    status: int = 0  # every push is answered with this status and an empty body, and not sent
    delay_ms: int = 0  # every push waits this long. It goes on when its caller closes the connection


class Gateway:
    """The record of pushes, the counters of `/api/stat/app`, and the way to the imitated Apple and Google."""

    def __init__(self, data: Path | None, *, hide_token: bool) -> None:
        if data:
            data.touch(mode=0o600)  # it contains device tokens; the files beside it get the same mode
            data.chmod(0o600)
        self.hide_token = hide_token
        self.faults = Faults()
        self.counters: Counter[str] = Counter()
        self.record = sqlite3.connect(data or ":memory:", isolation_level=None)
        self.record.executescript(SCHEMA)

    async def send(self, notification: Notification) -> str:
        """Return the error of a notification, or nothing, once it is settled, as gorush does in sync mode."""
        platform = notification.platform
        self.counters += Counter(total_count=notification.count, submitted_tasks=platform is not None)
        if not platform:
            return ""
        outcome = self._outcome(notification, platform)
        await asyncio.sleep((outcome.delay_ms + self.faults.delay_ms) / 1000)
        self._receive(notification, platform.name.lower(), outcome)
        self.counters["success_tasks"] += 1
        return outcome.error

    def _outcome(self, notification: Notification, platform: Platform) -> Outcome:
        """Decide by the token, after the checks that Apple and Google make before."""
        token, collapse_id = notification.token, notification.collapse_id
        if platform is Platform.IOS and (reason := _refusal_of_apple(notification)):
            return Outcome(reason)
        if notification.is_too_large:
            return refuse(Refusal.BIG, platform, token)
        counted = "SELECT count(*) FROM received WHERE (token, collapse_id) = (?, ?)"
        return decide(token, platform, self.record.execute(counted, (token, collapse_id)).fetchone()[0])

    def _receive(self, notification: Notification, platform: str, outcome: Outcome) -> None:
        shown = {
            "received_ms": time.time_ns() // 1_000_000,
            "platform": platform,
            "token": notification.token,
            "collapse_id": notification.collapse_id,
            "error": outcome.upstream_error,
            **{name: notification.text(name) for name in ("topic", "notif_id", "message")},
            "data": notification.fields.get("data") or {},
            "notification": notification.fields,
        }
        row = notification.token, notification.collapse_id, outcome.upstream_error, orjson.dumps(shown)
        insert = "INSERT INTO received (token, collapse_id, error, body) VALUES (?, ?, ?, ?)"
        self.record.executemany(insert, [row] * outcome.sends)
        self.counters[f"{platform}.{'push_error' if outcome.error else 'push_success'}"] += 1


def _refusal_of_apple(notification: Notification) -> str:
    if not notification.token:
        return "MissingDeviceToken"
    if not notification.text("topic"):
        return "MissingTopic"
    return "BadCollapseId" if len(notification.collapse_id.encode()) > MAX_COLLAPSE_ID_BYTES else ""


GATEWAY: web.AppKey[Gateway] = web.AppKey("gateway", Gateway)
routes = web.RouteTableDef()


def create_app(data: Path | None = None, *, hide_token: bool = False) -> web.Application:
    """Return the application. ``data`` is the file of the recorded pushes, and ``hide_token`` gorush's own switch."""
    app = web.Application(middlewares=[fail_when_down])
    app[GATEWAY] = gateway = Gateway(data, hide_token=hide_token)
    add_faults(app, gateway.faults)
    app.add_routes(routes)
    app.router.add_route("*", "/{path:.*}", refuse_unknown)
    app.on_cleanup.append(close)
    return app


async def close(app: web.Application) -> None:
    app[GATEWAY].record.close()


@web.middleware
async def fail_when_down(request: web.Request, handler: Handler) -> web.StreamResponse:
    is_cut = not request.path.startswith("/dev/") and request.app[GATEWAY].faults.strikes("down")
    return cut(request) if is_cut else await handler(request)


@routes.post("/api/push")
async def push(request: web.Request) -> web.Response:
    """Answer in sync mode: when the push is settled, and with a failure only."""
    gateway = request.app[GATEWAY]
    try:
        notification = read_push(await request.read())
    except BadRequestError as exc:
        return json_reply({"code": 400, "message": str(exc)}, 400, "utf-8")
    if status := gateway.faults.status:
        return web.Response(status=status)
    error = await gateway.send(notification)
    logs = [_failure(notification, error, hide_token=gateway.hide_token)] if error else []
    return json_reply({"counts": notification.count, "logs": logs, "success": "ok"}, charset="utf-8")


def _failure(notification: Notification, error: str, *, hide_token: bool) -> dict[str, str]:
    notif_id = notification.text("notif_id")
    return {
        **({"notif_id": notif_id} if notif_id else {}),
        "type": "failed-push",
        "platform": notification.platform.name.lower() if notification.platform else "",
        "token": mask(notification.token) if hide_token else notification.token,
        "message": notification.text("message"),
        "error": error,
    }


@routes.get("/healthz")
async def health(_request: web.Request) -> web.Response:
    """Report that the process lives. The answer says nothing about Apple or Google."""
    return web.Response()


@routes.get("/version", allow_head=False)
async def version(_request: web.Request) -> web.Response:
    return json_reply({"source": "https://github.com/appleboy/gorush", "version": VERSION}, charset="utf-8")


@routes.get("/api/stat/app")
async def statistics(request: web.Request) -> web.Response:
    """Answer with gorush's counters. A task is a notification, counted when it ends."""
    counters = request.app[GATEWAY].counters
    tasks = {name: counters[name] for name in ("success_tasks", "failure_tasks", "submitted_tasks", "total_count")}
    kinds = "push_success", "push_error"
    platforms = {name: {kind: counters[f"{name}.{kind}"] for kind in kinds} for name in ("ios", "android")}
    return json_reply({"version": VERSION, "busy_workers": 0, **tasks, **platforms}, charset="utf-8")


@routes.get("/api/config")
async def config(request: web.Request) -> web.Response:
    """Show the settings as YAML."""
    text = CONFIG.format(hide_token=str(request.app[GATEWAY].hide_token).lower())
    return web.Response(text=text, content_type="application/yaml", charset="utf-8")


async def refuse_unknown(_request: web.Request) -> web.Response:
    """Answer 404, also for a known path with a wrong method, and for `//api/push`, which bare gorush does not merge."""
    return web.Response(status=404, body=b"404 page not found", content_type="text/plain")


@routes.get("/dev/pushes")
async def list_pushes(request: web.Request) -> web.Response:
    """Return the pushes after `since`, at most `limit`, of all tokens or one `token`.

    `last_id` is the `since` of the next call.
    """
    query, since = request.query, int(request.query.get("since", 0))
    sql = "SELECT id, body FROM received WHERE id > ? AND ? IN (token, '') ORDER BY id LIMIT ?"
    found = request.app[GATEWAY].record.execute(sql, (since, query.get("token", ""), int(query.get("limit", PAGE))))
    pushes = [{"id": number, **orjson.loads(body)} for number, body in found]
    return json_reply({"pushes": pushes, "last_id": pushes[-1]["id"] if pushes else since})
