"""The embedded servers as `manage.py up` needs them: how each is started, and when it is ready.

Readiness is probed without a thread, because the probing process may have to fork.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from embedded.servers.postgres import SOCKET_NAME, EmbeddedPostgres
from embedded.servers.valkey import EmbeddedValkey
from embedded.supervisor.processes import ProcessSpec, StopOrder, python
from kit.db.connections import is_marked_ready

TIMEOUT_SECONDS = 5.0
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class EmbeddedPart:
    """One embedded server. ``address`` is its URL without a password, for people."""

    address: str
    spec: ProcessSpec
    is_ready: Callable[[], Awaitable[bool]]


def postgres(server: EmbeddedPostgres) -> EmbeddedPart:
    """Describe the embedded PostgreSQL."""

    async def is_ready() -> bool:
        return is_marked_ready(server.data_dir) and await listens(server.socket_dir / SOCKET_NAME)

    return EmbeddedPart(server.url(), server.spec(), is_ready)


def valkey(server: EmbeddedValkey) -> EmbeddedPart:
    """Describe the embedded Valkey."""
    return EmbeddedPart(server.address, server.spec(), lambda: pongs(server.url))


def waku_node(data_dir: Path, port: int, pubsub_topics: Sequence[str], *, ring_capacity: int) -> EmbeddedPart:
    """Describe the development node, whose relay cache holds ``ring_capacity`` messages."""
    arguments = ["embedded.node", "--data", str(data_dir / "devnode.sqlite3"), "--shard", *pubsub_topics]
    arguments += ["--relay-cache-capacity", str(ring_capacity)]
    return _peer("node", arguments, "/health", port)


def gorush(data_dir: Path, port: int) -> EmbeddedPart:
    """Describe the development gorush."""
    arguments = ["embedded.gorush", "--data", str(data_dir / "gorush.sqlite3"), "--hide-token"]
    return _peer("gorush", arguments, "/healthz", port)


def _peer(name: str, arguments: Sequence[str], health_path: str, port: int) -> EmbeddedPart:
    url = f"http://127.0.0.1:{port}"
    spec = python(name, "-m", *arguments, "--port", str(port), stop_order=StopOrder.PEER, stop_seconds=5)
    return EmbeddedPart(url, spec, lambda: answers(f"{url}{health_path}"))


async def listens(path: Path) -> bool:
    """Return whether something takes connections at the Unix socket."""
    return await _asked(asyncio.open_unix_connection(path), b"", 0) is not None


async def takes(url: str) -> bool:
    """Return whether something takes connections at the host and port of ``url``."""
    return await _asked(_connect(urlsplit(url)), b"", 0) is not None


async def pongs(url: str) -> bool:
    """Return whether the Redis at ``url`` has read its data and accepts our password."""
    parts = urlsplit(url)
    password = unquote(parts.password or "")
    request = f"AUTH {password}\r\nPING\r\nQUIT\r\n"
    answer = await _asked(_connect(parts), request.encode(), -1)
    return answer is not None and b"+PONG" in answer


async def answers(url: str) -> bool:
    """Return whether ``url`` answers with status 200."""
    status, _ = await fetch(url)
    return status == HTTPStatus.OK


async def fetch(url: str) -> tuple[int, bytes]:
    """Return the HTTP status and the body of ``url``, or status 0 when nothing answers."""
    parts = urlsplit(url)
    request = f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n"
    answer = await _asked(_connect(parts), request.encode(), -1) or b""
    head, _, body = answer.partition(b"\r\n\r\n")
    with suppress(ValueError, IndexError):
        return int(head.split(b" ", 2)[1]), body
    return 0, b""


async def _connect(url: SplitResult) -> Streams:
    """Open a connection. The name is resolved synchronously, because asyncio would use a thread."""
    address = socket.getaddrinfo(url.hostname, url.port, type=socket.SOCK_STREAM)[0][4][0]
    return await asyncio.open_connection(str(address), url.port)


async def _asked(connecting: Awaitable[Streams], request: bytes, size: int) -> bytes | None:
    """Send the request over a connection of its own. Return at most ``size`` bytes of the answer, or all for -1."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(TIMEOUT_SECONDS):
            reader, writer = await connecting
            try:
                writer.write(request)
                return await reader.read(size)
            finally:
                writer.close()
    return None
