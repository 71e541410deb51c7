"""Server side of one HTTP/2 connection. Requests are answered concurrently, as gorush sends them."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, RequestReceived, StreamEnded
from h2.exceptions import ProtocolError

from tests.rig.providers.messages import Answer, Break, Reply, Request

READ_BYTES = 64 * 1024
# What Apple says before it closes the connection of a certificate that is not for this environment.
REASON = b'{"reason":"BadCertificateEnvironment"}'


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
