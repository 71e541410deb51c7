"""The client of a Waku node, with the different and the invalid answers that nodes give, and their JSON.

nwaku's words were measured on v0.38.1, or are by its source; go-waku's are those of tests/interop.
"""

import asyncio
import base64
import contextlib
import functools
import json

import httpx
import pytest
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from embedded.node.server import REFUSED
from kit.http import Connections
from tests.rig.peers import app_of
from waku_bridge.dialect import (
    BadNodeMessage,
    Busy,
    CursorLost,
    MessageTooLarge,
    NodeError,
    NoPeers,
    NoStore,
    NotSubscribed,
    StoreEntry,
    StorePage,
    from_json,
    read_base64,
    read_store_page,
    to_json,
)
from waku_bridge.messages import WakuMessage
from waku_bridge.node import WakuNode

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
        is_slow = any(isinstance(answer, httpx.ReadTimeout) for answers in self.answers.values() for answer in answers)
        silent_seconds = 0.2 if is_slow else 5

        async def main():
            async with TestServer(app_of(self)) as server, Connections(silent_seconds=silent_seconds) as connections:
                return await use(WakuNode(f"http://127.0.0.1:{server.port}", connections))

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


@pytest.mark.parametrize(
    ("body", "page"), [([{"contentTopic": "t"}, 5], [{"contentTopic": "t"}, 5]), ([], []), (None, [])]
)
def test_reads_a_page_as_it_came_of_which_null_is_an_empty_one(body, page):
    assert read(ok(body)) == page


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
        httpx.ReadError("cut off"),
        httpx.ReadTimeout("slow"),
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


def ask_store(answer: httpx.Response) -> StorePage:
    return Node(store=[answer]).run(lambda node: node.store_page(pageSize=1))


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


def test_messages_are_published_by_relay_and_share_one_answer_about_the_health():
    node = Node(relay=[ok()])
    assert publish(node, times=2) == [("GET", HEALTH), ("POST", RELAY), ("POST", RELAY)]
    assert node.bodies[1] == to_json(MESSAGE)
    node.run(lambda client: asyncio.gather(*(client.publish(SHARD, MESSAGE) for _ in range(50))))
    assert [node.calls.count(call) for call in (("GET", HEALTH), ("POST", RELAY))] == [2, 52]


@pytest.mark.parametrize("without_peers", [health("NOT_READY"), health(connection="Disconnected")])
def test_a_node_without_peers_is_given_nothing_because_its_relay_would_answer_ok(without_peers):
    node = Node(health=[without_peers], relay=[ok()])
    with pytest.raises(NoPeers):
        publish(node)
    assert node.calls == [("GET", HEALTH)]


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


# JSON of nwaku and go-waku --------------------------------------------------------------------------------------------


# In base64 with both signs that differ: 4OHi4+Tl5ufo6err7O3u7/Dx8vP09fb3+Pn6+/z9/v8=
DIGEST = bytes(range(0xE0, 0x100))
STANDARD, URL_SAFE = base64.b64encode(DIGEST).decode(), base64.urlsafe_b64encode(DIGEST).decode()


# The message that a real go-waku v0.10.0 answered a read with: no version and no timestamp, as its sender gave none.
OF_GO_WAKU = {"payload": "aGFsbG///g==", "contentTopic": "/waku/1/0x75b8b8f6/rfc26", "meta": "bQ==", "ephemeral": None}
ABSENT = dict.fromkeys(("payload", "timestamp", "version", "ephemeral", "meta"))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (to_json(MESSAGE), MESSAGE),
        (to_json(MESSAGE) | {"proof": "", "colour": [1]}, MESSAGE),  # unknown fields are ignored
        ({"contentTopic": "t"}, WakuMessage(b"", "t", 0, version=0)),
        ({"contentTopic": "t"} | ABSENT, WakuMessage(b"", "t", 0, version=0)),
        (OF_GO_WAKU, WakuMessage(b"hallo\xff\xfe", OF_GO_WAKU["contentTopic"], 0, version=0, meta=b"m")),
    ],
)
def test_a_message_is_read_as_written_and_fields_that_a_node_leaves_out_are_zero(raw, message):
    assert from_json(raw) == message


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
        {"contentTopic": "t", "payload": "Y Q=="},
        {"contentTopic": "t", "payload": "YWJjZ"},
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
def test_refuses_an_object_that_is_no_message(raw):
    with pytest.raises(BadNodeMessage):
        from_json(raw)


@given(st.binary(max_size=20))
def test_base64_is_read_in_every_form(data):
    for encoded in (base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode()):
        assert read_base64(encoded) == read_base64(encoded.rstrip("=")) == data


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=3)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("contentTopic", "payload", "timestamp", "version"), JSON)))
def test_any_object_is_a_message_or_refused(raw):
    with contextlib.suppress(BadNodeMessage):
        assert from_json(raw).payload == read_base64(raw.get("payload") or "")


@pytest.mark.parametrize(
    "answer",
    [
        {
            "requestId": "",
            "statusCode": 200,
            "statusDesc": "OK",
            "messages": [{"messageHash": "0x" + DIGEST.hex(), "pubsubTopic": SHARD, "message": {"contentTopic": "t"}}],
            "paginationCursor": "0x" + DIGEST.hex(),
        },
        {
            "request_id": "7",
            "status_code": 200,
            "status_desc": "",
            "messages": [{"message_hash": STANDARD, "pubsub_topic": SHARD, "message": {"contentTopic": "t"}}],
            "pagination_cursor": STANDARD,
            "colour": 1,
        },
    ],
    ids=["nwaku", "go-waku"],
)
def test_a_page_of_the_store_in_both_dialects(answer):
    page = read_store_page(answer)
    assert page.entries == (StoreEntry(DIGEST, SHARD, {"contentTopic": "t"}),)
    assert page.cursor in ("0x" + DIGEST.hex(), URL_SAFE)


@pytest.mark.parametrize("cursor", ["\ud800", "\x00", "a b", "é", "0" * 1025], ids=ascii)
def test_a_cursor_that_cannot_be_sent_back_is_an_error_of_the_node(cursor):
    with pytest.raises(NodeError, match="cursor"):
        read_store_page({"messages": [], "paginationCursor": cursor})


@pytest.mark.parametrize("nothing", [{"messages": None}, {"messages": []}, {}])
def test_an_empty_page_of_the_store(nothing):
    assert read_store_page(nothing) == StorePage()


NESTED = functools.reduce(lambda inner, _: [inner], range(5000))
NO_HASHES = [None, 5, int("1" * 64), NESTED, "", "0x", "0x12", "zz", "e" * 63, STANDARD + "AAAA", "\ud800", "é" * 32]
ENTRIES = [*({"messageHash": text, "message": 1} for text in NO_HASHES), None, 5, "x", []]


@pytest.mark.parametrize("entry", ENTRIES, ids=range(len(ENTRIES)))
def test_an_entry_of_the_store_without_a_usable_hash_stays_on_the_page(entry):
    message = entry["message"] if isinstance(entry, dict) else entry
    assert read_store_page({"messages": [entry]}).entries == (StoreEntry(b"", "", message),)
