"""HTTP clients that stay open between tasks, and the one event loop of each process on which they run.

Tasks are synchronous. Their HTTP requests run concurrently on a loop in a thread of its own. So keep-alive connections
outlive a task, and a connection that the peer closes is noticed at once.
"""

import asyncio
import atexit
import ssl
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache, lru_cache
from io import BytesIO
from typing import Any, Protocol, Self, TypeVar

import aiohttp
import httpx
import uvloop
from yarl import URL

from kit.processes.once import once

CONNECT_TIMEOUT_SECONDS = 2.0
RESOLVED_AND_CONNECTED_SECONDS = 10.0  # a name server may be slow, and a host may have several addresses
# The wait for a free connection ends well before the lease of a notification.
POOL_TIMEOUT_SECONDS = 10.0
MAX_CONNECTIONS = 256
KEPT_SECONDS = 30.0
MAX_ANSWER_BYTES = 1024 * 1024
MAX_BODY_IN_ONE_PIECE = 1024 * 1024

T = TypeVar("T")


class Answer(Protocol):
    """The answer of a peer. Names in ``headers`` are not case-sensitive."""

    @property
    def status_code(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def content(self) -> bytes: ...


class HttpClient(Protocol):
    """The part of `httpx.AsyncClient` that requests to peers need. It raises only `httpx.TransportError`."""

    async def request(
        self,
        method: str,
        url: str,
        *,
        content: bytes | None = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer: ...


@dataclass(frozen=True, slots=True)
class PlainAnswer:
    """The answer of a peer, read completely."""

    status_code: int
    headers: Mapping[str, str]
    content: bytes


class PlainClient:
    """A client of aiohttp with the interface of httpx, for peers without cookies, redirects and authentication.

    It refuses answers that are larger than ``max_answer_bytes``. It ignores the proxies of the environment, because
    operators name gateways and Waku nodes in the settings, and expect direct connections to them. The first request
    creates the session, in its own loop.
    """

    def __init__(self, timeout: aiohttp.ClientTimeout, max_answer_bytes: int = MAX_ANSWER_BYTES) -> None:
        self._timeout = timeout
        self._max_answer_bytes = max_answer_bytes
        self._session: aiohttp.ClientSession | None = None
        # aiohttp raises the same error for a peer that cannot be reached and for connections that are all in use.
        self._free_connections = asyncio.Semaphore(MAX_CONNECTIONS)

    async def request(
        self,
        method: str,
        url: str,
        *,
        content: bytes | None = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> PlainAnswer:
        """Send one request and return the answer.

        Raises httpx.TransportError (see `was_never_sent`). Encoded characters in ``url`` stay encoded, because nwaku
        treats a plain comma as a separator of two values.
        """
        if params:
            url = _with(url, params)
        self._session = self._session or _new_session(self._timeout)
        await self._take_connection()
        try:
            async with self._session.request(
                method,
                _parsed(url),
                data=_body(content),
                headers=headers,
                allow_redirects=False,
                middlewares=() if method == "POST" else ONLY_ONCE,  # aiohttp repeats no POST
            ) as response:
                return PlainAnswer(response.status, response.headers, await self._read(response))
        except aiohttp.ClientError as error:
            raise _in_words_of_httpx(error) from error
        except TimeoutError as error:  # the timeout of the whole request
            raise httpx.ReadTimeout(type(error).__name__) from error
        finally:
            self._free_connections.release()

    async def _take_connection(self) -> None:
        try:
            async with asyncio.timeout(POOL_TIMEOUT_SECONDS if self._free_connections.locked() else None):
                await self._free_connections.acquire()
        except TimeoutError as error:
            raise httpx.PoolTimeout("all connections of this process are in use") from error

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise httpx.RemoteProtocolError("the answer is compressed, although the request did not allow it")
        chunks = []
        size = 0
        async for chunk in response.content.iter_any():
            size += len(chunk)
            if size > self._max_answer_bytes:
                raise httpx.RemoteProtocolError("the answer is too large")
            chunks.append(chunk)
        return b"".join(chunks)

    async def aclose(self) -> None:
        if self._session:
            await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()


def _with(url: str, params: Mapping[str, Any]) -> str:
    try:
        return str(httpx.URL(url, params=params))
    except (httpx.InvalidURL, UnicodeError) as error:
        raise httpx.LocalProtocolError("the parameters cannot be encoded in a URL") from error


@lru_cache(maxsize=1024)
def _parsed(url: str) -> URL:
    """Return a URL as aiohttp needs it. The cache is small, because nearly all requests use a few URLs."""
    return URL(url, encoded=True)


def _body(content: bytes | None) -> bytes | BytesIO | None:
    """Return a large body as a file, because aiohttp sends files in pieces, and warns about other large bodies."""
    return BytesIO(content) if content and len(content) > MAX_BODY_IN_ONE_PIECE else content


@cache
def tls_context() -> ssl.SSLContext:
    """Return a TLS context that trusts the public authorities, those of the system, and those of SSL_CERT_FILE. It is
    made once, because that takes longer than a request.
    """
    context = httpx.create_ssl_context(trust_env=False)
    context.load_default_certs()
    return context


def _new_session(timeout: aiohttp.ClientTimeout) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0,  # `PlainClient` limits them
            keepalive_timeout=KEPT_SECONDS,
            ssl=tls_context(),
        ),
        timeout=timeout,
        cookie_jar=aiohttp.DummyCookieJar(),
        # Compressed answers are not requested, and refused: a few bytes could expand to more than the memory.
        headers={"Accept-Encoding": "identity"},
        auto_decompress=False,
    )


async def _only_once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Middleware that prevents aiohttp from silently repeating a GET after a broken connection.

    A GET of a Waku node's cache empties the cache. With a silent repetition, the reader would not notice that the
    messages of the first answer were lost.
    """
    try:
        return await handler(request)
    except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError):
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        # Aiohttp does not repeat a request after this error.
        raise aiohttp.ClientPayloadError(type(error).__name__) from error


ONLY_ONCE = (_only_once,)


def _in_words_of_httpx(error: aiohttp.ClientError) -> httpx.TransportError:
    """Return the httpx error that corresponds to an aiohttp error.

    After the first two, the peer cannot have seen the request, so they must not be confused with the others.
    """
    name = type(error).__name__
    match error:
        case aiohttp.ClientConnectorError() | aiohttp.InvalidURL():
            return httpx.ConnectError(name)
        case aiohttp.ConnectionTimeoutError():
            return httpx.ConnectTimeout(name)
        case aiohttp.ServerTimeoutError():
            return httpx.ReadTimeout(name)
        case aiohttp.ClientResponseError():
            return httpx.RemoteProtocolError(name)
        case _:
            return httpx.ReadError(name)


def new_client(
    *, timeout_seconds: float, in_all_seconds: float | None = None, max_answer_bytes: int = MAX_ANSWER_BYTES
) -> PlainClient:
    """Return a client. ``timeout_seconds`` is the longest silence of a peer. ``in_all_seconds`` is the longest time of
    a request that has a free connection (None: no limit while data arrives).
    """
    timeout = aiohttp.ClientTimeout(
        total=in_all_seconds,
        connect=RESOLVED_AND_CONNECTED_SECONDS,
        sock_connect=CONNECT_TIMEOUT_SECONDS,
        sock_read=timeout_seconds,
    )
    return PlainClient(timeout, max_answer_bytes)


def lasting_client(*, timeout_seconds: float, in_all_seconds: float | None = None) -> PlainClient:
    """Return a client for the loop of this process, closed when the process ends."""
    client = new_client(timeout_seconds=timeout_seconds, in_all_seconds=in_all_seconds)
    atexit.register(lambda: submit(client.aclose()).result(CONNECT_TIMEOUT_SECONDS))
    return client


def was_never_sent(error: httpx.TransportError) -> bool:
    """Return whether the peer cannot have seen the request, so that it is safe to repeat it."""
    return isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)


def is_tls_wrong(error: httpx.TransportError) -> bool:
    """Return whether the server has an invalid certificate, or does not speak TLS."""
    return isinstance(error.__cause__, aiohttp.ClientSSLError)


def submit(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Start a coroutine on this process's loop."""
    return asyncio.run_coroutine_threadsafe(coroutine, _loop())


def call_on_loop(function: Callable[..., object], *args: object) -> None:
    """Call a plain function on this process's loop, as soon as the loop is free."""
    _loop().call_soon_threadsafe(function, *args)


@once
def _loop() -> asyncio.AbstractEventLoop:
    loop = uvloop.new_event_loop()
    threading.Thread(target=loop.run_forever, name="http", daemon=True).start()
    return loop
