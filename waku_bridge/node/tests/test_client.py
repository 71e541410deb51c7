"""The client of a Waku node, with the different and the invalid answers that nodes give.

nwaku's words were measured on v0.38.1, or are by its source; go-waku's are those of tests/interop.
"""

import asyncio
import json

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from embedded.node.server import REFUSED
from kit.http.connections import new_client
from waku_bridge.messages import WakuMessage
from waku_bridge.node import (
    Busy,
    CursorLost,
    MessageTooLarge,
    NodeError,
    NoPeers,
    NoStore,
    NotSubscribed,
    StoreEntry,
    StorePage,
    WakuNode,
    client,
    to_json,
)

SHARD = "/waku/2/rs/16/32"
RELAY = "/relay/v1/messages/%2Fwaku%2F2%2Frs%2F16%2F32"
HEALTH = "/health"
SUBSCRIBE = "/relay/v1/subscriptions"
MESSAGE = WakuMessage(b"payload", "/waku/1/0x01020304/rfc26", 1_700_000_000_000_000_000)


class Node:
    """A node that answers each path with these answers in turn, and repeats the last one."""

    def __init__(self, **answers: list[httpx.Response | Exception]) -> None:
        paths = {"relay": RELAY, "health": HEALTH, "subscribe": SUBSCRIBE, "store": "/store/v3/messages"}
        with_health = {"health": [health()], **answers}
        self.answers = {paths[name]: list(given_answers) for name, given_answers in with_health.items()}
        self.calls: list[tuple[str, str]] = []
        self.bodies: list[object] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.decode().partition("?")[0]
        self.calls.append((request.method, path))
        self.bodies.append(json.loads(request.content) if request.content else None)
        answers = self.answers[path]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def run(self, use):
        async def main():
            async with httpx.AsyncClient(transport=httpx.MockTransport(self)) as client:
                return await use(WakuNode("http://node", client))

        return asyncio.run(main())


def ok(body="OK"):
    return httpx.Response(200, content=json.dumps(body))


def health(relay="READY", connection="PartiallyConnected"):
    return ok({"nodeHealth": "READY", "connectionStatus": connection, "protocolsHealth": [{"Relay": relay}]})


def read(*answers):
    return Node(relay=answers).run(lambda node: node.read(SHARD))


def publish(node, times=1):
    async def use(client):
        for _ in range(times):
            await client.publish(SHARD, MESSAGE)

    node.run(use)
    return node.calls


# Reading --------------------------------------------------------------------------------------------------------------


def test_reads_a_page_as_it_came():
    assert read(ok([{"contentTopic": "t"}, 5])) == [{"contentTopic": "t"}, 5]


@pytest.mark.parametrize("nothing", [[], None])
def test_both_an_empty_list_and_null_are_an_empty_page(nothing):
    assert read(ok(nothing)) == []


@pytest.mark.parametrize("text", ["", "no subscription found for pubsubTopic"], ids=["nwaku", "go-waku"])
def test_a_read_answered_with_404_means_that_the_node_forgot_the_shard(text):
    with pytest.raises(NotSubscribed):
        read(httpx.Response(404, text=text))


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(500),
        httpx.Response(301),
        httpx.Response(200, content=b"<html>"),
        httpx.Response(200, content=b""),
        httpx.Response(200, content=b"[" * 100_000),
        httpx.Response(200, json={"messages": []}),
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("slow"),
        httpx.RemoteProtocolError("odd"),
    ],
    ids=repr,
)
def test_any_other_answer_to_a_read_is_a_node_error(answer):
    with pytest.raises(NodeError) as caught:
        read(answer)
    assert not isinstance(caught.value, NotSubscribed)


@pytest.mark.parametrize("broken", [b"\xff\xfe", rb"\ud800", b"a\nb", b"\x00"])
def test_a_text_that_is_no_utf8_does_not_cost_the_page(broken):
    """Anybody can publish such a content topic, and the page is gone from the node."""
    content = b'[{"contentTopic":"' + broken + b'"},{"contentTopic":"ours"}]'
    page = read(httpx.Response(200, content=content))
    assert page[1] == {"contentTopic": "ours"}


def test_an_answer_that_is_no_http_is_a_node_error():
    async def nonsense(request):
        request.transport.write(b"this is no HTTP at all\r\n\r\n")
        request.transport.close()
        return web.Response()

    async def main():
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", nonsense)
        async with TestServer(app) as server, new_client(timeout_seconds=5) as client:
            with pytest.raises(NodeError):
                await WakuNode(f"http://127.0.0.1:{server.port}", client).read(SHARD)

    asyncio.run(main())


@pytest.mark.parametrize("answer", [{"messages": None}, {}, {"statusCode": 200, "messages": []}])
def test_every_form_of_an_empty_store_page_is_read(answer):
    assert Node(store=[ok(answer)]).run(lambda node: node.store_page(pageSize=1)) == StorePage()


def ask_store(answer: httpx.Response) -> StorePage:
    return Node(store=[answer]).run(lambda node: node.store_page(pageSize=1))


def test_a_page_of_the_store_is_read():
    page = {"messages": [{"messageHash": "0x" + "ab" * 32}], "paginationCursor": "0x" + "ab" * 32}
    assert ask_store(ok(page)) == StorePage((StoreEntry(b"\xab" * 32),), "0x" + "ab" * 32)


def test_the_messages_of_a_store_page_are_returned():
    raw = {"contentTopic": "t"}
    node = Node(store=[ok({"messages": [{"messageHash": "0x" + "ab" * 32, "message": raw}]})])
    assert node.run(lambda node: node.stored(pageSize=1)) == [raw]


