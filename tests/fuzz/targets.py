"""Targets of fuzzing: each takes any bytes and must return, or raise an error that its callers expect.

A target reads bytes that an anonymous sender or a broken peer may send to the server. The first byte often chooses
which of several readers gets the rest. Any other exception is a finding, and so is a result that breaks a promise.
"""

import asyncio
from collections.abc import Callable, Container, Coroutine
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

import httpx
from coincurve import PrivateKey

from kit.http import Answer
from notifications.gateways.gorush.errors import shipped_rules
from notifications.gateways.gorush.push_api import read_dry_run, read_response
from notifications.messages import AppKey, Outcome, Push
from waku_bridge.client import access_tokens
from waku_bridge.codec import envelope, keys, wire
from waku_bridge.codec.errors import CodecError
from waku_bridge.codec.keys import Identity, parse_chat_key, parse_public_key, recover
from waku_bridge.dialect import NodeError
from waku_bridge.messages import MessageType, WakuMessage
from waku_bridge.node import WakuNode
from waku_bridge.reading.pages import Page, Reader
from xmpp_bridge.codec.elements import BrokenStream, MalformedStanza, parse
from xmpp_bridge.codec.stanzas import decode
from xmpp_bridge.codec.stream import Received, Stream

SERVER = Identity(PrivateKey(b"\x02" * 32))
TOPIC_KEY = b"\x07" * 32
SHARD = "/waku/2/rs/16/32"
KINDS = [MessageType.REGISTRATION, *sorted(set(MessageType) - {MessageType.REGISTRATION})]
CODEC: tuple[Callable[[bytes], Any], ...] = (
    wire.parse_registration,
    *(partial(wire.parse, each) for each in KINDS[1:]),
    keys.parse_frame,
    envelope.open_signed,
    parse_public_key,
    lambda data: recover(data, b"signed"),
    lambda data: keys.unseal_to_key(b"\4" + data.ljust(112, b"\1"), SERVER.private_key),
    lambda data: keys.unseal_on_topic(data, TOPIC_KEY),
    lambda data: envelope.decode(data, [SERVER, TOPIC_KEY], SERVER),
    lambda data: parse_chat_key(data.decode(errors="replace")),
    lambda data: access_tokens.find_access_token([data], SERVER.private_key, SERVER.pub33),
)


def codec(data: bytes) -> None:
    """Read anonymous bytes with one of the readers of the codec. A body that is written and read again is the same."""
    number = data[0] % len(CODEC) if data else 0
    try:
        found = CODEC[number](data[1:])
    except CodecError:
        return
    if number < len(KINDS):
        kind, written = wire.serialize(found)
        assert (kind, CODEC[number](written)) == (KINDS[number], found)


DEVICE_TOKEN = "c0ffee" * 10 + "dead"
PUSHES = tuple(
    Push(7, 2, AppKey(*app), DEVICE_TOKEN.encode(), 1, b"k" * 64, b"chat", b"sealed", "a" * 32)
    for app in ((1, "im.status.ethereum"), (2, ""))
)
STATUSES = (200, 200, 200, 200, 400, 401, 404, 413, 429, 500, 502, 504)


def gorush(data: bytes) -> None:
    """Read an answer of gorush. Only one that contains "ok" may be a success, and no stored text may contain
    the token.
    """
    if len(data) < 2:
        return
    push, status = PUSHES[data[0] % 2], STATUSES[data[1] % len(STATUSES)]
    result = read_response(status, data[2:], push, shipped_rules(), retry_after=data[2:6].decode("latin-1"))
    assert result.outcome is not Outcome.DELIVERED or (status == 200 and b"ok" in data)
    assert 0 <= result.retry_after_seconds <= 3600
    assert DEVICE_TOKEN not in result.error.casefold() + result.code
    read_dry_run(result)


class OneAnswer:
    """HTTP client whose peer answers every request with the same bytes."""

    def __init__(self, status: int, content: bytes) -> None:
        self._answer = Answer(status, httpx.Headers(), content)

    async def request(self, *_args: Any, **_options: Any) -> Answer:
        return self._answer


EPOCH, NOW = datetime(1970, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)


class EveryTopic:
    def __contains__(self, _topic: object) -> bool:
        return True


async def _read(node: WakuNode) -> None:
    _select(await node.read(SHARD))


async def _walk(node: WakuNode) -> None:
    _select([entry.message for entry in (await node.store_page(includeData="true")).entries])


def _select(messages: list[Any]) -> None:
    both: tuple[Container[str], ...] = (EveryTopic(), frozenset())
    for topics in both:
        page = Page(Reader("live", "http://node", SHARD), NOW, messages)
        page.select(topics, keep=NOW - EPOCH)
        page.hash_all()


QUESTIONS: tuple[Callable[[WakuNode], Coroutine[Any, Any, object]], ...] = (
    _read,
    _walk,
    lambda node: node.known([b"h" * 32]),
    lambda node: node.publish(SHARD, WakuMessage(b"payload", "/waku/1/0x01020304/rfc26", 1)),
    lambda node: node.subscribe(SHARD),
)
NODE_STATUSES = (200, 200, 200, 400, 404, 412, 429, 500, 505)


def node(data: bytes) -> None:
    """Read an answer of a Waku node, and select our messages from the page."""
    if len(data) < 2:
        return
    client: Any = OneAnswer(NODE_STATUSES[data[1] % len(NODE_STATUSES)], data[2:])
    question = QUESTIONS[data[0] % len(QUESTIONS)](WakuNode("http://node.test", client))
    with suppress(NodeError):
        asyncio.run(asyncio.wait_for(question, timeout=10))


HEADER = b"<stream:stream xmlns='jabber:component:accept' xmlns:stream='http://etherx.jabber.org/streams' id='1'>"


def xmpp_stanzas(data: bytes) -> None:
    """Read one anonymous stanza."""
    with suppress(MalformedStanza, BrokenStream):
        decode(parse(data))


def xmpp_stream(data: bytes) -> None:
    """Read a stream whole and in two pieces: its stanzas are the same, wherever it is cut."""
    at = data[0] if data else 0
    assert _stanzas(data[1:]) == _stanzas(data[1 : at + 1], data[at + 1 :])


def _stanzas(*pieces: bytes) -> list[str]:
    """Return the stanzas, or nothing when the stream breaks, as it may break before or after an earlier stanza."""
    reader = Stream()
    try:
        return [_described(event) for piece in (HEADER, *pieces) for event in reader.feed(piece)]
    except BrokenStream:
        return []


def _described(event: object) -> str:
    match event:
        case Received(stanza, is_too_large=is_too_large):
            return repr(decode(stanza, is_too_large=is_too_large))
    return repr(event)


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (codec, gorush, node, xmpp_stanzas, xmpp_stream)
}
