"""Requests and replies as the handlers see them, whatever version of HTTP carried them."""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

import orjson


@dataclass(frozen=True, slots=True)
class Request:
    """Names of headers are in lower case. ``path`` may carry a query."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class Break(Enum):
    """No reply, and the connection is gone, for every other request on it, too."""

    CLOSE = auto()
    RESET = auto()

    def apply(self, writer: asyncio.StreamWriter) -> None:
        if self is Break.CLOSE:
            writer.close()
            return
        linger = struct.pack("ii", 1, 0)  # closing sends RST then, and drops what was not sent
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()


Answer = Callable[[Request], Awaitable[Reply | Break]]


def json_reply(body: object, status: int = 200, **headers: str) -> Reply:
    return Reply(status, orjson.dumps(body), {"content-type": "application/json; charset=utf-8", **headers})
