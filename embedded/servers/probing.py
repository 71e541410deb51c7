"""Probes of servers' readiness, without a thread, because the probing process may have to fork."""

import asyncio
import socket
from collections.abc import Awaitable
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

TIMEOUT_SECONDS = 5.0
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


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
