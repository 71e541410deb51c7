"""Sessions over a node whose store is slow, unordered, crowded, unreachable or wrong."""

import asyncio
import base64
from collections.abc import Callable, Iterator
from itertools import count

import httpx
import orjson
import pytest

from registrations.messages import TokenType
from tests.factories import firebase_token
from waku_bridge.client import (
    Accepted,
    Address,
    Advertised,
    Ignored,
    NoAnswer,
    Notified,
    Reason,
    RegisteringClient,
    RegistrationRefused,
    Schedule,
    SendingClient,
    Session,
    Standing,
    Timeouts,
    new_state,
)
from waku_bridge.client.tests.model import ModelServer
from waku_bridge.codec.tests.examples import ACCESS_TOKEN, CLIENT, NOW_NS, OUTSIDER, SENDER, SERVER, UUID, repeatable
from waku_bridge.messages import PushResponse, RegistrationError, WakuMessage
from waku_bridge.node import NodeError, WakuNode, from_json, to_json

MESSAGE_ID = b"\x0a" * 32


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
        topics = params.get("contentTopics", "").split(",")
        found = [
            m for m in self.stored if m["contentTopic"] in topics and m["timestamp"] >= int(params.get("startTime", 0))
        ]
        found.sort(key=lambda m: m["timestamp"], reverse=params["ascending"] != "true")
        page = [{"messageHash": "0x", "message": message} for message in found[: int(params["pageSize"])]]
        return httpx.Response(200, json={"messages": self.nonsense + page})


@pytest.fixture
def server() -> ModelServer:
    return ModelServer(SERVER)


@pytest.fixture
def node(server: ModelServer) -> Node:
    return Node(server)


@pytest.mark.requirement("A5")
def test_a_registration_ends_with_the_servers_success_and_the_contact_code(node: Node) -> None:
    client, events = _client(), []
    _run(node, lambda session: session.register(client, timeout_seconds=5), events)
    assert client.standing(SERVER.pub33).standing is Standing.ACCEPTED
    assert events == [Accepted(SERVER.pub33, 1, is_registered=True), Advertised(1, (SERVER.pub33,))]
    assert len(node.published) == 2


def test_a_refused_registration_raises_the_error_and_the_server(node: Node, server: ModelServer) -> None:
    server.registration_errors = [RegistrationError.MALFORMED_MESSAGE]
    with pytest.raises(RegistrationRefused, match="MALFORMED_MESSAGE") as refused:
        _register(node)
    assert (refused.value.error, refused.value.server) == (RegistrationError.MALFORMED_MESSAGE, SERVER.pub33)


def test_a_refusal_with_an_unknown_error_has_its_number(node: Node, server: ModelServer) -> None:
    server.registration_errors = [77]
    with pytest.raises(RegistrationRefused, match="error 77"):
        _register(node)


def test_a_call_without_an_answer_raises_and_the_next_call_repeats_the_message(node: Node) -> None:
    client = _client()
    node.server = ModelServer(OUTSIDER)
    with pytest.raises(NoAnswer):
        _run(node, lambda session: session.register(client, timeout_seconds=0.05))
    node.server = ModelServer(SERVER)
    _run(node, lambda session: session.register(client, timeout_seconds=5))
    assert client.standing(SERVER.pub33).standing is Standing.ACCEPTED


def test_an_answer_that_is_dated_before_its_question_is_found(node: Node) -> None:
    """Clocks differ, and stores accept a difference."""
    node.clock = count(NOW_NS - 19 * 10**9)
    assert _register(node).standing is Standing.ACCEPTED


def test_an_answer_behind_pages_of_other_messages_is_found(node: Node) -> None:
    noise = [ModelServer(OUTSIDER).seal(PushResponse(MESSAGE_ID), CLIENT.pub33, NOW_NS + n) for n in range(250)]
    node.archive(*noise)
    node.clock = count(NOW_NS + 300)
    events: list = []
    client = _client()
    _run(node, lambda session: session.register(client, timeout_seconds=5), events)
    assert client.standing(SERVER.pub33).standing is Standing.ACCEPTED
    # All have the same contents for the same key: the first is of another kind, and the others repeat it.
    assert [e.reason for e in events if isinstance(e, Ignored)] == [Reason.UNEXPECTED_TYPE] + [Reason.DUPLICATE] * 249


def test_a_request_to_a_node_that_fails_for_a_moment_is_repeated(node: Node) -> None:
    node.failures = [httpx.Response(503), httpx.Response(200, content=b"<html>")]
    assert _register(node).standing is Standing.ACCEPTED


def test_a_node_that_does_not_take_the_message_is_an_error(node: Node) -> None:
    node.refusals = [httpx.Response(500)]
    with pytest.raises(NodeError):
        _register(node)


def test_messages_after_the_first_are_repeated_until_the_node_takes_them(node: Node) -> None:
    node.later_refusals = [httpx.Response(500)] * 3
    assert _register(node).standing is Standing.ACCEPTED
    assert len(node.published) == 2  # the registration and the contact code


