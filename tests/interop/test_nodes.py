"""Behaviour of nodes that the Waku bridge relies on, tested on the development node and a real one with the client of
production.

`waku_bridge/tests/test_node.py` has recorded answers of nwaku and go-waku.
"""

import asyncio
import base64
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import pytest

from tests.interop.nodes import Nodes, Pair, drained, new_message, received, say
from tests.rig.peers import ask
from tests.rig.server import PUBSUB_TOPIC, wait_until
from waku_bridge.codec.wire import message_hash
from waku_bridge.dialect import NodeError, NotSubscribed, from_json, to_json
from waku_bridge.node import WakuNode

OTHER_SHARD = "/waku/2/rs/16/64"
RELAY = "/relay/v1/messages/%2Fwaku%2F2%2Frs%2F16%2F32"


@pytest.fixture(autouse=True)
def clean(request: pytest.FixtureRequest) -> None:
    """Leave nothing of earlier tests at the pair."""
    if "pair" in request.fixturenames:
        request.getfixturevalue("pair").run(drained)


@pytest.mark.parametrize("payload", [b"x", bytes(range(256)), b"\xfb\xff\xfe" * 7, bytes(1_000_000)], ids=len)
def test_a_message_is_read_once_at_every_node_as_it_was_sent(pair: Pair, payload: bytes) -> None:
    sent = new_message(payload, version=1)

    async def use(here: WakuNode, there: WakuNode) -> None:
        await here.publish(PUBSUB_TOPIC, sent)
        assert await received(there, 1) == [sent]
        assert await received(here, 1) == [sent]

    pair.run(use)


def test_meta_and_ephemeral_arrive_and_the_hash_is_the_same_everywhere(pair: Pair) -> None:
    sent = new_message(ephemeral=True, meta=b"\xfb\xff meta")
    body = to_json(sent) | {"meta": base64.b64encode(sent.meta).decode()}
    assert say(pair.here, "POST", RELAY, body).status == 200
    (there,) = pair.run(lambda _here, there: received(there, 1))
    assert there == sent
    assert message_hash(PUBSUB_TOPIC, there) == message_hash(PUBSUB_TOPIC, sent)


def test_the_same_bytes_published_again_are_shown_once(pair: Pair) -> None:
    """An outbox may repeat a reply for this reason."""
    sent = new_message()

    async def use(here: WakuNode, there: WakuNode) -> None:
        for node in (here, here, there):
            await node.publish(PUBSUB_TOPIC, sent)
            await asyncio.sleep(0.2)
        assert await received(there, 1) == [sent]

    pair.run(use)


def test_nothing_is_lost_between_two_nodes_while_rings_are_large_enough(pair: Pair) -> None:
    sent = [new_message() for _ in range(300)]

    async def use(here: WakuNode, there: WakuNode) -> None:
        for message in sent:
            await here.publish(PUBSUB_TOPIC, message)
        assert set(await received(there, len(sent))) == set(sent)

    pair.run(use)


@pytest.mark.parametrize(
    "body",
    [
        *({"payload": ""}, {"payload": "?"}, {"payload": 5}, {"contentTopic": ""}),
        *({"contentTopic": 5}, {"timestamp": "1"}, {"version": -1}),
        *(b"", b"{", [], "text"),
    ],
    ids=repr,
)
def test_a_body_that_is_no_message_is_refused(pair: Pair, body: object) -> None:
    """A mapping is a message but for what it names."""
    message = to_json(new_message()) | body if isinstance(body, dict) else body
    assert say(pair.here, "POST", RELAY, message).status == 400


def test_a_message_over_one_mebibyte_is_refused_and_not_relayed(pair: Pair) -> None:
    async def use(here: WakuNode, there: WakuNode) -> None:
        with pytest.raises(NodeError):
            await here.publish(PUBSUB_TOPIC, new_message(bytes(1024 * 1024)))
        assert await received(there, 0) == await received(here, 0) == []

    pair.run(use)


def test_a_node_reports_its_addresses_and_the_clock_in_every_answer(pair: Pair) -> None:
    answer = ask(pair.here, "GET", "/debug/v1/info")
    assert answer.body["enrUri"].startswith("enr:")
    assert all(address.startswith("/ip4/") for address in answer.body["listenAddresses"])
    assert abs((datetime.now(UTC) - parsedate_to_datetime(answer.headers["date"])).total_seconds()) < 5


def test_a_shard_that_nobody_subscribed_to_is_not_read(pair: Pair) -> None:
    async def use(here: WakuNode, _there: WakuNode) -> None:
        with pytest.raises(NotSubscribed):
            await here.read(OTHER_SHARD)
        await here.subscribe(OTHER_SHARD)
        assert await here.read(OTHER_SHARD) == []
        assert say(pair.here, "DELETE", "/relay/v1/subscriptions", [OTHER_SHARD]).status == 200
        with pytest.raises(NotSubscribed):
            await here.read(OTHER_SHARD)

    pair.run(use)


@pytest.mark.peers
def test_go_waku_shows_a_joined_topic_only_to_subscribers_and_each_message_once_for_each_subscription(
    real_nodes: Nodes,
) -> None:
    """Our client subscribes only after a 404 for this reason. nwaku differs."""
    alone, subscriptions, read = real_nodes.real(), "/relay/v1/subscriptions", list[Any]()
    assert ask(alone, "GET", RELAY).status == 404
    for _ in range(2):
        assert say(alone, "POST", subscriptions, [PUBSUB_TOPIC]).status == 200
    empty = ask(alone, "GET", RELAY)
    assert (empty.status, empty.body) == (200, None)
    # Any base64 is accepted, and fields that the sender left out are missing or null.
    assert say(alone, "POST", RELAY, {"payload": "-_8", "contentTopic": "/a/1/b/c", "colour": 1}).status == 200
    wait_until(lambda: read.extend(ask(alone, "GET", RELAY).body or []) or len(read) == 2, what="both copies")
    assert read == [{"payload": "+/8=", "contentTopic": "/a/1/b/c", "ephemeral": None}] * 2
    message = from_json(read[0])
    assert (message.version, message.timestamp_ns, message.ephemeral, message.meta) == (0, 0, False, b"")
    refused = say(alone, "POST", RELAY, to_json(new_message()) | {"payload": ""})
    assert (refused.status, refused.body) == (400, b"missing Payload field")
    assert say(alone, "DELETE", subscriptions, [PUBSUB_TOPIC]).status == 200
    assert ask(alone, "GET", RELAY).status == 404
