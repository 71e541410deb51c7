"""The client of a Waku node, and the liberties that nodes take."""

import asyncio
import base64
import contextlib
import json

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from notifications.connections import new_client
from waku_bridge.messages import WakuMessage
from waku_bridge.node import BadNodeMessage, NodeError, NotSubscribed, WakuNode, from_json, to_json

SHARD = "/waku/2/rs/16/32"
RELAY = "/relay/v1/messages/%2Fwaku%2F2%2Frs%2F16%2F32"
LIGHTPUSH = "/lightpush/v3/message"
SUBSCRIBE = "/relay/v1/subscriptions"
MESSAGE = WakuMessage(b"payload", "/waku/1/0x01020304/rfc26", 1_700_000_000_000_000_000)


class Node:
    """Answers each path with what it was told, in turn; the last answer stays."""

    def __init__(self, **answers: list[httpx.Response | Exception]) -> None:
        paths = {"relay": RELAY, "lightpush": LIGHTPUSH, "subscribe": SUBSCRIBE, "store": "/store/v3/messages"}
        self.answers = {paths[name]: list(given_answers) for name, given_answers in answers.items()}
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
def test_nothing_new_is_an_empty_page_or_null(nothing):
    assert read(ok(nothing)) == []


def test_a_node_that_forgot_the_shard_says_404():
    with pytest.raises(NotSubscribed):
        read(httpx.Response(404, text="not subscribed"))


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
def test_anything_else_is_a_node_error(answer):
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


@pytest.mark.parametrize("answer", [{"messages": None}, {}, {"statusCode": 200, "messages": []}, None, []])
def test_an_empty_store_has_many_ways_to_say_so(answer):
    assert Node(store=[ok(answer)]).run(lambda node: node.stored(pageSize=1)) == []


# Publishing -----------------------------------------------------------------------------------------------------------


def test_publishes_by_lightpush():
    node = Node(lightpush=[ok({"relayPeerCount": 3})])
    assert publish(node) == [("POST", LIGHTPUSH)]
    assert node.bodies == [{"pubsubTopic": SHARD, "message": to_json(MESSAGE)}]


def test_a_node_without_lightpush_relays_and_is_not_asked_again():
    node = Node(lightpush=[httpx.Response(404)], relay=[ok()])
    assert publish(node, times=2) == [("POST", LIGHTPUSH), ("POST", RELAY), ("POST", RELAY)]
    assert node.bodies[1] == to_json(MESSAGE)


@pytest.mark.parametrize("status", [400, 429, 500, 503, 505])
def test_what_lightpush_does_not_take_goes_by_relay_and_lightpush_is_tried_again(status):
    node = Node(lightpush=[httpx.Response(status, json={"statusDesc": "no"})], relay=[ok()])
    assert publish(node, times=2) == [("POST", LIGHTPUSH), ("POST", RELAY)] * 2


def test_subscribes_when_the_node_forgot_the_shard():
    not_subscribed = httpx.Response(400, text="Failed to publish: not subscribed to topic")
    node = Node(lightpush=[httpx.Response(404)], relay=[not_subscribed, ok()], subscribe=[ok()])
    assert publish(node)[1:] == [("POST", RELAY), ("POST", SUBSCRIBE), ("POST", RELAY)]
    assert node.bodies[2] == [SHARD]


@pytest.mark.parametrize("answer", [httpx.Response(400, text="too large"), httpx.Response(500), httpx.ReadError("x")])
def test_what_no_way_takes_is_a_node_error(answer):
    with pytest.raises(NodeError):
        publish(Node(lightpush=[httpx.Response(404)], relay=[answer]))


def test_a_lightpush_that_times_out_may_have_been_taken_and_is_not_relayed_by_the_same_node():
    node = Node(lightpush=[httpx.ReadTimeout("slow")], relay=[ok()])
    with pytest.raises(NodeError):
        publish(node)
    assert node.calls == [("POST", LIGHTPUSH)]


# One message ----------------------------------------------------------------------------------------------------------


def test_reads_what_it_writes():
    assert from_json(to_json(MESSAGE)) == MESSAGE


def test_fields_that_a_node_leaves_out_are_zero():
    assert from_json({"contentTopic": "t"}) == WakuMessage(b"", "t", 0, version=0)
    absent = dict.fromkeys(("payload", "timestamp", "version", "ephemeral", "meta"))
    assert from_json({"contentTopic": "t"} | absent) == WakuMessage(b"", "t", 0, version=0)


@pytest.mark.parametrize(
    "raw",
    [
        None,
        5,
        "text",
        [],
        {},
        {"contentTopic": None},
        {"contentTopic": 5},
        {"contentTopic": "t", "payload": "?"},
        {"contentTopic": "t", "payload": "YQ"},
        {"contentTopic": "t", "payload": "Y Q=="},
        {"contentTopic": "t", "payload": "-_-_"},
        {"contentTopic": "t", "payload": "é"},
        {"contentTopic": "t", "payload": "\ud800"},
        {"contentTopic": "t", "payload": [1, 2]},
        {"contentTopic": "t", "payload": {"a": 1}},
        {"contentTopic": "t", "meta": "?"},
        {"contentTopic": "t", "timestamp": "1"},
        {"contentTopic": "t", "timestamp": 1.5},
        {"contentTopic": "t", "timestamp": 2**63},
        {"contentTopic": "t", "timestamp": True},
        {"contentTopic": "t", "version": "1"},
    ],
    ids=repr,
)
def test_refuses_a_message_that_is_none(raw):
    with pytest.raises(BadNodeMessage):
        from_json(raw)


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=3)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("contentTopic", "payload", "timestamp", "version"), JSON)))
def test_any_object_is_a_message_or_refused(raw):
    with contextlib.suppress(BadNodeMessage):
        assert base64.b64encode(from_json(raw).payload).decode() == (raw.get("payload") or "")
