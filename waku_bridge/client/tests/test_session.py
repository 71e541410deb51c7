"""Sessions and store readers over a node whose store is slow, unordered, crowded, unreachable or wrong."""

import asyncio
import base64
from collections.abc import Callable, Iterator
from itertools import count

import httpx
import orjson
import pytest
from aiohttp.test_utils import TestServer

from kit.http import Connections
from registrations.messages import TokenType
from tests.rig.peers import app_of
from tests.rig.rows import firebase_token
from waku_bridge.client.core import Schedule
from waku_bridge.client.events import Accepted, Advertised, Ignored, Notified, Reason
from waku_bridge.client.registering import RegisteringClient
from waku_bridge.client.sending import SendingClient
from waku_bridge.client.session import MAX_TOPICS, OVERLAP_NS, NoAnswer, RegistrationRefused, Session, StoreReader
from waku_bridge.client.state import Address, Standing, new_state
from waku_bridge.client.tests.model import MESSAGE_ID, ModelServer, sealed
from waku_bridge.codec.tests.examples import ACCESS_TOKEN, CLIENT, NOW_NS, OUTSIDER, SENDER, SERVER, UUID, repeatable
from waku_bridge.dialect import NodeError, from_json, to_json
from waku_bridge.messages import PushResponse, RegistrationError, WakuMessage
from waku_bridge.node import WakuNode

TOPIC = "/waku/1/0x00000001/rfc26"
REGISTERED = [Accepted(SERVER.pub33, 1, is_registered=True), Advertised(1, (SERVER.pub33,))]


class Node:
    """A Waku node with a server behind it. A test adds further stored messages and failures."""

    def __init__(self, server: ModelServer) -> None:
        self.server = server
        self.stored: list[dict] = []
        self.nonsense: list[object] = []
        self.failures: list[httpx.Response] = []
        self.refusals: list[httpx.Response] = []
        self.later_refusals: list[httpx.Response] = []  # of messages after the first
        self.published: list[WakuMessage] = []
        self.asked: list[httpx.QueryParams] = []
        self.clock: Iterator[int] = count(NOW_NS + 1)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/health":
            return httpx.Response(404)
        if request.method == "POST" and self.published and self.later_refusals:
            return self.later_refusals.pop()
        if request.method == "POST":
            return self.refusals.pop() if self.refusals else self._publish(orjson.loads(request.content))
        if self.published and self.failures:
            return self.failures.pop()
        return self._page(request.url.params)

    def archive(self, *messages: WakuMessage) -> None:
        self.stored += [to_json(message) for message in messages]

    def _publish(self, body: dict) -> httpx.Response:
        message = from_json(body)
        self.published.append(message)
        self.archive(message, *self.server.receive(message, next(self.clock)))
        return httpx.Response(200, text="OK")

    def _page(self, params: httpx.QueryParams) -> httpx.Response:
        self.asked.append(params)
        topics, start = params["contentTopics"].split(","), int(params.get("startTime", 0))
        found = [m for m in self.stored if m["contentTopic"] in topics and m["timestamp"] >= start]
        found.sort(key=lambda m: m["timestamp"], reverse=params["ascending"] != "true")
        page = [{"messageHash": "0x", "message": message} for message in found[: int(params["pageSize"])]]
        return httpx.Response(200, json={"messages": self.nonsense + page})


@pytest.fixture
def server() -> ModelServer:
    return ModelServer(SERVER)


@pytest.fixture
def node(server: ModelServer) -> Node:
    return Node(server)


@pytest.mark.parametrize(
    ("error", "text"), [(RegistrationError.MALFORMED_MESSAGE, "MALFORMED_MESSAGE"), (77, "error 77")]
)
def test_a_refused_registration_raises_the_error_and_the_server(node, server, error, text) -> None:
    server.registration_errors = [error]
    with pytest.raises(RegistrationRefused, match=text) as refused:
        _register(node)
    assert (refused.value.error, refused.value.server) == (error, SERVER.pub33)


