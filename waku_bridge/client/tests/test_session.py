"""Sessions over a store that is slow, unordered, away or talks nonsense."""

import asyncio
import base64
from collections.abc import Callable

import httpx
import orjson
import pytest

from notifications.messages import Report
from registrations.messages import TokenType
from waku_bridge.client.registering import Address, RegisteringClient
from waku_bridge.client.sending import Destination, SendingClient
from waku_bridge.client.session import NoAnswer, RegistrationRefused, Session
from waku_bridge.codec.envelope import Identity, Reply, decode, encode_reply
from waku_bridge.codec.tests.examples import (
    ACCESS_TOKEN,
    CLIENT,
    INFO,
    NOW_NS,
    SENDER,
    SERVER,
    STRANGER,
    UUID,
    repeatable,
)
from waku_bridge.messages import (
    Decoded,
    PushResponse,
    QueryResponse,
    RegistrationError,
    RegistrationResponse,
    WakuMessage,
)
from waku_bridge.node import NodeError, WakuNode, from_json, to_json

EPHEMERAL = Identity(type(CLIENT.private_key)(b"\x03" * 32))
MESSAGE_ID = b"\x0a" * 32
DESTINATION = Destination(SERVER.pub33, CLIENT.key_hash, UUID, ACCESS_TOKEN, 1)
REPORTS = (Report(CLIENT.key_hash, UUID, success=True),)
RANDOM = repeatable()


class Store:
    """A node whose store holds what ``answer`` makes of each question, after ``nonsense``."""

    def __init__(self, answer: Callable[[Decoded], list[WakuMessage]] = lambda _question: []) -> None:
        self.answer = answer
        self.messages: list[dict] = []
        self.nonsense: list[object] = []
        self.failures: list[httpx.Response] = []
        self.is_published = False

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            return self._publish(orjson.loads(request.content))
        if self.is_published and self.failures:
            return self.failures.pop()
        start_ns, size = int(request.url.params["startTime"]), int(request.url.params["pageSize"])
        found = sorted(
            (m for m in self.messages if m["message"]["timestamp"] >= start_ns), key=lambda m: m["message"]["timestamp"]
        )
        return httpx.Response(200, json={"messages": self.nonsense + found[:size]})

    def archive(self, *messages: WakuMessage) -> None:
        self.messages += [{"message": to_json(message)} for message in messages]

    def _publish(self, body: dict) -> httpx.Response:
        self.is_published = True
        message = from_json(body["message"])
        self.archive(*self.answer(decode(message.payload, [SERVER], SERVER)))
        return httpx.Response(200, json={"relayPeerCount": 1})


def test_a_registration_ends_with_the_servers_success() -> None:
    assert _register(Store(_registered)).is_accepted


def test_a_refused_registration_says_why() -> None:
    with pytest.raises(RegistrationRefused, match="VERSION_MISMATCH") as refused:
        _register(Store(lambda question: _registered(question, error=RegistrationError.VERSION_MISMATCH)))
    assert refused.value.error == RegistrationError.VERSION_MISMATCH


def test_a_refusal_of_an_unknown_kind_is_told_by_its_number() -> None:
    with pytest.raises(RegistrationRefused, match="error 77"):
        _register(Store(lambda question: _registered(question, error=77)))


def test_silence_ends_with_an_exception() -> None:
    with pytest.raises(NoAnswer):
        _register(Store())


def test_an_answer_that_is_dated_before_its_question_is_found() -> None:
    """Clocks differ; stores admit that."""
    assert _register(Store(lambda question: _registered(question, timestamp_ns=NOW_NS - 19 * 10**9))).is_accepted


def test_an_answer_behind_pages_of_other_messages_is_found() -> None:
    def crowded(question: Decoded) -> list[WakuMessage]:
        noise = [_reply(PushResponse(MESSAGE_ID), STRANGER.pub33, timestamp_ns=NOW_NS + n) for n in range(250)]
        return noise + _registered(question, timestamp_ns=NOW_NS + 300)

    assert _register(Store(crowded)).is_accepted


def test_a_node_that_is_away_for_a_moment_is_asked_again() -> None:
    store = Store(_registered)
    store.failures = [httpx.Response(503), httpx.Response(200, content=b"<html>")]
    assert _register(store).is_accepted


def test_a_node_that_does_not_take_the_question_is_an_error() -> None:
    with pytest.raises(NodeError):
        _register(lambda _request: httpx.Response(500))


