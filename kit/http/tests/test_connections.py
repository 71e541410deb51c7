"""Tests of the HTTP client of the workers: requests, errors, the one loop of a process, and the order of its peers."""

import asyncio
import gzip
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from kit.http.connections import Answer, new_client, submit, was_never_sent
from kit.http.failover import DISTRUST_SECONDS, Peers

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _asked(handler: Handler, *calls: tuple[str, str, dict[str, Any]], **of_client: Any) -> list[Answer]:
    """Return the answers of a server with this handler to these calls, one after another: method, path and options."""

    async def ask() -> list[Answer]:
        app = web.Application(client_max_size=10**7)
        app.router.add_route("*", "/{path:.*}", handler)
        client = new_client(**{"timeout_seconds": 5, "max_answer_bytes": 100} | of_client)
        async with TestServer(app, host="localhost") as server, client:
            base = f"http://localhost:{server.port}"
            return [await client.request(method, f"{base}{path}", **options) for method, path, options in calls]

    return asyncio.run(ask())


def _answered(handler: Handler, *, of_client: Mapping[str, Any] | None = None, **options: Any) -> Answer:
    """Return the answer of a server with this handler to a POST."""
    [answer] = _asked(handler, ("POST", "/path", options), **of_client or {})
    return answer


def _saying(status: int = 200, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Handler:
    async def handler(_request: web.Request) -> web.Response:
        return web.Response(status=status, body=body, headers=headers)

    return handler


def test_the_client_sends_headers_parameters_and_content_as_given_and_keeps_no_cookie():
    """Messages may have 1 MiB, and are a third larger in base64."""
    seen = []

    async def handler(request: web.Request) -> web.Response:
        seen.append({**request.headers, "body": await request.read(), "query": dict(request.query)})
        return web.Response(headers={"Set-Cookie": "a=b"})

    given = {"content": b"question", "headers": {"X-Name": "value"}, "params": {"a": "b+c/d", "n": 1}}
    _asked(handler, ("POST", "/", given), ("POST", "/", {"content": bytes(1_500_000)}))

    first, second = seen
    assert (first["body"], first["Content-Length"], first["X-Name"]) == (b"question", "8", "value")
    assert first["query"] == {"a": "b+c/d", "n": "1"}
    assert (second["Content-Length"], len(second["body"]), second.get("Cookie")) == ("1500000", 1_500_000, None)


def test_the_client_sends_a_url_as_it_is_encoded():
    """For nwaku, a plain comma in a value separates two values, and a plain slash in a path separates two segments."""
    seen: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.raw_path)
        return web.Response()

    _asked(handler, ("GET", "/messages/%2Fwaku%2F2", {"params": {"hashes": "0x01,0x02", "topic": "/waku/2"}}))
    assert seen == ["/messages/%2Fwaku%2F2?hashes=0x01%2C0x02&topic=%2Fwaku%2F2"]


def test_the_client_reads_status_headers_and_content_and_follows_no_redirect():
    answer = _answered(_saying(201, b"answer", {"Retry-After": "3"}))
    assert (answer.status_code, answer.content, answer.headers["retry-after"]) == (201, b"answer", "3")
    assert _answered(_saying(307, headers={"Location": "http://elsewhere/"})).status_code == 307


async def _endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"x" * 65_536)


def test_the_client_reads_answers_up_to_its_limit():
    for size in (0, 100):
        assert len(_answered(_saying(body=b"x" * size)).content) == size
    for handler in (_saying(body=b"x" * 101), _saying(body=b"x" * 20_000_000), _endless):
        with pytest.raises(httpx.RemoteProtocolError):
            _answered(handler)


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


async def _trickle(request: web.Request) -> web.StreamResponse:
    """Answer byte by byte."""
    response = web.StreamResponse()
    await response.prepare(request)
    with suppress(ConnectionError):
        while True:
            await response.write(b"x")
            await asyncio.sleep(0.05)
    return response


