"""`python -m embedded.node`: run a development node until SIGINT or SIGTERM."""

import argparse
import socket
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import structlog
from aiohttp import web

from embedded.node.rest.server import create_app
from embedded.node.settings import MAX_MESSAGE_BYTES, RELAY_CACHE_CAPACITY, Settings

STOP_SECONDS = 1.0

log = structlog.get_logger()


def main(make_app: Callable[[Settings], web.Application] = create_app) -> int:
    """Run a node as the command line says, and return the exit code."""
    arguments = _parser().parse_args()
    try:
        listener = socket.create_server((arguments.host, arguments.port))
        app = make_app(_settings(arguments))
    except (OSError, sqlite3.Error) as exc:
        # One line is enough for an operator here. A stack trace is not shown.
        log.error("devnode_cannot_start", host=arguments.host, port=arguments.port, reason=str(exc))  # noqa: TRY400
        return 1
    host, port = listener.getsockname()[:2]
    data = str(arguments.data) if arguments.data else "memory"
    log.info("devnode_started", url=f"http://{host}:{port}", data=data, ring=arguments.relay_cache_capacity)
    web.run_app(app, sock=listener, print=None, access_log=None, shutdown_timeout=STOP_SECONDS)
    log.info("devnode_stopped")
    return 0


def _settings(arguments: argparse.Namespace) -> Settings:
    if arguments.data:
        arguments.data.parent.mkdir(parents=True, exist_ok=True)
    return Settings(
        data=arguments.data,
        relay_cache_capacity=arguments.relay_cache_capacity,
        shards=tuple(arguments.shard),
        peers=tuple(arguments.peer),
        max_message_bytes=arguments.max_message_bytes,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m embedded.node", description="Development Waku node")
    parser.add_argument("--host", default="127.0.0.1", help="no authentication: keep it on loopback")
    parser.add_argument("--port", type=int, default=8645)
    parser.add_argument("--data", type=Path, help="SQLite file of the store (default: in memory)")
    parser.add_argument("--relay-cache-capacity", type=int, default=RELAY_CACHE_CAPACITY)
    parser.add_argument("--max-message-bytes", type=int, default=MAX_MESSAGE_BYTES)
    parser.add_argument(
        "--shard", nargs="+", action="extend", default=[], help="pubsub topics subscribed from the start"
    )
    parser.add_argument("--peer", nargs="+", action="extend", default=[], help="base URLs of other development nodes")
    return parser


if __name__ == "__main__":
    sys.exit(main())
