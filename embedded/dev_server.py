"""What the development node and gorush share: their start, their faults at `/dev/faults`, and how they answer.

A fault is a switch: `true` (until it is set again), `false`, or the number of times it strikes, so that a test can set
exactly one lost answer. A field whose default is a number or a text takes such a value instead. A new fault is a field
of the server's `Faults`, the place where it strikes, and a test.
"""

import argparse
import socket
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import orjson
import structlog
from aiohttp import web

STOP_SECONDS = 1.0

log = structlog.get_logger()


@dataclass(slots=True)
class Switches:
    """Base of a server's faults."""

    def strikes(self, name: str) -> bool:
        """Return whether this switch acts now, and count the strike."""
        left: int = getattr(self, name)
        if left and left is not True:
            setattr(self, name, left - 1)
        return bool(left)

    def update(self, values: Mapping[str, object]) -> None:
        """Set the named faults and leave the others. Raises ValueError before anything changed."""
        defaults = {field.name: field.default for field in fields(self)}
        for name, value in values.items():
            is_switch = isinstance(default := defaults.get(name), bool) and isinstance(value, int) and value >= 0
            if name not in defaults or not (is_switch or type(value) is type(default)):
                raise ValueError(f"not a fault, or not a value of it: {name[:40]}")
        for name, value in values.items():
            setattr(self, name, value)

    def clear(self) -> None:
        self.update(asdict(type(self)()))


def add_faults(app: web.Application, faults: Switches) -> None:
    """Serve `/dev/faults`: GET shows the faults, POST sets the named ones, DELETE clears all."""

    async def show_or_change(request: web.Request) -> web.Response:
        try:
            if request.method == "POST":
                faults.update(dict(orjson.loads(await request.read())))
        except (TypeError, ValueError) as exc:
            raise web.HTTPBadRequest(text=str(exc)) from exc
        if request.method == "DELETE":
            faults.clear()
        return json_reply(asdict(faults))

    for method in ("GET", "POST", "DELETE"):
        app.router.add_route(method, "/dev/faults", show_or_change)


def json_reply(body: object, status: int = 200, charset: str | None = None) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json", charset=charset)


def cut(request: web.Request) -> web.Response:
    """Break the connection, as a crash or a bad network does. The returned response is not sent."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def new_parser(module: str, description: str, port: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--port", type=int, default=port, help="on loopback, because there is no authentication")
    parser.add_argument("--data", type=Path, help="SQLite file (default: in memory)")
    return parser


def run(name: str, make_app: Callable[[], web.Application], arguments: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM, and return the exit code. The log has the name, the address and the file."""
    try:
        if arguments.data:
            arguments.data.parent.mkdir(parents=True, exist_ok=True)
        listener = socket.create_server(("127.0.0.1", arguments.port))
        app = make_app()
    except (OSError, sqlite3.Error) as exc:
        # One line is enough for an operator here. A stack trace is not shown.
        log.error("dev_server_cannot_start", server=name, port=arguments.port, reason=str(exc))  # noqa: TRY400
        return 1
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    log.info("dev_server_started", server=name, url=url, data=str(arguments.data or "memory"))
    web.run_app(app, sock=listener, print=None, access_log=None, shutdown_timeout=STOP_SECONDS)
    log.info("dev_server_stopped", server=name)
    return 0
