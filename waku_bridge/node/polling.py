"""HTTP client for polling a node's relay cache up to twenty times per second.

Polling is nearly all the work of an idle bridge, and a general client needs five times the CPU time for it. This client
has one connection to a node and sends one request at a time. nwaku ends the connection after each answer (measured on
v0.38.1), go-waku keeps it. So the address is resolved again after some seconds only. The client passes any request but
a plain GET over plain HTTP to a general client.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import urlsplit

import httptools
import httpx

from kit.http.connections import CONNECT_TIMEOUT_SECONDS, Answer, HttpClient, PlainAnswer

# Limit of an answer beside its body: a fixed part for headers, and a share of the body for the marks of chunks.
MAX_HEAD_BYTES = 64 * 1024
CHUNK_OVERHEAD = 0.25
# As for the general client.
ADDRESS_SECONDS = 10.0


class PollingClient:
    """The client of one reader.

    It raises `httpx.TransportError` and repeats nothing, because reading a cache empties it.
    """

    def __init__(self, client: HttpClient, *, timeout_seconds: float, max_answer_bytes: int) -> None:
        """Use ``client`` for all other requests. ``timeout_seconds`` is how long a peer may send nothing."""
        self._client = client
        self._timeout_seconds = timeout_seconds
        self._max_answer_bytes = max_answer_bytes
        self._connection: _Connection | None = None
        self._address = ""  # that worked the last time
        self._address_until = 0.0

    async def request(
        self,
        method: str,
        url: str,
        *,
        content: bytes | None = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a plain GET over the kept connection, and any other request through the general client."""
        parts = urlsplit(url)
        if method != "GET" or parts.scheme != "http" or parts.username or params or content:
            return await self._client.request(method, url, content=content, params=params, headers=headers)
        if self._connection is None or self._connection.is_closed:
            self._connection = await self._connect(parts.hostname or "", parts.port or 80)
        target = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
        try:
            return await self._connection.get(f"GET {target} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
        except BaseException:
            self.close()  # the rest of this answer must not be read as the next answer
            raise

    def close(self) -> None:
        """Close the connection. The next request opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _connect(self, host: str, port: int) -> "_Connection":
        loop = asyncio.get_running_loop()
        address = self._address if self._address and loop.time() < self._address_until else host
        self._address = ""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
                transport, connection = await loop.create_connection(
                    lambda: _Connection(self._timeout_seconds, self._max_answer_bytes), address, port
                )
        except TimeoutError as error:
            raise httpx.ConnectTimeout(type(error).__name__) from error
        except (OSError, ValueError) as error:  # ValueError: an invalid host name
            raise httpx.ConnectError(type(error).__name__) from error
        if address == host:
            self._address_until = loop.time() + ADDRESS_SECONDS
        self._address = transport.get_extra_info("peername")[0]
        return connection


class _Connection(asyncio.Protocol):
    """One connection, and the answer that it waits for. The parser calls the methods ``on_…``."""

    def __init__(self, timeout_seconds: float, max_answer_bytes: int) -> None:
        self.is_closed = False
        self._timeout_seconds = timeout_seconds
        self._max_answer_bytes = max_answer_bytes
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[PlainAnswer] | None = None
        self._heard_at = 0.0
        self._watching: asyncio.TimerHandle
        self._begin()

    def _begin(self) -> None:
        self._headers: dict[str, str] = {}
        self._chunks: list[bytes] = []
        self._size = 0  # bytes of the body
        self._received = 0  # bytes of the whole answer

    async def get(self, request: bytes) -> PlainAnswer:
        """Send a request and return its answer. Raises httpx.TransportError."""
        loop = asyncio.get_running_loop()
        assert self._transport is not None  # noqa: S101 - it is connected
        self._answer = loop.create_future()
        self._heard_at = loop.time()
        self._transport.write(request)
        self._watching = loop.call_later(self._timeout_seconds, self._look_for_life)
        try:
            return await self._answer
        finally:
            self._watching.cancel()
            self._answer = None

    def close(self) -> None:
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        self._fail(httpx.ReadError(type(error).__name__ if error else "closed"))

    def data_received(self, data: bytes) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(httpx.RemoteProtocolError(type(error).__name__))
        if self._received - self._size > MAX_HEAD_BYTES + CHUNK_OVERHEAD * self._size:
            self._fail(httpx.RemoteProtocolError("the headers are too large"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > self._max_answer_bytes:
            self._fail(httpx.RemoteProtocolError("the answer is too large"))
        else:
            self._chunks.append(body)

    def on_message_complete(self) -> None:
        """Pass the answer to the caller, and close the connection unless it may be kept."""
        if self._headers.get("content-encoding", "identity") != "identity":
            self._fail(httpx.RemoteProtocolError("the answer is compressed, which was not requested"))
        elif self._answer is not None and not self._answer.done():
            status = self._parser.get_status_code()
            self._answer.set_result(PlainAnswer(status, self._headers, b"".join(self._chunks)))
        if not self._parser.should_keep_alive():
            self.close()
        self._begin()

    def _look_for_life(self) -> None:
        loop = asyncio.get_running_loop()
        silent_seconds = loop.time() - self._heard_at
        if silent_seconds < self._timeout_seconds:
            self._watching = loop.call_later(self._timeout_seconds - silent_seconds, self._look_for_life)
        elif self._answer is not None:
            self._fail(httpx.ReadTimeout("silent"))

    def _fail(self, error: httpx.TransportError) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        self.close()
