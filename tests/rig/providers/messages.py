"""Requests and replies as the handlers see them, independently of the version of HTTP."""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

import orjson


@dataclass(frozen=True, slots=True)
class Request:
    """A request. Names of headers are in lower case. ``path`` may have a query."""

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
    """A broken connection instead of a reply, also for every other request on it."""

    CLOSE = auto()
    RESET = auto()
    GOAWAY = auto()  # closed, and HTTP/2 tells why

    def apply(self, writer: asyncio.StreamWriter) -> None:
        if self is not Break.RESET:
            writer.close()
            return
        linger = struct.pack("ii", 1, 0)  # on close, the kernel sends RST and drops unsent bytes
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()


Answer = Callable[[Request], Awaitable[Reply | Break]]


def json_reply(body: object, status: int = 200, **headers: str) -> Reply:
    return Reply(status, orjson.dumps(body), {"content-type": "application/json; charset=utf-8", **headers})
