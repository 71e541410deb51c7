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

T = TypeVar("T")


class _Transport(AiohttpTransport):
    """httpx-aiohttp, which lets some errors of aiohttp through as they are: an answer that is no HTTP, for one."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return await super().handle_async_request(request)
        except aiohttp.ClientError as error:
            raise httpx.RemoteProtocolError(type(error).__name__, request=request) from error


def new_client(*, timeout_seconds: float) -> httpx.AsyncClient:
    """An httpx client over aiohttp's transport, which costs a seventh of the CPU time of httpx's own.

    Environment proxies are ignored: gorush and Waku nodes are named in the settings, and are meant to be reached so.
    """
    limits = httpx.Limits(max_connections=MAX_CONNECTIONS, keepalive_expiry=30.0)
    return httpx.AsyncClient(
        transport=_Transport(limits=limits, trust_env=False),
        timeout=httpx.Timeout(timeout_seconds, connect=CONNECT_TIMEOUT_SECONDS, pool=POOL_TIMEOUT_SECONDS),
        trust_env=False,
    )


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
