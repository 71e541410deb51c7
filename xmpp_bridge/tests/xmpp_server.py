"""Double of an XMPP server, in the process of the test: the side of a component's connection (XEP-0114).

It sends the data that a test passes to `send`, and keeps the stanzas that it receives.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from xml.etree.ElementTree import Element, tostring

from xmpp_bridge.codec.stream import Closed, Event, Opened, Received, Stream
from xmpp_bridge.component.connection import Address
from xmpp_bridge.tests.talking import SERVICE

SECRET = "s3cret"
TIMEOUT_SECONDS = 20


class XmppServer:
    """A server that accepts one connection after the other.

    ``refuse`` is the condition of the error that answers handshakes. With ``does_route``, the server routes back the
    stanzas that the component sends to itself, as real servers do.
    """

    def __init__(self) -> None:
        self.refuse = ""
        self.does_route = False
        self.connections = 0
        self.received: list[Element] = []
        self.ends: list[str] = []
        self.changed = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self._server: asyncio.Server | None = None
        self._handlers: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Address]:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield Address("127.0.0.1", self._server.sockets[0].getsockname()[1], SERVICE, SECRET)
        finally:
            self._server.close()
            self.drop()
            await asyncio.gather(*self._handlers)

    def send(self, data: str | bytes) -> None:
        assert self._writer is not None
        self._writer.write(data.encode() if isinstance(data, str) else data)

    def hang_up(self) -> None:
        """Close the connection once all data are sent."""
        assert self._writer is not None
        self._writer.close()

    def reset(self) -> None:
        """Reset the connection, as the kernel does for a process that is killed with unread data."""
        assert self._writer is not None
        linger = struct.pack("ii", 1, 0)
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._writer.transport.abort()

    def drop(self) -> None:
        """Abort the connection."""
        if self._writer is not None:
            self._writer.transport.abort()

    async def until(self, is_so: Callable[[], object]) -> None:
        """Wait until the condition holds. It is checked after each event of the connection."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not is_so():
                self.changed.clear()
                await self.changed.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._handlers.append(asyncio.current_task())  # type: ignore[arg-type]
        self._writer, stream, self.connections = writer, Stream(), self.connections + 1
        stream_id = f"stream-{self.connections}"
        try:
            while data := await reader.read(65536):
                for event in stream.feed(data):
                    self._receive(event, stream_id, writer)
                self.changed.set()
        except ConnectionError:
            pass
        finally:
            self.ends.append("closed" if self._closed else "cut")
            self.changed.set()
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    _closed = False

    def _receive(self, event: Event, stream_id: str, writer: asyncio.StreamWriter) -> None:
        match event:
            case Opened():
                self._closed = False
                shown = "" if self.refuse == "host-unknown" else stream_id
                writer.write(
                    f"<?xml version='1.0'?><stream:stream xmlns='jabber:component:accept' id='{shown}' "
                    f"from='{SERVICE}' xmlns:stream='http://etherx.jabber.org/streams'>".encode()
                )
                if self.refuse == "host-unknown":
                    self._refuse(writer)
            case Received(stanza):
                self.received.append(stanza)
                if self.does_route and stanza.get("to", "").partition("/")[0].endswith(SERVICE):
                    writer.write(tostring(stanza))
            case Closed():  # real servers close their side at once
                self._closed = True
                writer.write(b"</stream:stream>")
                writer.close()
            case _:  # Ready: the handshake of a component looks like the server's
                self._refuse(writer) if self.refuse else writer.write(b"<handshake/>")

    def _refuse(self, writer: asyncio.StreamWriter) -> None:
        condition = f"<{self.refuse} xmlns='urn:ietf:params:xml:ns:xmpp-streams'/>"
        writer.write(f"<stream:error>{condition}</stream:error></stream:stream>".encode())
        writer.close()
