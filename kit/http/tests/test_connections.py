"""Tests of the HTTP client of the workers: requests, refused answers, errors, and the one loop of a process."""

import asyncio
import gzip
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from kit.http.connections import Answer, new_client, submit, was_never_sent

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _answered(
    handler: Handler,
    *,
    max_answer_bytes: int = 100,
    timeout_seconds: float = 5,
    in_all_seconds: float | None = None,
    **options,
) -> Answer:
    """Return the answer of a server with this handler to a POST."""

    async def ask() -> Answer:
        app = web.Application()
        app.router.add_post("/path", handler)
        client = new_client(
            timeout_seconds=timeout_seconds, in_all_seconds=in_all_seconds, max_answer_bytes=max_answer_bytes
        )
        async with TestServer(app) as server, client:
            return await client.request("POST", f"http://127.0.0.1:{server.port}/path", **options)

    return asyncio.run(ask())


def _saying(status: int = 200, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Handler:
    async def handler(_request: web.Request) -> web.Response:
        return web.Response(status=status, body=body, headers=headers)

    return handler


def test_the_client_sends_headers_parameters_and_content_as_given():
    seen = {}

    async def handler(request: web.Request) -> web.Response:
        seen.update(request.headers, body=await request.read(), query=dict(request.query))
        return web.Response()

    _answered(handler, content=b"question", headers={"X-Name": "value"}, params={"a": "b+c/d", "n": 1})

    assert (seen["body"], seen["Content-Length"], seen["X-Name"]) == (b"question", "8", "value")
    assert seen["query"] == {"a": "b+c/d", "n": "1"}


def test_the_client_sends_a_url_as_it_is_encoded():
    """For nwaku, a plain comma in a value separates two values, and a plain slash in a path separates two segments."""
    seen: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.raw_path)
        return web.Response()

    async def main() -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", handler)
        async with TestServer(app) as server, new_client(timeout_seconds=5) as client:
            url = f"http://127.0.0.1:{server.port}/messages/%2Fwaku%2F2"
            await client.request("GET", url, params={"hashes": "0x01,0x02", "topic": "/waku/2"})

    asyncio.run(main())
    assert seen == ["/messages/%2Fwaku%2F2?hashes=0x01%2C0x02&topic=%2Fwaku%2F2"]


def test_the_client_sends_a_large_body_with_its_length():
    """Messages may have 1 MiB, and are a third larger in base64."""
    seen = {}

    async def handler(request: web.Request) -> web.Response:
        seen.update(
            length=request.headers["Content-Length"], size=sum([len(c) async for c in request.content.iter_any()])
        )
        return web.Response()

    _answered(handler, content=bytes(1_500_000))
    assert seen == {"length": "1500000", "size": 1_500_000}


def test_the_client_reads_status_headers_and_content():
    answer = _answered(_saying(201, b"answer", {"Retry-After": "3"}))
    assert (answer.status_code, answer.content, answer.headers["retry-after"]) == (201, b"answer", "3")


def test_the_client_follows_no_redirect():
    assert _answered(_saying(307, headers={"Location": "http://elsewhere/"})).status_code == 307


def test_the_client_keeps_no_cookie():
    seen = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Cookie"))
        return web.Response(headers={"Set-Cookie": "a=b"})

    async def ask_twice() -> None:
        app = web.Application()
        app.router.add_get("/", handler)
        async with TestServer(app, host="localhost") as server, new_client(timeout_seconds=5) as client:
            for _ in range(2):
                await client.request("GET", f"http://localhost:{server.port}/")

    asyncio.run(ask_twice())
    assert seen == [None, None]


@pytest.mark.parametrize(("size", "is_taken"), [(0, True), (100, True), (101, False), (20_000_000, False)])
def test_the_client_reads_answers_up_to_its_limit(size: int, is_taken: bool):
    if is_taken:
        assert len(_answered(_saying(body=b"x" * size)).content) == size
        return
    with pytest.raises(httpx.RemoteProtocolError):
        _answered(_saying(body=b"x" * size))


def test_the_client_stops_reading_an_endless_answer():
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65_536)

    with pytest.raises(httpx.RemoteProtocolError):
        _answered(endless)


def test_the_client_refuses_compressed_answers():
    seen = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.headers["Accept-Encoding"])
        return web.Response(body=gzip.compress(b"answer"), headers={"Content-Encoding": "gzip"})

    with pytest.raises(httpx.RemoteProtocolError):
        _answered(handler)
    assert seen == ["identity"]