def test_a_message_that_the_node_refused_is_published_when_it_is_back(node: Node) -> None:
    client = _client()
    node.refusals = [httpx.Response(500)]

    async def ask(session: Session) -> None:
        with pytest.raises(NodeError):
            await session.register(client, timeout_seconds=5)
        await session.drive(client, lambda: client.is_settled, timeout_seconds=5)

    _run(node, ask)
    assert client.standing(SERVER.pub33).standing is Standing.ACCEPTED


def test_invalid_entries_of_the_store_are_skipped(node: Node) -> None:
    junk = {"payload": base64.b64encode(b"junk").decode(), "contentTopic": "/x", "timestamp": NOW_NS}
    node.nonsense = [None, {}, {"message": 7}, {"message": {"contentTopic": "/x", "payload": 1}}, {"message": junk}]
    assert _register(node).standing is Standing.ACCEPTED


def test_looking_a_client_up_returns_all_its_destinations(node: Node, server: ModelServer) -> None:
    server.enrol(CLIENT, UUID, ACCESS_TOKEN)
    sender = _sender()
    (found,) = _run(node, lambda session: session.look_up(sender, CLIENT.pub33))
    assert (found.server, found.installation_id, found.access_token) == (SERVER.pub33, UUID, ACCESS_TOKEN)


def test_no_server_answers_a_query_about_an_unknown_client(node: Node) -> None:
    with pytest.raises(NoAnswer):
        _run(node, lambda session: session.look_up(_sender(), CLIENT.pub33, timeout_seconds=0.1))


def test_a_notification_ends_with_its_outcome(node: Node, server: ModelServer) -> None:
    server.enrol(CLIENT, UUID, ACCESS_TOKEN)
    assert _notify(node, _sender()).is_notified
    assert server.pushes == {(MESSAGE_ID, CLIENT.key_hash, UUID): 1}


def test_two_tasks_that_notify_about_the_same_message_notify_once(node: Node, server: ModelServer) -> None:
    server.enrol(CLIENT, UUID, ACCESS_TOKEN)
    sender = _sender()

    async def ask(session: Session) -> list[Notified]:
        asking = (session.notify(sender, CLIENT.pub33, sender.one_to_one(), MESSAGE_ID) for _ in range(2))
        return await asyncio.gather(*asking)

    first, second = _run(node, ask)
    assert first == second
    assert len(node.published) == 2  # one query, one request


def test_a_notification_that_is_not_settled_in_time_is_no_answer(node: Node, server: ModelServer) -> None:
    server.enrol(CLIENT, UUID, ACCESS_TOKEN)
    server.errors = [2] * 9
    with pytest.raises(NoAnswer):
        _notify(node, _sender(), timeout_seconds=0.1)


@pytest.mark.requirement("A8")
def test_an_earlier_advertisement_is_found_in_the_store(node: Node) -> None:
    client, sender = _client(), _sender()

    async def ask(session: Session) -> None:
        await session.register(client, timeout_seconds=5)
        sender.follow(CLIENT.pub33)
        await session.drive(sender, lambda: bool(sender.destinations(CLIENT.pub33)), timeout_seconds=5)

    _run(node, ask)
    (found,) = sender.destinations(CLIENT.pub33)
    assert found.access_token == client.access_token


def test_events_drive_a_client_without_end(node: Node) -> None:
    """The client repeats lost messages, and yields its events."""
    client = _client(schedule=Schedule(0.001, 12))
    node.refusals = [httpx.Response(500)] * 4

    async def ask(session: Session) -> list:
        events = []
        async for event in session.events(client):
            events.append(event)
            if len(events) == 2:
                return events
        return events

    happened = _run(node, ask)
    assert happened == [Accepted(SERVER.pub33, 1, is_registered=True), Advertised(1, (SERVER.pub33,))]


def _client(**options: object) -> RegisteringClient:
    client = RegisteringClient(CLIENT, new_state(SERVER.pub33, random_bytes=repeatable()), repeatable(), **options)
    client.change(Address(TokenType.FIREBASE, firebase_token("device-token-1")))
    return client


def _sender() -> SendingClient:
    return SendingClient(SENDER, repeatable(), timeouts=Timeouts(gather_seconds=0))


def _register(node: Node):
    client = _client()
    _run(node, lambda session: session.register(client, timeout_seconds=0.5))
    return client.standing(SERVER.pub33)


def _notify(node: Node, sender: SendingClient, **options: object) -> Notified:
    ask = lambda session: session.notify(sender, CLIENT.pub33, sender.one_to_one(), MESSAGE_ID, **options)  # noqa: E731
    return _run(node, ask)


def _run(node: Node, ask: Callable, events: list | None = None):
    async def run():
        async with httpx.AsyncClient(transport=httpx.MockTransport(node)) as http:
            on_event = None if events is None else lambda _core, event: events.append(event)
            session = Session(
                WakuNode("http://node", http), poll_seconds=0.01, clock_ns=lambda: NOW_NS, on_event=on_event
            )
            return await ask(session)

    return asyncio.run(run())
