"""Tests of HTTP: the connections of workers, over real sockets, requests by httpx, and the order of peers."""

import asyncio
import gzip
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing, suppress
from typing import Any

import aiohttp
import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from kit.http import DISTRUST_SECONDS, ERRORS, NEVER_SENT, Answer, BadAnswer, Connections, Peers, ask, submit

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _asked(handler: Handler, *calls: tuple[str, str, dict[str, Any]], **options: Any) -> list[Answer]:
    """Return the answers of a server with this handler to these calls, one after another: method, path and options."""

    async def ask_all() -> list[Answer]:
        app = web.Application(client_max_size=10**7)
        app.router.add_route("*", "/{path:.*}", handler)
        connections = Connections(**{"silent_seconds": 5, "max_answer_bytes": 100} | options)
        async with TestServer(app, host="localhost") as server, connections:
            base = f"http://localhost:{server.port}"
            return [await connections.request(method, f"{base}{path}", **given) for method, path, given in calls]

    return asyncio.run(ask_all())


def _answered(handler: Handler, **options: Any) -> Answer:
    """Return the answer of a server with this handler to a POST."""
    [answer] = _asked(handler, ("POST", "/path", {"body": b"question"}), **options)
    return answer


def _saying(status: int = 200, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Handler:
    async def handler(_request: web.Request) -> web.Response:
        return web.Response(status=status, body=body, headers=headers)

    return handler


def test_headers_and_bodies_are_sent_as_given_and_no_cookie_is_kept():
    """Messages may have 1 MiB, and are a third larger in base64."""
    seen = []

    async def handler(request: web.Request) -> web.Response:
        seen.append({**request.headers, "body": await request.read()})
        return web.Response(headers={"Set-Cookie": "a=b"})

    given = {"body": b"question", "headers": {"X-Name": "value"}}
    _asked(handler, ("POST", "/", given), ("POST", "/", {"body": bytes(1_500_000)}))

    first, second = seen
    assert (first["body"], first["Content-Length"], first["X-Name"]) == (b"question", "8", "value")
    assert (second["Content-Length"], len(second["body"]), second.get("Cookie")) == ("1500000", 1_500_000, None)


def test_a_url_is_sent_as_it_is_encoded():
    """For nwaku, a plain comma in a value separates two values, and a plain slash in a path separates two segments."""
    seen: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.raw_path)
        return web.Response()

    path = "/messages/%2Fwaku%2F2?hashes=0x01%2C0x02&topic=%2Fwaku%2F2"
    _asked(handler, ("GET", path, {}))
    assert seen == [path]


def test_status_headers_and_body_are_read_and_no_redirect_is_followed():
    answer = _answered(_saying(201, b"answer", {"Retry-After": "3"}))
    assert (answer.status, answer.body, answer.headers["retry-after"]) == (201, b"answer", "3")
    assert _answered(_saying(307, headers={"Location": "http://elsewhere/"})).status == 307


async def _endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"x" * 65_536)


def test_answers_are_read_up_to_a_limit():
    for size in (0, 100):
        assert len(_answered(_saying(body=b"x" * size)).body) == size
    for handler in (_saying(body=b"x" * 101), _saying(body=b"x" * 20_000_000), _endless):
        with pytest.raises(BadAnswer):
            _answered(handler)


def test_compressed_answers_are_not_asked_for_and_refused():
    seen = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.headers["Accept-Encoding"])
        return web.Response(body=gzip.compress(b"answer"), headers={"Content-Encoding": "gzip"})

    with pytest.raises(BadAnswer):
        _answered(handler)
    assert seen == ["identity"]


def test_the_name_of_a_peer_is_not_resolved_for_each_connection(monkeypatch: pytest.MonkeyPatch):
    """A nwaku ends each connection after one answer, and is read twenty times in a second."""
    resolve, resolved = aiohttp.DefaultResolver.resolve, []

    async def counting(resolver: Any, host: str, *arguments: Any, **options: Any) -> Any:
        resolved.append(host)
        return await resolve(resolver, host, *arguments, **options)

    monkeypatch.setattr(aiohttp.DefaultResolver, "resolve", counting)
    _asked(_saying(headers={"Connection": "close"}), *[("GET", "/", {})] * 5)
    assert resolved == ["localhost"]