@pytest.mark.parametrize(
    ("status", "text", "error"),
    [
        (500, f"{REFUSED}: DRIVER_ERROR: cursor not found", CursorLost),
        (429, "", Busy),
        (500, "Error occurred in queryFut.read() [TOO_MANY_REQUESTS]", Busy),
        (412, "No suitable service peer & no discovery method", NoStore),
        (404, "", NoStore),
        (500, '{"messages":null,"error_message":"protocols not supported: [/vac/waku/store-query/3.0.0]"}', NoStore),
        (400, '{"status_code":400,"status_desc":"pubsubTopic and contentTopics are required"}', NodeError),
        (500, "", NodeError),
    ],
)
def test_each_refusal_of_the_store_is_its_own_error(status, text, error):
    with pytest.raises(NodeError) as caught:
        ask_store(httpx.Response(status, text=text))
    assert type(caught.value) is error


@pytest.mark.parametrize("answer", [None, [], 5, {"statusCode": 500}, {"status_code": 429}, {"messages": {}}])
def test_an_answer_that_is_no_page_of_a_store_is_a_node_error(answer):
    with pytest.raises(NodeError):
        ask_store(ok(answer))


# Publishing -----------------------------------------------------------------------------------------------------------


def test_a_message_is_published_by_relay_and_the_next_one_does_not_ask_for_the_health_again():
    node = Node(relay=[ok()])
    assert publish(node, times=2) == [("GET", HEALTH), ("POST", RELAY), ("POST", RELAY)]
    assert node.bodies[1] == to_json(MESSAGE)


def test_messages_at_the_same_time_share_one_answer_about_the_health():
    node = Node(relay=[ok()])
    node.run(lambda client: asyncio.gather(*(client.publish(SHARD, MESSAGE) for _ in range(50))))
    assert [node.calls.count(call) for call in (("GET", HEALTH), ("POST", RELAY))] == [1, 50]


@pytest.mark.parametrize("without_peers", [health("NOT_READY"), health(connection="Disconnected")])
def test_a_node_without_peers_is_given_nothing_because_its_relay_would_answer_ok(without_peers):
    node = Node(health=[without_peers], relay=[ok()])
    with pytest.raises(NoPeers):
        publish(node)
    assert node.calls == [("GET", HEALTH)]


def test_a_node_that_found_peers_is_used_a_moment_later(monkeypatch):
    monkeypatch.setattr(client, "PEERS_SECONDS", 0.0)
    node = Node(health=[health("NOT_READY"), health()], relay=[ok()])
    with pytest.raises(NoPeers):
        publish(node)
    assert publish(node)[1:] == [("GET", HEALTH), ("POST", RELAY)]


@pytest.mark.parametrize("answer", [httpx.Response(404), httpx.Response(501, text="Non RLN"), ok({}), ok("healthy")])
def test_a_node_without_a_report_of_its_health_relays(answer):
    assert publish(Node(health=[answer], relay=[ok()])) == [("GET", HEALTH), ("POST", RELAY)]


@pytest.mark.parametrize("answer", [httpx.Response(503), httpx.ReadTimeout("slow"), httpx.Response(200, text="<html>")])
def test_a_health_that_fails_is_an_error_of_this_message_and_not_of_the_next_one(answer):
    node = Node(health=[answer, health()], relay=[ok()])

    async def use(client):
        with pytest.raises(NodeError):
            await client.publish(SHARD, MESSAGE)
        await client.publish(SHARD, MESSAGE)

    node.run(use)
    assert node.calls == [("GET", HEALTH), ("GET", HEALTH), ("POST", RELAY)]


def test_publishing_subscribes_a_node_that_forgot_the_shard():
    not_subscribed = httpx.Response(400, text="Failed to publish: Node not subscribed to topic: x")
    node = Node(relay=[not_subscribed, ok()], subscribe=[ok()])
    assert publish(node)[1:] == [("POST", RELAY), ("POST", SUBSCRIBE), ("POST", RELAY)]
    assert node.bodies[2] == [SHARD]


def test_a_failed_subscription_is_removed_at_the_node():
    """Otherwise nwaku would answer the repeated subscription with OK, and every read with an empty page."""
    node = Node(subscribe=[httpx.Response(500, text="Subscribe failed: x"), ok()])
    with pytest.raises(NodeError):
        node.run(lambda node: node.subscribe(SHARD))
    assert node.calls == [("POST", SUBSCRIBE), ("DELETE", SUBSCRIBE)]
    assert node.bodies == [[SHARD], [SHARD]]


@pytest.mark.parametrize(
    ("status", "text", "limit"),
    [
        (400, "Failed to publish: Message size exceeded maximum of 153600 bytes", 153_600),
        (400, "Message size exceeded maximum of: 153600 bytes", 153_600),
        (413, "", 0),
    ],
)
def test_the_refusal_of_a_large_message_has_the_limit_of_the_node(status, text, limit):
    with pytest.raises(MessageTooLarge) as caught:
        publish(Node(relay=[httpx.Response(status, text=text)]))
    assert caught.value.limit_bytes == limit


@pytest.mark.parametrize("answer", [httpx.Response(400, text="too large"), httpx.Response(500), httpx.ReadError("x")])
def test_a_message_that_relay_does_not_take_is_a_node_error(answer):
    with pytest.raises(NodeError):
        publish(Node(relay=[answer]))
