"""One event loop and one HTTP client per process, kept open between tasks.

Tasks are synchronous; what they send over HTTP runs concurrently on a loop in a thread of its own, so that keep-alive
connections outlive the task and a connection that the peer closed is noticed at once.
"""

import asyncio
import atexit
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Protocol, Self, TypeVar

import aiohttp
import httpx
from yarl import URL

CONNECT_TIMEOUT_SECONDS = 2.0
# Waiting for a free connection ends well before the lease of what is to be sent.
POOL_TIMEOUT_SECONDS = 10.0
MAX_CONNECTIONS = 256
KEPT_SECONDS = 30.0
MAX_ANSWER_BYTES = 1024 * 1024
MAX_BODY_IN_ONE_PIECE = 1024 * 1024

T = TypeVar("T")


class Answer(Protocol):
    """What a peer said. ``headers`` are found by any spelling of their names."""

    @property
    def status_code(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def content(self) -> bytes: ...


class HttpClient(Protocol):
    """As much of `httpx.AsyncClient` as talking to a peer takes. Raises `httpx.TransportError`, and no other error."""

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
    status_code: int
    headers: Mapping[str, str]
    content: bytes


class PlainClient:
    """aiohttp in the words of httpx, for peers that need no cookies, redirects or authentication.

    Answers beyond ``max_answer_bytes`` are refused. Environment proxies are ignored: gorush and Waku nodes are named in
    the settings, and are meant to be reached so. The session is made at the first request, in the loop that it runs in.
    """

    def __init__(self, timeout: aiohttp.ClientTimeout, max_answer_bytes: int = MAX_ANSWER_BYTES) -> None:
        self._timeout = timeout
        self._max_answer_bytes = max_answer_bytes
        self._session: aiohttp.ClientSession | None = None

    async def request(
        self,
        method: str,
        url: str,
        *,
        content: bytes | None = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> PlainAnswer:
        """Raises httpx.TransportError; see `was_never_sent`. What is encoded in ``url`` stays so: to nwaku a plain
        comma in a value separates two values.
        """
        if params:
            url = str(httpx.URL(url, params=params))
        self._session = self._session or _new_session(self._timeout)
        try:
            async with self._session.request(
                method, URL(url, encoded=True), data=_body(content), headers=headers, allow_redirects=False
            ) as response:
                return PlainAnswer(response.status, response.headers, await self._read(response))
        except aiohttp.ClientError as error:
            raise _in_words_of_httpx(error) from error

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise httpx.RemoteProtocolError("the answer is packed, which nobody asked for")
        chunks, size = [], 0
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


def _body(content: bytes | None) -> bytes | BytesIO | None:
    """A large one as a file: aiohttp sends that piece by piece, and warns of anything else."""
    return BytesIO(content) if content and len(content) > MAX_BODY_IN_ONE_PIECE else content


def _new_session(timeout: aiohttp.ClientTimeout) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=MAX_CONNECTIONS,
            keepalive_timeout=KEPT_SECONDS,
            ssl=httpx.create_ssl_context(trust_env=False),
        ),
        timeout=timeout,
        cookie_jar=aiohttp.DummyCookieJar(),
        # Nothing packed is asked for or taken: a few bytes could unpack to more than the memory holds.
        headers={"Accept-Encoding": "identity"},
        auto_decompress=False,
        middlewares=[_only_once],
    )


async def _only_once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """By itself aiohttp repeats a GET whose connection broke, in silence. But to read a Waku node's cache empties it:
    who sees only the second answer never learns that something was lost with the first.
    """
    try:
        return await handler(request)
    except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError):
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise aiohttp.ClientPayloadError(type(error).__name__) from error  # a kind that it does not repeat after


def _in_words_of_httpx(error: aiohttp.ClientError) -> httpx.TransportError:
    """The first two mean that the request cannot have left; they must not be confused with the others."""
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


def new_client(*, timeout_seconds: float, max_answer_bytes: int = MAX_ANSWER_BYTES) -> PlainClient:
    """``timeout_seconds`` is how long a peer may be silent, not how long it may take."""
    timeout = aiohttp.ClientTimeout(
        connect=POOL_TIMEOUT_SECONDS, sock_connect=CONNECT_TIMEOUT_SECONDS, sock_read=timeout_seconds
    )
    return PlainClient(timeout, max_answer_bytes)


def once(make: Callable[[], T]) -> Callable[[], T]:
    """A value made at its first use and kept for the life of the process.

    `functools.cache` would let several threads make one each; and nothing here may exist before a worker's fork.
    """
    lock = threading.Lock()
    made: list[T] = []

    def get() -> T:
        with lock:
            if not made:
                made.append(make())
        return made[0]

    return get


def lasting_client(*, timeout_seconds: float) -> PlainClient:
    """A client for the loop of this process, closed when the process ends."""
    client = new_client(timeout_seconds=timeout_seconds)
    atexit.register(lambda: submit(client.aclose()).result(CONNECT_TIMEOUT_SECONDS))
    return client


def was_never_sent(error: httpx.TransportError) -> bool:
    """Whether the peer cannot have seen the request, so that repeating it cannot double anything."""
    return isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)


def is_tls_wrong(error: httpx.TransportError) -> bool:
    """Whether there is somebody whose certificate is not good, or who does not speak TLS at all."""
    return isinstance(error.__cause__, aiohttp.ClientSSLError)


def submit(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Start a coroutine on this process's loop."""
    return asyncio.run_coroutine_threadsafe(coroutine, _loop())


@once
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="http", daemon=True).start()
    return loop