# Unreached or ambiguous -----------------------------------------------------------------------------------------------

PAGE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
RESET, SILENT = b"reset", b"silent"
DRIPS = {"total_seconds": 0.2, "pause": 0.05}


def _raised(*parts: bytes, method: str, pause: float = 0.0, **options: Any) -> tuple[BaseException | bytes, int]:
    """Ask a server that answers these parts, and then closes, resets or is silent.

    Return the error, or the body of the answer, and the number of requests that arrived.
    """
    heads = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(ConnectionError, asyncio.IncompleteReadError):
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            for part in parts:
                if part == SILENT:
                    await reader.read()
                elif part == RESET:
                    writer.transport.abort()
                else:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(pause)

    async def main() -> BaseException | bytes:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
            async with Connections(**{"silent_seconds": 5, "max_answer_bytes": 100} | options) as connections:
                try:
                    return (await connections.request(method, url, body=b"question" if method == "POST" else None)).body
                except ERRORS as error:
                    return error

    return asyncio.run(main()), len(heads)


@pytest.mark.parametrize(
    ("parts", "kind", "options"),
    [
        pytest.param([], aiohttp.ClientError, {}, id="closed"),
        pytest.param([RESET], aiohttp.ClientError, {}, id="reset"),
        pytest.param([SILENT], TimeoutError, {"silent_seconds": 0.2}, id="silent"),
        pytest.param([PAGE[:9]], aiohttp.ClientError, {}, id="closed in the head"),
        pytest.param([PAGE[:-1]], aiohttp.ClientError, {}, id="closed in the body"),
        pytest.param([PAGE[:-1], RESET], aiohttp.ClientError, {}, id="reset in the body"),
        pytest.param([PAGE[:-1], SILENT], TimeoutError, {"silent_seconds": 0.2}, id="silent in the body"),
        pytest.param([b"H", b"T", b"T", b"P", b"/", b"1"], TimeoutError, DRIPS, id="drips"),
        pytest.param([b"220 mail\r\n\r\n"], aiohttp.ClientResponseError, {}, id="no HTTP"),
        pytest.param([CHUNKED, b"zz\r\n"], ERRORS, {"silent_seconds": 0.3, "pause": 0.02}, id="no chunk"),
        pytest.param([PAGE[:17] + b"X: ", *[b"y" * 60_000] * 100], aiohttp.ClientError, {}, id="one long header"),
        pytest.param(
            [b"HTTP/1.1 200 OK\r\n", *[b"X-%d: y\r\n" % i * 900 for i in range(100)]], aiohttp.ClientError, {},
            id="many headers",
        ),
        pytest.param(
            [CHUNKED, b"0\r\nX: ", *[b"y" * 60_000] * 9], ERRORS, {"silent_seconds": 0.3, "pause": 0.02},
            id="one long trailer",
        ),
        pytest.param([CHUNKED, *[b"1\r\n[\r\n" * 2000] * 10], BadAnswer, {}, id="many chunks"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_request_that_fails_after_sending_may_have_arrived_and_is_not_repeated(method, parts, kind, options):
    """A push must not be doubled. A GET of a node's cache empties it: a second answer would hide the loss."""
    error, requests = _raised(*parts, method=method, **options)
    assert (isinstance(error, kind), isinstance(error, NEVER_SENT), requests) == (True, False, 1)


def test_an_answer_may_take_longer_than_a_peer_may_be_silent():
    parts = [PAGE[:5], PAGE[5:30], PAGE[30:]]
    assert _raised(*parts, method="GET", pause=0.6, silent_seconds=1.0) == (b"[]", 1)


def test_a_request_on_a_kept_connection_that_broke_is_not_repeated():
    asked: list[str] = []

    async def close_at_the_second(request: web.Request) -> web.Response:
        asked.append(request.method)
        if len(asked) == 2:
            assert request.transport
            request.transport.close()
        return web.Response()

    with pytest.raises(aiohttp.ClientPayloadError):
        _asked(close_at_the_second, ("GET", "/", {}), ("GET", "/", {}))
    assert asked == ["GET", "GET"]


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        pytest.param("http://127.0.0.1:1/", aiohttp.ClientConnectorError, id="refused connection"),
        pytest.param("http://no-such-host.invalid/", aiohttp.ClientConnectorDNSError, id="unknown host"),
        pytest.param("http://", aiohttp.InvalidURL, id="no host"),
        pytest.param("https://127.0.0.1:{plain}/", aiohttp.ClientSSLError, id="peer without TLS"),
        pytest.param("http://127.0.0.1:{full}/", aiohttp.ConnectionTimeoutError, id="peer that takes no connection"),
    ],
)
def test_a_request_without_a_connection_was_never_sent(monkeypatch: pytest.MonkeyPatch, url: str, kind: type):
    monkeypatch.setattr("kit.http.CONNECT_TIMEOUT_SECONDS", 0.3)

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
            waiting = [socket.socket() for _ in range(4)]
            for each in waiting:  # they fill the queue of a server that accepts none
                each.setblocking(False)
                each.connect_ex(full.getsockname())
            async with TestServer(web.Application()) as plain, Connections(silent_seconds=5) as connections:
                try:
                    where = url.format(plain=plain.port, full=full.getsockname()[1])
                    await connections.request("POST", where, body=b"question")
                finally:
                    for each in waiting:
                        each.close()

    with pytest.raises(kind) as caught:
        asyncio.run(main())
    assert isinstance(caught.value, NEVER_SENT)


def test_a_request_that_waits_for_a_free_connection_sends_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kit.http.MAX_CONNECTIONS", 1)
    monkeypatch.setattr("kit.http.IN_ALL_CONNECTED_SECONDS", 0.1)
    seen = []

    async def slow(request: web.Request) -> web.Response:
        seen.append(await request.read())
        await asyncio.sleep(0.5)
        return web.Response()

    async def ask_two() -> list[object]:
        app = web.Application()
        app.router.add_post("/", slow)
        async with TestServer(app) as server, Connections(silent_seconds=5) as connections:
            url = str(server.make_url("/"))
            posts = [connections.request("POST", url, body=each) for each in (b"first", b"second")]
            return list(await asyncio.gather(*posts, return_exceptions=True))

    first, second = asyncio.run(ask_two())
    assert isinstance(first, Answer)
    assert isinstance(second, NEVER_SENT)
    assert seen == [b"first"]


def test_coroutines_of_all_threads_run_on_one_loop():
    async def loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    assert submit(loop()).result(5) is submit(loop()).result(5)


# By httpx -------------------------------------------------------------------------------------------------------------


class _Dripping(httpx.AsyncByteStream):
    async def __aiter__(self):
        while True:
            yield b"x"
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("response", "error"),
    [
        pytest.param(lambda: httpx.Response(200, content=b"x" * 101), httpx.RemoteProtocolError, id="too large"),
        pytest.param(lambda: httpx.Response(200, stream=_Dripping()), TimeoutError, id="drips"),
        pytest.param(
            lambda: httpx.Response(200, headers={"Content-Encoding": "br"}, stream=httpx.ByteStream(b"x")),
            httpx.RemoteProtocolError,
            id="compressed",
        ),
    ],
)
def test_a_rare_request_ends_in_time_and_with_a_limited_answer(response, error):
    async def main() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(lambda _: response())) as client:
            limit = 10**6 if error is TimeoutError else 100
            await ask(client, "GET", "http://peer/", seconds=0.2, max_bytes=limit)

    with pytest.raises(error):
        asyncio.run(main())


@pytest.mark.parametrize("status", [200, 307])
def test_the_answer_to_a_rare_request_is_complete_and_no_redirect_is_followed(status: int):
    def respond(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/"
        return httpx.Response(status, headers={"Location": "/elsewhere"}, content=request.content)

    async def main() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.MockTransport(respond)) as client:
            return await ask(client, "POST", "http://peer/", seconds=5, content=b"question")

    answer = asyncio.run(main())
    assert (answer.status_code, answer.content, answer.headers["location"]) == (status, b"question", "/elsewhere")


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
