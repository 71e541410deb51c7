"""HTTP to peers: `Connections` to gateways and Waku nodes by aiohttp, and `ask` for rare requests by httpx.

Also here: what failures of a peer lead to (`Backoff`, `Peers`).

Tasks are synchronous. Their HTTP requests run concurrently on one loop of each process, in a thread of its own. So
keep-alive connections outlive a task, and a connection that the peer closes is noticed at once. A request by httpx, as
of config checks, alerts and traces, costs eighteen times the CPU time.
"""

import asyncio
import atexit
import random
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache, lru_cache
from io import BytesIO
from time import monotonic
from typing import Any, Self, TypeVar

import aiohttp
import httpx
import uvloop
from yarl import URL

from kit.processes import once

CONNECT_TIMEOUT_SECONDS = 2.0
# With the wait for a free connection: a name server may be slow, and a host may have several addresses. It ends well
# before the lease of a notification.
IN_ALL_CONNECTED_SECONDS = 10.0
MAX_CONNECTIONS = 256
KEPT_SECONDS = 30.0
MAX_ANSWER_BYTES = 1024 * 1024
MAX_BODY_IN_ONE_PIECE = 1024 * 1024

T = TypeVar("T")


class BadAnswer(aiohttp.ClientError):
    """The answer is too large, or compressed although the request did not allow it."""


