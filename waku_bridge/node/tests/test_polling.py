"""The polling client: the answers that it reads, and its errors when a node misbehaves."""

import asyncio
import socket
from contextlib import suppress

import httpx
import pytest
import uvloop

from kit.http.connections import new_client, was_never_sent
from waku_bridge.node.polling import PollingClient

PAGE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"


def ask(
    *answers, times=1, pause=0.0, close_after=False, timeout_seconds=5.0, limit=1000, with_uvloop=True, host="127.0.0.1"
):
    """Return the result of a request for each answer, on the bridge's event loop, and the number of connections."""
    connections = []

    async def serve(reader, writer):
        connections.append(asyncio.current_task())
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while await reader.readline():
                await reader.readuntil(b"\r\n\r\n")
                for part in answers:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(pause)
                if close_after:
                    break
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async def main():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://{host}:{server.sockets[0].getsockname()[1]}/relay/v1/messages/%2Fwaku"
        async with new_client(timeout_seconds=5) as other:
            client = PollingClient(other, timeout_seconds=timeout_seconds, max_answer_bytes=limit)
            try:
                found = []
                for _ in range(times):
                    answer = await client.request("GET", url, headers={})
                    found.append((answer.status_code, answer.content))
                    await asyncio.sleep(0.01)
                return found, len(connections)
            finally:
                client.close()
                server.close()
                if connections:
                    await asyncio.wait(connections)

    return uvloop.run(main()) if with_uvloop else asyncio.run(main())


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ([PAGE], (200, b"[]")),
        ([PAGE[:5], PAGE[5:30], PAGE[30:]], (200, b"[]")),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n[\r\n", b"1\r\n]\r\n0\r\n\r\n"], (200, b"[]")),
        ([b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"], (404, b"")),
    ],
    ids=["whole", "in pieces", "chunked", "empty"],
)
@pytest.mark.parametrize("with_uvloop", [False, True])
def test_reads_every_form_of_answer_that_http_allows_on_one_connection(answers, found, with_uvloop):
    assert ask(*answers, times=3, with_uvloop=with_uvloop) == ([found] * 3, 1)


def test_an_answer_may_take_longer_than_a_node_may_be_silent():
    assert ask(PAGE[:5], PAGE[5:30], PAGE[30:], pause=0.6, timeout_seconds=1.0) == ([(200, b"[]")], 1)


ENDLESS = b"x" * 10_000


@pytest.mark.parametrize(
    ("first", "more"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", ENDLESS),
        (b"HTTP/1.1 200 OK\r\n", b"X-%d: y\r\n" * 900),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n[\r\n0\r\nX: ", ENDLESS),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n[\r\n" * 2000),
    ],
    ids=["one header", "many headers", "trailer", "chunks of one byte"],
)
def test_headers_and_chunk_marks_have_a_limit(first, more):
    with pytest.raises(httpx.RemoteProtocolError, match="headers are too large"):
        ask(first, *[more] * 100, limit=10_000_000)


def test_a_connection_that_the_node_has_closed_is_opened_again_before_the_request():
    assert ask(PAGE, times=2, close_after=True) == ([(200, b"[]")] * 2, 2)
    closing = PAGE.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n")
    assert ask(closing, times=2) == ([(200, b"[]")] * 2, 2)


def test_the_name_of_a_node_is_not_resolved_for_each_connection(monkeypatch):
    """A nwaku ends each connection after one answer, and there are twenty in a second."""
    resolve, resolved = socket.getaddrinfo, []

    def counting(host, *arguments, **options):
        resolved.append(host)
        return resolve(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", counting)
    answers, connections = ask(PAGE, times=5, close_after=True, with_uvloop=False, host="localhost")
    assert (answers, connections, resolved.count("localhost")) == ([(200, b"[]")] * 5, 5, 1)


@pytest.mark.parametrize(
    ("answers", "options", "kind"),
    [
        ([PAGE[:-1]], {"close_after": True}, httpx.ReadError),
        ([b""], {"close_after": True}, httpx.ReadError),
        ([b""], {"timeout_seconds": 0.05}, httpx.ReadTimeout),
        ([PAGE[:-1]], {"timeout_seconds": 0.05}, httpx.ReadTimeout),
        ([b"220 mail\r\n\r\n"], {}, httpx.RemoteProtocolError),
        ([PAGE.replace(b"OK\r\n", b"OK\r\nContent-Encoding: gzip\r\n")], {}, httpx.RemoteProtocolError),
        ([PAGE], {"limit": 1}, httpx.RemoteProtocolError),
    ],
)
def test_a_request_whose_answer_breaks_is_not_repeated_because_it_may_have_drained_the_cache(answers, options, kind):
    with pytest.raises(kind) as raised:
        ask(*answers, **options)
    assert not was_never_sent(raised.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "http://no\x00name/"])
def test_a_node_that_cannot_be_reached_has_drained_nothing(url):
    async def main():
        async with new_client(timeout_seconds=5) as other:
            await PollingClient(other, timeout_seconds=5, max_answer_bytes=10).request("GET", url)

    with pytest.raises(httpx.TransportError) as raised:
        asyncio.run(main())
    assert was_never_sent(raised.value)


@pytest.mark.parametrize(
    ("method", "url", "options"),
    [
        ("POST", "http://node/", {}),
        ("GET", "https://node/", {}),
        ("GET", "http://us:secret@node/", {}),
        ("GET", "http://node/", {"params": {"a": "b"}}),
    ],
)
def test_requests_other_than_a_plain_get_go_to_the_general_client(method, url, options):
    class Other:
        async def request(self, *asked, **_options):
            return asked

    client = PollingClient(Other(), timeout_seconds=5, max_answer_bytes=10)
    assert asyncio.run(client.request(method, url, **options)) == (method, url)