async def _fall_silent(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(1)
    return web.Response()


async def _talk_nonsense(request: web.Request) -> web.Response:
    assert request.transport
    request.transport.write(b"this is no HTTP at all\r\n\r\n")
    return await _close(request)


@pytest.mark.parametrize(
    ("handler", "kind", "of_client"),
    [
        (_close, httpx.ReadError, {}),
        (_close_within_the_answer, httpx.ReadError, {}),
        (_fall_silent, httpx.ReadTimeout, {"timeout_seconds": 0.3}),
        (_trickle, httpx.ReadTimeout, {"in_all_seconds": 0.3, "max_answer_bytes": 10**6}),
        (_talk_nonsense, httpx.RemoteProtocolError, {}),
    ],
)
def test_a_request_that_fails_after_sending_may_have_arrived(handler: Handler, kind: type, of_client: dict[str, Any]):
    with pytest.raises(kind) as caught:
        _answered(handler, of_client=of_client, content=b"question")
    assert not was_never_sent(caught.value)


def test_a_request_whose_connection_broke_is_not_repeated_silently():
    """A GET of a Waku node's cache empties it, so a second answer would hide the messages lost with the first one."""
    asked: list[str] = []

    async def close_at_the_second(request: web.Request) -> web.Response:
        asked.append(request.method)
        return await _close(request) if len(asked) == 2 else web.Response()

    with pytest.raises(httpx.ReadError):
        _asked(close_at_the_second, ("GET", "/", {}), ("GET", "/", {}))
    assert asked == ["GET", "GET"]


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
            posts = [client.request("POST", str(server.make_url("/")), content=each) for each in (b"first", b"second")]
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


# Failover: which of several peers is asked first ----------------------------------------------------------------------
FIRST, SECOND, THIRD = "http://first", "http://second", "http://third"


@pytest.mark.parametrize(
    ("events", "now", "order"),
    [
        pytest.param([], 5, [FIRST, SECOND, THIRD], id="in the order of the settings"),
        pytest.param([("failed", FIRST, 5)], 6, [SECOND, THIRD, FIRST], id="one that failed is last"),
        pytest.param(
            [("failed", peer, at) for at, peer in enumerate((SECOND, THIRD, FIRST))], 7, [SECOND, THIRD, FIRST],
            id="of those that failed, the first",
        ),
        pytest.param([("failed", FIRST, 5)], 5 + DISTRUST_SECONDS, [FIRST, SECOND, THIRD], id="trusted after a while"),
        pytest.param([("failed", FIRST, 5), ("answered", FIRST)], 6, [FIRST, SECOND, THIRD], id="it has answered"),
        pytest.param([("took", FIRST, 0.5, 0)], 1, [FIRST, SECOND, THIRD], id="no other is known to be quicker"),
        pytest.param([("took", FIRST, 0.5, 0), ("took", SECOND, 0.01, 0)], 1, [SECOND, THIRD, FIRST], id="much slower"),
        pytest.param([("took", FIRST, 0.09, 0), ("took", SECOND, 0.01, 0)], 1, [FIRST, SECOND, THIRD], id="slower"),
        pytest.param(
            [("took", peer, 0.01, 0) for peer in (FIRST, SECOND)] * 10 + [("took", FIRST, 0.5, 0)], 1,
            [FIRST, SECOND, THIRD], id="slow once",
        ),
        pytest.param([("took", FIRST, 5, 0), ("took", SECOND, 0.01, 59)], 59, [SECOND, THIRD, FIRST], id="one minute"),
        pytest.param([("took", FIRST, 5, 0), ("took", SECOND, 0.01, 59)], 60, [FIRST, SECOND, THIRD], id="no longer"),
        pytest.param(
            [("took", FIRST, 5, 0), ("took", SECOND, 0.01, 0), ("failed", SECOND, 1)], 2, [THIRD, FIRST, SECOND],
            id="slow before failed",
        ),
    ],
)  # fmt: skip
def test_servers_are_tried_in_the_order_of_trust_and_speed(events, now, order):
    peers = Peers([FIRST, SECOND, THIRD])
    for method, *arguments in events:
        getattr(peers, method)(*arguments)
    assert peers.in_order(now=now) == order


def test_a_server_is_distrusted_for_longer_after_each_failure():
    peers = Peers([FIRST, SECOND], max_distrust_seconds=3 * DISTRUST_SECONDS)
    now = 0.0
    for span in (10, 20, 30, 30):
        peers.failed(FIRST, now)
        assert not peers.is_trusted(FIRST, now + span - 1)
        assert peers.is_trusted(FIRST, now + span)
        now += span
    peers.answered(FIRST)
    peers.failed(FIRST, now)
    assert peers.is_trusted(FIRST, now + 10)


def test_failures_of_parallel_requests_count_once():
    peers = Peers([FIRST], max_distrust_seconds=1000)
    for _ in range(64):
        peers.failed(FIRST, now=5.0)
    assert peers.is_trusted(FIRST, now=5.0 + DISTRUST_SECONDS)


def test_a_single_server_is_tried_also_while_it_is_distrusted_for_at_least_the_given_seconds():
    peers = Peers([FIRST])
    peers.failed(FIRST, now=5.0, min_seconds=60)
    assert (peers.is_trusted(FIRST, now=64.0), peers.is_trusted(FIRST, now=65.0)) == (False, True)
    assert peers.in_order(now=5.0) == [FIRST]