# What a request raises. After the errors of `NEVER_SENT`, the peer cannot have seen the request.
ERRORS = (aiohttp.ClientError, TimeoutError)
NEVER_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a peer, read completely. Names in ``headers`` are not case-sensitive."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Connections:
    """The connections to peers without cookies, redirects and authentication. The first request opens the session.

    They ignore the proxies of the environment, because operators name gateways and Waku nodes in the settings, and
    expect direct connections to them. ``silent_seconds`` is the longest silence of a peer. ``total_seconds`` is the
    longest time of a request (None: no limit while data arrives).
    """

    def __init__(
        self,
        *,
        silent_seconds: float,
        total_seconds: float | None = None,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        self._timeout = aiohttp.ClientTimeout(
            total=total_seconds,
            connect=IN_ALL_CONNECTED_SECONDS,
            sock_connect=CONNECT_TIMEOUT_SECONDS,
            sock_read=silent_seconds,
        )
        self._silent_seconds = silent_seconds
        self._max_answer_bytes = max_answer_bytes
        self._session: aiohttp.ClientSession | None = None

    async def request(
        self, method: str, url: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send one request and return the answer. Raises `ERRORS`.

        Encoded characters in ``url`` stay encoded, because nwaku treats a plain comma as a separator of two values.
        """
        session = self._session = self._session or _new_session(self._timeout)
        async with session.request(
            method,
            _parsed(url),
            data=_data(body),
            headers=headers,
            allow_redirects=False,
            middlewares=() if method == "POST" else ONLY_ONCE,  # aiohttp repeats no POST
        ) as response:
            return Answer(response.status, response.headers, await self._read(response))

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise BadAnswer("compressed")
        content, body = response.content, bytearray()  # a list of chunks would take fifty times the size of small ones
        while not content.at_eof():
            if not (arrived := content.read_nowait()):
                async with asyncio.timeout(self._silent_seconds):  # aiohttp forgets its own after a body without HTTP
                    arrived = await content.readany()
            body += arrived
            if len(body) > self._max_answer_bytes:
                raise BadAnswer("too large")
        return bytes(body)

    async def close(self) -> None:
        if self._session:
            await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()


def lasting_connections(*, silent_seconds: float, total_seconds: float | None = None) -> Connections:
    """Return connections for the loop of this process, closed when the process ends."""
    connections = Connections(silent_seconds=silent_seconds, total_seconds=total_seconds)
    atexit.register(lambda: submit(connections.close()).result(CONNECT_TIMEOUT_SECONDS))
    return connections


@lru_cache(maxsize=1024)
def _parsed(url: str) -> URL:
    """Return a URL as aiohttp needs it. The cache is small, because nearly all requests use a few URLs."""
    return URL(url, encoded=True)


def _data(body: bytes | None) -> bytes | BytesIO | None:
    """Return a large body as a file, because aiohttp sends files in pieces, and warns about other large bodies."""
    return BytesIO(body) if body and len(body) > MAX_BODY_IN_ONE_PIECE else body


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
            limit=MAX_CONNECTIONS,
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
    except NEVER_SENT:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        # Aiohttp does not repeat a request after this error.
        raise aiohttp.ClientPayloadError(type(error).__name__) from error


ONLY_ONCE = (_only_once,)


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


def new_client() -> httpx.AsyncClient:
    """Return a client that asks the hosts of the settings themselves, not the proxies of the environment."""
    headers = {"Accept-Encoding": "identity"}
    return httpx.AsyncClient(trust_env=False, verify=tls_context(), headers=headers, timeout=None)  # noqa: S113 - `ask`


async def ask(
    client: httpx.AsyncClient,
    method: str,
    url: str,
    *,
    seconds: float,
    content: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    max_bytes: int = MAX_ANSWER_BYTES,
) -> httpx.Response:
    """Send one request, and return the answer, which is complete within ``seconds``.

    Raises httpx.HTTPError, httpx.InvalidURL or TimeoutError. httpx's own timeout would start again with every byte.
    """
    async with asyncio.timeout(seconds), client.stream(method, url, content=content, headers=headers) as response:
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise httpx.RemoteProtocolError("the answer is compressed, although the request did not allow it")
        body = bytearray()
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > max_bytes:
                raise httpx.RemoteProtocolError("the answer is too large")
        return httpx.Response(response.status_code, headers=response.headers, content=bytes(body))


# Failures of a peer: longer pauses, and trying equal servers in another order. Nothing here does I/O.

FIRST_PAUSE_SECONDS = 0.2
MAX_PAUSE_SECONDS = 10.0
# After this many doublings every maximum is reached. Many more would overflow a float.
MAX_DOUBLINGS = 20

# A server that restarts is back within seconds. A server that hangs should be tried last for longer than that.
DISTRUST_SECONDS = 10.0
# Older measurements are ignored, so that a slow server gets another chance.
MEMORY_SECONDS = 60.0
SMOOTHING = 0.2
# A server is slow when its time is above the quickest server's time multiplied by the factor, plus the seconds.
SLOW_FACTOR = 3.0
SLOW_SECONDS = 0.1


def doubled(first_seconds: float, failures: int, *, max_seconds: float) -> float:
    """Return ``first_seconds``, doubled once per failure, but at most ``max_seconds``."""
    return min(first_seconds * 2.0 ** min(failures, MAX_DOUBLINGS), max_seconds)


class Backoff:
    """Exponential backoff for one peer: the pause doubles with each failure, and half of it is random.

    The peer has recovered once it has worked for as long as the longest pause. One success alone does not shorten the
    pauses, because an attempt that had nothing to do succeeds, too.
    """

    def __init__(self, max_seconds: float = MAX_PAUSE_SECONDS) -> None:
        self._max_seconds = max_seconds
        self._failures = 0
        self._works_since: float | None = None  # monotonic

    @property
    def failures(self) -> int:
        """Return the number of failures since the peer recovered last."""
        has_recovered = self._works_since is not None and monotonic() - self._works_since >= self._max_seconds
        return 0 if has_recovered else self._failures

    def next(self) -> float:
        """Count one more failure and return the seconds to wait: between half of the doubled pause and all of it."""
        self._failures, self._works_since = self.failures + 1, None
        span = doubled(FIRST_PAUSE_SECONDS, self._failures, max_seconds=self._max_seconds)
        return span * (0.5 + random.random() / 2)  # noqa: S311 - spreads load, guards nothing

    def works(self) -> bool:
        """Note a success. Return whether the peer has recovered with it."""
        if not self._failures:
            return False
        self._works_since = monotonic() if self._works_since is None else self._works_since
        if self.failures:
            return False
        self._failures, self._works_since = 0, None
        return True


@dataclass(slots=True)
class _Memory:
    trusted_from: float = 0.0
    failures: int = 0  # failures in a row
    seconds: float = 0.0  # smoothed time that its answers take
    measured_at: float = float("-inf")


class Peers:
    """Base URLs in the operator's order, with the failures and times of each (seconds of a monotonic clock).

    A server that failed is tried last for a while. It is not left out, because all of them may have failed. With each
    failure in a row, it is distrusted for twice as long, up to ``max_distrust_seconds``.
    """

    def __init__(self, urls: Iterable[str], *, max_distrust_seconds: float = DISTRUST_SECONDS) -> None:
        self._memories = {url: _Memory() for url in urls}
        self._max_distrust_seconds = max_distrust_seconds

    def in_order(self, now: float) -> list[str]:
        """Return the URLs in the order in which to try them.

        The order is: trusted servers in the operator's order, slow ones, and distrusted ones, the first of which is the
        one that will be trusted again first.
        """
        quickest = min((m.seconds for m in self._memories.values() if _is_measured(m, now)), default=0.0)

        def rank(url: str) -> tuple[float, bool]:
            memory = self._memories[url]
            is_slow = _is_measured(memory, now) and memory.seconds > quickest * SLOW_FACTOR + SLOW_SECONDS
            return max(memory.trusted_from - now, 0.0), is_slow

        return sorted(self._memories, key=rank)

    def is_trusted(self, url: str, now: float) -> bool:
        """Return whether a server is not distrusted at the moment."""
        return self._memories[url].trusted_from <= now

    def failed(self, url: str, now: float, *, min_seconds: float = 0.0) -> None:
        """Distrust a server for a while. Failures while it is distrusted, as of parallel requests, do not count."""
        memory = self._memories[url]
        if memory.trusted_from > now:
            return
        span = doubled(DISTRUST_SECONDS, memory.failures, max_seconds=self._max_distrust_seconds)
        memory.failures += 1
        memory.trusted_from = now + max(span, min_seconds)

    def answered(self, url: str) -> None:
        """Trust a server again."""
        memory = self._memories[url]
        memory.trusted_from = 0.0
        memory.failures = 0

    def took(self, url: str, seconds: float, now: float) -> None:
        """Record the time of a server's answer."""
        memory = self._memories[url]
        weight = SMOOTHING if _is_measured(memory, now) else 1.0
        memory.seconds += (seconds - memory.seconds) * weight
        memory.measured_at = now


def _is_measured(memory: _Memory, now: float) -> bool:
    return now - memory.measured_at < MEMORY_SECONDS
