"""Requests and replies, and the server's side of one connection of HTTP/1.1 or HTTP/2."""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto

import h11
import orjson
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, RequestReceived, StreamEnded
from h2.exceptions import ProtocolError

READ_BYTES = 64 * 1024
# What Apple says before it closes the connection of a certificate that is not for this environment.
REASON = b'{"reason":"BadCertificateEnvironment"}'


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


async def serve_http1(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer, *, already_read: bytes = b""
) -> None:
    """Serve a connection of HTTP/1.1 until one side closes. ``already_read`` are the first bytes of its stream."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(already_read)
    while request := await _read(reader, connection):
        reply = await answer(request)
        if isinstance(reply, Break):
            reply.apply(writer)
            return
        writer.write(_encode(connection, reply))
        await writer.drain()
        if connection.our_state is h11.MUST_CLOSE:
            return
        connection.start_next_cycle()


async def _read(reader: asyncio.StreamReader, connection: h11.Connection) -> Request | None:
    """Read a request, or return None at the end of the stream. The target may be in absolute form, as a proxy
    gets it.
    """
    head, body = None, bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            data = await reader.read(READ_BYTES)
            if not data and head is None:
                return None
            connection.receive_data(data)
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body.extend(event.data)
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            headers = {name.decode(): value.decode() for name, value in head.headers}
            return Request(head.method.decode(), head.target.decode(), headers, bytes(body))
        else:
            return None


def _encode(connection: h11.Connection, reply: Reply) -> bytes:
    headers = [*reply.headers.items(), ("content-length", str(len(reply.body)))]
    head = connection.send(h11.Response(status_code=reply.status, headers=headers))
    return (head or b"") + (connection.send(h11.Data(reply.body)) or b"") + (connection.send(h11.EndOfMessage()) or b"")


@dataclass(slots=True)
class Incoming:
    headers: dict[str, str]
    body: bytearray = field(default_factory=bytearray)

    def request(self) -> Request:
        plain = {name: value for name, value in self.headers.items() if not name.startswith(":")}
        return Request(self.headers[":method"], self.headers[":path"], plain, bytes(self.body))


class Http2:
    """An HTTP/2 connection. h2 itself answers PINGs: gorush sends one after a second of silence and drops a peer
    without an answer.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer) -> None:
        self._reader, self._writer, self._answer = reader, writer, answer
        self._protocol = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self._incoming: dict[int, Incoming] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Serve until the peer closes the connection."""
        self._protocol.initiate_connection()
        self._flush()
        try:
            while data := await self._reader.read(READ_BYTES):
                for event in self._protocol.receive_data(data):
                    self._take(event)
                self._flush()
        finally:
            for task in self._tasks:
                task.cancel()

    def _take(self, event: Event) -> None:
        if isinstance(event, RequestReceived):
            self._incoming[event.stream_id] = Incoming(dict(event.headers))
        elif isinstance(event, DataReceived):
            self._incoming[event.stream_id].body.extend(event.data)
            self._protocol.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, StreamEnded):
            task = asyncio.create_task(self._respond(event.stream_id, self._incoming.pop(event.stream_id).request()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _respond(self, stream_id: int, request: Request) -> None:
        reply = await self._answer(request)
        if isinstance(reply, Break):
            if reply is Break.GOAWAY:
                self._protocol.close_connection(additional_data=REASON)
                self._flush()
            reply.apply(self._writer)
            return
        with suppress(ProtocolError):  # the peer may have cancelled this request
            self._send(stream_id, reply)
        self._flush()

    def _send(self, stream_id: int, reply: Reply) -> None:
        headers = [(":status", str(reply.status)), *reply.headers.items()]
        self._protocol.send_headers(stream_id, headers, end_stream=not reply.body)
        if reply.body:
            self._protocol.send_data(stream_id, reply.body, end_stream=True)

    def _flush(self) -> None:
        if not self._writer.is_closing():
            self._writer.write(self._protocol.data_to_send())
