"""Differences of go-waku from nwaku that `waku_bridge/node` has to handle, observed on a real node.

`waku_bridge/node/tests/test_client.py` has recorded answers of both.
"""

import time
from typing import Any

import pytest
from django.conf import LazySettings
from django.utils import timezone

from tests.interop.nodes import Nodes, Pair, drained, new_message, received, say
from tests.rig.peers import ask
from tests.rig.server import PUBSUB_TOPIC
from waku_bridge.node import NoStore, WakuNode, from_json, to_json
from waku_bridge.node.config_check.checking import check_all
from waku_bridge.node.config_check.saved import NOTICES

pytestmark = pytest.mark.peers
RELAY = "/relay/v1/messages/%2Fwaku%2F2%2Frs%2F16%2F32"
SUBSCRIPTIONS = "/relay/v1/subscriptions"


@pytest.fixture
def alone(real_nodes: Nodes) -> str:
    """A node without peers. Its topic is joined, and no client has subscribed by REST."""
    return real_nodes.real()


def read_until(url: str, count: int) -> list[Any]:
    page: list[Any] = []
    deadline = time.monotonic() + 5
    while len(page) < count and time.monotonic() < deadline:
        page += ask(url, "GET", RELAY).body or []
    return page


def test_the_config_check_reads_enr_version_and_clock_of_go_waku_and_recognises_it(
    alone: str, settings: LazySettings
) -> None:
    settings.WAKU_NODES = settings.WAKU_STORE_NODES = [alone]
    check_all(now=timezone.now())
    notice = NOTICES.read([alone])[alone]
    assert [complaint.id for complaint in notice.complaints] == ["go_waku"]
    assert (notice.memory["version"], notice.memory["shards"]) == ("go-waku 0.10.0", "16: 32")
    assert notice.memory["health"] == ""


def test_a_joined_topic_is_read_once_it_is_subscribed_to_and_a_second_subscription_doubles_each_message(
    alone: str,
) -> None:
    """Our client subscribes only after a 404 for this reason."""
    assert ask(alone, "GET", RELAY).status == 404
    for _ in range(2):
        assert say(alone, "POST", SUBSCRIPTIONS, [PUBSUB_TOPIC]).status == 200
    empty = ask(alone, "GET", RELAY)
    assert (empty.status, empty.body) == (200, None)
    # Any base64 is accepted, and fields that the sender left out are missing or null.
    assert say(alone, "POST", RELAY, {"payload": "-_8", "contentTopic": "/a/1/b/c", "colour": 1}).status == 200
    raw, twin = read_until(alone, 2)
    assert raw == twin == {"payload": "+/8=", "contentTopic": "/a/1/b/c", "ephemeral": None}
    message = from_json(raw)
    assert (message.version, message.timestamp_ns, message.ephemeral, message.meta) == (0, 0, False, b"")
    refused = say(alone, "POST", RELAY, to_json(new_message()) | {"payload": ""})
    assert (refused.status, refused.body) == (400, b"missing Payload field")
    assert say(alone, "DELETE", SUBSCRIPTIONS, [PUBSUB_TOPIC]).status == 200
    assert ask(alone, "GET", RELAY).status == 404


def test_our_client_relays_to_a_node_without_a_report_of_its_health_and_finds_no_store(real_pair: Pair) -> None:
    sent = new_message()

    async def use(here: WakuNode, there: WakuNode) -> None:
        await drained(here, there)
        await here.publish(PUBSUB_TOPIC, sent)
        assert await received(there, 1) == [sent]
        with pytest.raises(NoStore):
            await there.store_page(pubsubTopic=PUBSUB_TOPIC, contentTopics="/waku/1/0x75b8b8f6/rfc26")

    real_pair.run(use)
