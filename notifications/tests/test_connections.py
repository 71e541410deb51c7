"""The HTTP client of the workers: what it refuses to read, and what is made only once."""

import asyncio
import gzip
import threading
import time
from collections.abc import AsyncIterator

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from notifications.connections import PlainClient, new_client, once, submit


def _answered(transport: httpx.AsyncBaseTransport, *, max_answer_bytes: int = 100) -> httpx.Response:
    async def ask() -> httpx.Response:
        async with PlainClient(transport, httpx.Timeout(5), max_answer_bytes) as client:
            return await client.post("http://peer/path", content=b"question", headers={"X-Name": "value"})

    return asyncio.run(ask())


def test_sends_method_headers_and_content_as_given():
    def handler(request: httpx.Request) -> httpx.Response:
        assert (request.method, request.url.path, request.content) == ("POST", "/path", b"question")
        assert request.headers["X-Name"] == "value"
        assert request.headers["Content-Length"] == "8"
        return httpx.Response(201, headers={"Retry-After": "3"}, content=b"answer")

    answer = _answered(httpx.MockTransport(handler))
    assert (answer.status_code, answer.content, answer.headers["Retry-After"]) == (201, b"answer", "3")


def test_refuses_a_body_that_it_would_not_send():
    async def ask() -> None:
        async with new_client(timeout_seconds=5) as client:
            await client.post("http://peer/", json={"a": 1})

    with pytest.raises(TypeError, match="json"):
        asyncio.run(ask())


def test_follows_no_redirect():
    answer = _answered(httpx.MockTransport(lambda _: httpx.Response(307, headers={"Location": "http://elsewhere/"})))
    assert answer.status_code == 307


@pytest.mark.parametrize(("size", "is_taken"), [(0, True), (100, True), (101, False), (20_000_000, False)])
def test_reads_answers_up_to_its_limit(size: int, is_taken: bool):
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=b"x" * size))
    if is_taken:
        assert len(_answered(transport).content) == size
        return
    with pytest.raises(httpx.RemoteProtocolError):
        _answered(transport)


def test_stops_reading_an_answer_that_never_ends():
    async def endless(_request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(_request)
        while True:
            await response.write(b"x" * 65_536)

    async def ask() -> None:
        app = web.Application()
        app.router.add_get("/", endless)
        async with TestServer(app) as server, new_client(timeout_seconds=5) as client:
            await client.get(f"http://127.0.0.1:{server.port}/")

    with pytest.raises(httpx.RemoteProtocolError):
        asyncio.run(ask())


def test_takes_nothing_packed():
    packed = gzip.compress(b"answer")

    def handler(request: httpx.Request) -> httpx.Response:
        assert request.headers["Accept-Encoding"] == "identity"
        return httpx.Response(200, headers={"Content-Encoding": "gzip"}, stream=_Stream(packed))

    with pytest.raises(httpx.RemoteProtocolError):
        _answered(httpx.MockTransport(handler))


class _Stream(httpx.AsyncByteStream):
    def __init__(self, content: bytes) -> None:
        self._content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._content


def test_makes_a_lasting_value_once_even_when_threads_ask_together():
    made = []

    @once
    def slow() -> object:
        time.sleep(0.05)
        made.append(object())
        return made[-1]

    threads = [threading.Thread(target=slow) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def test_runs_coroutines_of_all_threads_on_one_loop():
    async def loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    assert submit(loop()).result(5) is submit(loop()).result(5)
