"""One event loop and one HTTP client per process, kept open between tasks.

Tasks are synchronous; what they send over HTTP runs concurrently on a loop in a thread of its own, so that keep-alive
connections outlive the task and a connection that the peer closed is noticed at once.
"""

import asyncio
import atexit
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

CONNECT_TIMEOUT_SECONDS = 2.0
# Waiting for a free connection ends well before the lease of what is to be sent.
POOL_TIMEOUT_SECONDS = 10.0
MAX_CONNECTIONS = 256
MAX_ANSWER_BYTES = 1024 * 1024

T = TypeVar("T")


class _Transport(AiohttpTransport):
    """httpx-aiohttp, which lets some errors of aiohttp through as they are: an answer that is no HTTP, for one."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return await super().handle_async_request(request)
        except aiohttp.ClientError as error:
            raise httpx.RemoteProtocolError(type(error).__name__, request=request) from error


class PlainClient(httpx.AsyncClient):
    """An httpx client for peers that need no cookies, redirects or authentication: each request goes straight to the
    transport, for half the CPU time, and answers beyond ``max_answer_bytes`` are cut off.
    """

    def __init__(self, transport: httpx.AsyncBaseTransport, timeout: httpx.Timeout, max_answer_bytes: int) -> None:
        super().__init__(transport=transport, timeout=timeout, trust_env=False)
        self._straight = transport
        self._extensions = {"timeout": timeout.as_dict()}
        self._max_answer_bytes = max_answer_bytes

    async def request(self, method: str, url: httpx.URL | str, **options: Any) -> httpx.Response:
        """Takes content, headers and params, and refuses httpx's other ways to give a request a body."""
        if unknown := [name for name in ("data", "files", "json") if options.get(name) is not None]:
            raise TypeError(f"{', '.join(unknown)}: give the content as bytes")
        content = {name: options[name] for name in ("content", "params") if name in options}
        # Nothing packed is asked for or taken: a few bytes could unpack to more than the memory holds.
        headers = {"Accept-Encoding": "identity", **(options.get("headers") or {})}
        request = httpx.Request(method, url, extensions=self._extensions, headers=headers, **content)
        answer = await self._straight.handle_async_request(request)
        try:
            body = await self._read(answer, request)
        finally:
            await answer.aclose()
        return httpx.Response(answer.status_code, headers=answer.headers, content=body, request=request)

    async def _read(self, answer: httpx.Response, request: httpx.Request) -> bytes:
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            raise httpx.RemoteProtocolError("the answer is packed, which nobody asked for", request=request)
        assert isinstance(answer.stream, httpx.AsyncByteStream)  # noqa: S101 - it comes from an async transport
        chunks, size = [], 0
        async for chunk in answer.stream:
            size += len(chunk)
            if size > self._max_answer_bytes:
                raise httpx.RemoteProtocolError("the answer is too large", request=request)
            chunks.append(chunk)
        return b"".join(chunks)


def new_client(*, timeout_seconds: float, max_answer_bytes: int = MAX_ANSWER_BYTES) -> PlainClient:
    """A client over aiohttp's transport, which costs a seventh of the CPU time of httpx's own.

    Environment proxies are ignored: gorush and Waku nodes are named in the settings, and are meant to be reached so.
    """
    limits = httpx.Limits(max_connections=MAX_CONNECTIONS, keepalive_expiry=30.0)
    timeout = httpx.Timeout(timeout_seconds, connect=CONNECT_TIMEOUT_SECONDS, pool=POOL_TIMEOUT_SECONDS)
    return PlainClient(_Transport(limits=limits, trust_env=False), timeout, max_answer_bytes)


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


def lasting_client(*, timeout_seconds: float) -> httpx.AsyncClient:
    """A client for the loop of this process, closed when the process ends."""
    client = new_client(timeout_seconds=timeout_seconds)
    atexit.register(lambda: submit(client.aclose()).result(CONNECT_TIMEOUT_SECONDS))
    return client


def was_never_sent(error: httpx.TransportError) -> bool:
    """Whether the peer cannot have seen the request, so that repeating it cannot double anything.

    The aiohttp transport reports a connection that broke after sending as ConnectTimeout too; only the cause tells.
    """
    if isinstance(error.__cause__, aiohttp.ClientError):
        return isinstance(error.__cause__, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
    return isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)


def submit(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Start a coroutine on this process's loop."""
    return asyncio.run_coroutine_threadsafe(coroutine, _loop())


@once
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="http", daemon=True).start()
    return loop