# Errors ---------------------------------------------------------------------------------------------------------------


async def _close(request: web.Request) -> web.Response:
    await request.read()
    assert request.transport
    request.transport.close()
    return web.Response()


async def _close_within_the_answer(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "50"})
    await response.prepare(request)
    await response.write(b"begun")
    return await _close(request)


async def _fall_silent(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(1)
    return web.Response()


async def _talk_nonsense(request: web.Request) -> web.Response:
    assert request.transport
    request.transport.write(b"this is no HTTP at all\r\n\r\n")
    return await _close(request)


@pytest.mark.parametrize(
    ("handler", "kind"),
    [
        (_close, httpx.ReadError),
        (_close_within_the_answer, httpx.ReadError),
        (_fall_silent, httpx.ReadTimeout),
        (_talk_nonsense, httpx.RemoteProtocolError),
    ],
)
def test_a_request_that_fails_after_sending_may_have_arrived(handler: Handler, kind: type[httpx.TransportError]):
    with pytest.raises(kind) as caught:
        _answered(handler, timeout_seconds=0.3, content=b"question")
    assert not was_never_sent(caught.value)


def test_a_request_whose_connection_broke_is_not_repeated_silently():
    """A GET of a Waku node's cache empties it, so a second answer would hide the messages lost with the first one."""
    asked: list[str] = []

    async def close_at_the_second(request: web.Request) -> web.Response:
        asked.append(request.method)
        return await _close(request) if len(asked) == 2 else web.Response()

    async def main() -> None:
        app = web.Application()
        app.router.add_get("/", close_at_the_second)
        async with TestServer(app) as server, new_client(timeout_seconds=5) as client:
            await client.request("GET", str(server.make_url("/")))
            with pytest.raises(httpx.ReadError):
                await client.request("GET", str(server.make_url("/")))

    asyncio.run(main())
    assert asked == ["GET", "GET"]


def test_a_request_to_a_peer_that_answers_byte_by_byte_times_out():
    async def trickle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with suppress(ConnectionError):
            while True:
                await response.write(b"x")
                await asyncio.sleep(0.05)
        return response

    with pytest.raises(httpx.ReadTimeout) as caught:
        _answered(trickle, timeout_seconds=5, in_all_seconds=0.3, max_answer_bytes=10**6, content=b"question")
    assert not was_never_sent(caught.value)


@pytest.mark.parametrize("value", ["\ud800", "x" * 70_000], ids=["surrogate", "too_long"])
def test_a_parameter_that_cannot_be_encoded_in_a_url_is_a_local_error(value: str):
    with pytest.raises(httpx.LocalProtocolError):
        _answered(_saying(), params={"cursor": value})


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:1/", "http://no-such-host.invalid/", "http://", "https://127.0.0.1:{port}/"],
    ids=["refused connection", "unknown host", "no host", "peer without TLS"],
)
def test_a_request_without_a_connection_was_never_sent(url: str):
    async def ask() -> None:
        async with TestServer(web.Application()) as server, new_client(timeout_seconds=5) as client:
            await client.request("POST", url.format(port=server.port), content=b"question")

    with pytest.raises(httpx.ConnectError) as caught:
        asyncio.run(ask())
    assert was_never_sent(caught.value)


def test_a_request_that_waits_for_a_free_connection_sends_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kit.http.connections.MAX_CONNECTIONS", 1)
    monkeypatch.setattr("kit.http.connections.POOL_TIMEOUT_SECONDS", 0.1)
    seen = []

    async def slow(request: web.Request) -> web.Response:
        seen.append(await request.read())
        await asyncio.sleep(0.5)
        return web.Response()

    async def ask_two() -> list[object]:
        app = web.Application()
        app.router.add_post("/", slow)
        async with TestServer(app) as server, new_client(timeout_seconds=5) as client:
            url = f"http://127.0.0.1:{server.port}/"
            posts = [client.request("POST", url, content=content) for content in (b"first", b"second")]
            return list(await asyncio.gather(*posts, return_exceptions=True))

    first, second = asyncio.run(ask_two())
    assert not isinstance(first, Exception)
    assert isinstance(second, httpx.TransportError)
    assert was_never_sent(second)
    assert seen == [b"first"]


def test_coroutines_of_all_threads_run_on_one_loop():
    async def loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    assert submit(loop()).result(5) is submit(loop()).result(5)