def test_a_call_without_an_answer_raises_and_the_next_call_repeats_the_message(node: Node) -> None:
    client = _client()
    node.server = ModelServer(OUTSIDER)
    with pytest.raises(NoAnswer):
        _run(node, lambda session: session.register(client, timeout_seconds=0.05))
    node.server = ModelServer(SERVER)
    _run(node, lambda session: session.register(client, timeout_seconds=30))
    assert client.standing(SERVER.pub33).standing is Standing.ACCEPTED


JUNK = {"payload": base64.b64encode(b"junk").decode(), "contentTopic": "/x", "timestamp": NOW_NS}
TROUBLES: dict[str, dict[str, object]] = {
    "an answer that is dated before its question, as clocks differ": {"clock": count(NOW_NS - 19 * 10**9)},
    "failures of a moment": {"failures": [httpx.Response(503), httpx.Response(200, content=b"<html>")]},
    "messages after the first that the node refuses": {"later_refusals": [httpx.Response(500)] * 3},
    "invalid entries": {
        "nonsense": [None, {}, {"message": 7}, {"message": {"contentTopic": "/x", "payload": 1}}, {"message": JUNK}]
    },
}


@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES)
def test_a_registration_succeeds_in_spite_of_a_troubled_node(node: Node, trouble: dict[str, object]) -> None:
    vars(node).update(trouble)
    assert _register(node) is Standing.ACCEPTED
    assert len(node.published) == 2


def test_no_message_is_lost_when_the_node_refuses_what_follows_from_another_one(node: Node) -> None:
    node.archive(sealed(PushResponse(MESSAGE_ID), CLIENT.pub33, OUTSIDER))
    node.later_refusals, events = [httpx.Response(500)], []
    assert _register(node, events) is Standing.ACCEPTED
    assert [event.reason for event in events if isinstance(event, Ignored)] == [Reason.UNEXPECTED_TYPE]


def test_a_message_that_the_node_refused_is_an_error_and_is_published_when_it_is_back(node: Node) -> None:
    client = _client()
    node.refusals = [httpx.Response(500)]

    async def ask(session: Session) -> None:
        with pytest.raises(NodeError):
            await session.register(client, timeout_seconds=30)
        is_over = lambda: client.standing(SERVER.pub33).standing is not Standing.PENDING  # noqa: E731
        await session.drive(client, is_over, timeout_seconds=30)

    _run(node, ask)
    assert client.standing(SERVER.pub33).standing is Standing.ACCEPTED


def test_two_tasks_that_notify_about_the_same_message_notify_once(node: Node, server: ModelServer) -> None:
    server.enrol(CLIENT, UUID, ACCESS_TOKEN)
    sender = _sender()

    async def ask(session: Session) -> list[Notified]:
        asking = (session.notify(sender, CLIENT.pub33, sender.one_to_one(), MESSAGE_ID) for _ in range(2))
        return await asyncio.gather(*asking)

    first, second = _run(node, ask)
    assert first == second
    assert first.is_notified
    assert server.pushes == {(MESSAGE_ID, CLIENT.key_hash, UUID): 1}
    assert len(node.published) == 2  # one query, one request


def test_a_notification_that_is_not_settled_in_time_is_no_answer(node: Node, server: ModelServer) -> None:
    server.enrol(CLIENT, UUID, ACCESS_TOKEN)
    server.errors, sender = [2] * 9, _sender()
    content = sender.one_to_one()
    with pytest.raises(NoAnswer):
        _run(node, lambda session: session.notify(sender, CLIENT.pub33, content, MESSAGE_ID, timeout_seconds=0.1))