def test_nonsense_in_the_store_is_passed_over() -> None:
    store = Store(_registered)
    junk = {"payload": base64.b64encode(b"junk").decode(), "contentTopic": "/x", "timestamp": NOW_NS}
    store.nonsense = [None, {}, {"message": 7}, {"message": {"contentTopic": "/x", "payload": 1}}, {"message": junk}]
    assert _register(store).is_accepted


def test_an_answer_from_before_a_repeated_question_does_not_count_for_it() -> None:
    store = Store(lambda _question: [_reply(PushResponse(MESSAGE_ID, REPORTS), EPHEMERAL.pub33)])

    async def ask(session: Session) -> None:
        sender = _sender()
        await session.notify(sender, [DESTINATION], sender.one_to_one(), MESSAGE_ID, timeout_seconds=1)
        store.answer = lambda _question: []
        await session.notify(sender, [DESTINATION], sender.one_to_one(), MESSAGE_ID, timeout_seconds=0.1)

    with pytest.raises(NoAnswer):
        _run(store, ask)


def test_a_request_ends_with_its_reports() -> None:
    async def ask(session: Session) -> tuple[Report, ...]:
        sender = _sender()
        return await session.notify(sender, [DESTINATION], sender.one_to_one(), MESSAGE_ID, timeout_seconds=1)

    assert _run(Store(lambda _q: [_reply(PushResponse(MESSAGE_ID, REPORTS), EPHEMERAL.pub33)]), ask) == REPORTS


def test_a_useless_answer_to_a_query_does_not_hide_a_later_one() -> None:
    """Everybody sees a query and may answer it; the one who can prove a grant counts."""

    async def ask(session: Session) -> tuple[Destination, ...]:
        return await session.query(_sender(), CLIENT.pub33, timeout_seconds=1)

    def answer(payload: bytes) -> list[WakuMessage]:
        return [
            _reply(QueryResponse(payload, success=True, info=(INFO,)), EPHEMERAL.pub33, signer=STRANGER),
            _reply(QueryResponse(payload, success=True, info=(INFO,)), EPHEMERAL.pub33, timestamp_ns=NOW_NS + 1),
        ]

    assert _run(_query_store(answer), ask) == (DESTINATION,)


def test_answers_without_anything_for_this_sender_are_no_destinations() -> None:
    async def ask(session: Session) -> tuple[Destination, ...]:
        return await session.query(_sender(), CLIENT.pub33, timeout_seconds=0.1)

    def answer(message_id: bytes) -> list[WakuMessage]:
        return [_reply(QueryResponse(message_id, success=True), EPHEMERAL.pub33)]

    assert _run(_query_store(answer), ask) == ()


def _query_store(answer: Callable[[bytes], list[WakuMessage]]) -> Store:
    """A query is sealed under its topic's key, which takes the server a moment to derive; the test knows its id."""
    store = Store()
    message_id = _sender().query(CLIENT.pub33, timestamp_ns=NOW_NS).message_id
    store._publish = lambda _body: (store.archive(*answer(message_id)), httpx.Response(200, json={}))[1]
    return store


def _register(store: Callable[[httpx.Request], httpx.Response]):
    client = RegisteringClient(CLIENT, UUID, ACCESS_TOKEN, RANDOM)
    client.change(Address(TokenType.FIREBASE, "device-token-1"))
    return _run(store, lambda session: session.register(client, SERVER.pub33, timeout_seconds=0.3))


def _run(store: Callable[[httpx.Request], httpx.Response], ask):
    async def run():
        async with httpx.AsyncClient(transport=httpx.MockTransport(store)) as http:
            node = WakuNode("http://node", http)
            return await ask(Session(node, poll_seconds=0.01, clock_ns=lambda: NOW_NS))

    return asyncio.run(run())


def _sender() -> SendingClient:
    return SendingClient(SENDER, EPHEMERAL, repeatable())


def _registered(question: Decoded, *, error: int = RegistrationError.NONE, timestamp_ns: int = NOW_NS + 1):
    response = RegistrationResponse(question.body.request_id, success=not error, error=error)
    return [_reply(response, question.author, timestamp_ns=timestamp_ns)]


def _reply(body: Reply, recipient: bytes, *, signer: Identity = SERVER, timestamp_ns: int = NOW_NS) -> WakuMessage:
    return encode_reply(body, identity=signer, recipient=recipient, timestamp_ns=timestamp_ns, random_bytes=RANDOM)
