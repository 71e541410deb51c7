"""`python -m embedded.gorush`: run a development gorush until SIGINT or SIGTERM."""

import argparse
import socket
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import structlog
from aiohttp import web

from embedded.gorush.gateway import Settings
from embedded.gorush.http.server import create_app

STOP_SECONDS = 1.0

log = structlog.get_logger()


def main(make_app: Callable[[Settings], web.Application] = create_app) -> int:
    arguments = _parser().parse_args()
    try:
        listener = socket.create_server((arguments.host, arguments.port))
        app = make_app(_settings(arguments))
    except (OSError, sqlite3.Error) as exc:
        # One line is enough for an operator here. A stack trace is not shown.
        log.error("gorush_devserver_cannot_start", host=arguments.host, port=arguments.port, reason=str(exc))  # noqa: TRY400
        return 1
    host, port = listener.getsockname()[:2]
    data = str(arguments.data) if arguments.data else "memory"
    log.info("gorush_devserver_started", url=f"http://{host}:{port}", data=data, hide_token=arguments.hide_token)
    web.run_app(app, sock=listener, print=None, access_log=None, shutdown_timeout=STOP_SECONDS)
    log.info("gorush_devserver_stopped")
    return 0


def _settings(arguments: argparse.Namespace) -> Settings:
    if arguments.data:
        arguments.data.parent.mkdir(parents=True, exist_ok=True)
    return Settings(data=arguments.data, hide_token=arguments.hide_token)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m embedded.gorush", description="Development gorush")
    parser.add_argument("--host", default="127.0.0.1", help="no authentication: keep it on loopback")
    parser.add_argument("--port", type=int, default=8088)
    parser.add_argument("--data", type=Path, help="SQLite file of the recorded pushes (default: in memory)")
    parser.add_argument("--hide-token", action="store_true", help="mask device tokens in answers, gorush's default")
    return parser


if __name__ == "__main__":
    sys.exit(main())