@pytest.mark.requirement("A8")
def test_an_earlier_advertisement_is_found_in_the_store(node: Node) -> None:
    client, sender = _client(), _sender()

    async def ask(session: Session) -> None:
        await session.register(client, timeout_seconds=30)
        sender.follow(CLIENT.pub33)
        await session.drive(sender, lambda: bool(sender.destinations(CLIENT.pub33)), timeout_seconds=30)

    _run(node, ask)
    (found,) = sender.destinations(CLIENT.pub33)
    assert found.access_token == client.access_token


def test_a_driven_client_repeats_lost_messages_and_its_events_are_passed_on(node: Node) -> None:
    client, events = _client(schedule=Schedule(0.001, 12)), []
    node.later_refusals = [httpx.Response(500)] * 4
    _run(node, lambda session: session.drive(client, lambda: len(events) == 2, timeout_seconds=5), events)
    assert events == REGISTERED


# The reader


@pytest.mark.requirement("W5")
def test_each_message_is_returned_once_also_when_it_is_archived_after_a_later_one(node: Node) -> None:
    node.archive(*(_stored(after_ns) for after_ns in (*range(250), 30 * 10**9)))

    async def read(reader: StoreReader) -> None:
        assert len(await reader.new([TOPIC], now_ns=NOW_NS + 30 * 10**9)) == 251
        node.archive(_stored(10 * 10**9))
        (late,) = await reader.new([TOPIC], now_ns=NOW_NS + 40 * 10**9)
        assert late.timestamp_ns == NOW_NS + 10 * 10**9
        assert await reader.new([TOPIC], now_ns=NOW_NS + 2 * OVERLAP_NS) == []
        await reader.new([TOPIC], now_ns=NOW_NS + 2 * OVERLAP_NS)  # messages older than the overlap are not read again
        assert int(node.asked[-1]["startTime"]) == NOW_NS + OVERLAP_NS

    _read(node, read)


def test_many_topics_are_queried_in_groups_and_history_is_the_latest_page_oldest_first(node: Node) -> None:
    node.archive(*map(_stored, range(150)))

    async def read(reader: StoreReader) -> None:
        assert await reader.new(map(str, range(MAX_TOPICS + 1)), now_ns=NOW_NS) == []
        assert [len(asked["contentTopics"].split(",")) for asked in node.asked] == [MAX_TOPICS, 1]
        history = await reader.history(TOPIC)
        assert [message.timestamp_ns - NOW_NS for message in history] == list(range(50, 150))

    _read(node, read)


def _stored(after_ns: int) -> WakuMessage:
    return WakuMessage(after_ns.to_bytes(8), TOPIC, NOW_NS + after_ns)


def _client(**options: object) -> RegisteringClient:
    client = RegisteringClient(CLIENT, new_state(SERVER.pub33, random_bytes=repeatable()), repeatable(), **options)
    client.change(Address(TokenType.FIREBASE, firebase_token("device-token-1")))
    return client


def _sender() -> SendingClient:
    return SendingClient(SENDER, repeatable(), gather_seconds=0)


def _register(node: Node, events: list | None = None) -> Standing:
    client = _client()
    _run(node, lambda session: session.register(client, timeout_seconds=30), events)
    return client.standing(SERVER.pub33).standing


def _read(node: Node, read: Callable) -> None:
    async def run() -> None:
        async with TestServer(app_of(node)) as server, Connections(silent_seconds=5) as connections:
            await read(StoreReader(WakuNode(f"http://127.0.0.1:{server.port}", connections), "shard", since_ns=NOW_NS))

    asyncio.run(run())


def _run(node: Node, ask: Callable, events: list | None = None):
    happened = [] if events is None else events

    async def run():
        async with TestServer(app_of(node)) as server, Connections(silent_seconds=5) as connections:
            waku = WakuNode(f"http://127.0.0.1:{server.port}", connections)
            options = {"poll_seconds": 0.01, "clock_ns": lambda: NOW_NS}
            return await ask(Session(waku, on_event=lambda _core, event: happened.append(event), **options))

    return asyncio.run(run())
