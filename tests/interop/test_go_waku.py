"""Differences of go-waku from nwaku, observed on a real node. `waku_bridge/node/dialect.py` has to handle them."""

import time
from typing import Any

import pytest
from django.conf import LazySettings
from django.utils import timezone

from tests.interop.nodes import Nodes, Pair, drained, new_message, received, say
from tests.rig.peers import Answer, ask
from tests.rig.server import PUBSUB_TOPIC
from waku_bridge.node import NoStore, WakuNode, from_json, to_json
from waku_bridge.node.config_check.checking import check_all
from waku_bridge.node.config_check.saved import NOTICES

pytestmark = pytest.mark.peers
RELAY = "/relay/v1/messages/%2Fwaku%2F2%2Frs%2F16%2F32"
SUBSCRIPTIONS = "/relay/v1/subscriptions"
STORE = "/store/v3/messages"


@pytest.fixture
def alone(real_nodes: Nodes) -> str:
    """A node without peers. Its topic is joined, and no client has subscribed by REST."""
    return real_nodes.real()


def post(url: str, path: str, body: Any) -> Answer:
    return say(url, "POST", path, body)


def subscribe(url: str) -> None:
    """Success is answered with true."""
    assert shown(post(url, SUBSCRIPTIONS, [PUBSUB_TOPIC])) == (200, True)


def shown(answer: Answer) -> tuple[int, Any]:
    return answer.status, answer.body


def read_until(url: str, count: int) -> list[Any]:
    page: list[Any] = []
    deadline = time.monotonic() + 5
    while len(page) < count and time.monotonic() < deadline:
        page += ask(url, "GET", RELAY).body or []
    return page


def test_what_it_answers_about_itself_and_before_anybody_has_subscribed(alone: str) -> None:
    not_found = (404, b"404 page not found\n")
    not_joined = "/relay/v1/messages/%2Fwaku%2F2%2Frs%2F16%2F1023"
    no_topics = (400, {"status_code": 400, "status_desc": "pubsubTopic and contentTopics are required"})
    got = {
        path: shown(ask(alone, "GET", path)) for path in ("/health", "/debug/v1/version", "/version", "/info", RELAY)
    }
    assert got == {
        "/health": (501, "Non RLN healthcheck is not implemented"),
        "/debug/v1/version": (200, "v0.10.0-"),
        "/version": not_found,
        "/info": not_found,
        RELAY: (404, b"no subscription found for pubsubTopic"),
    }
    assert ask(alone, "GET", "/debug/v1/info").body.keys() == {"enrUri", "listenAddresses"}
    for query in ("", "?pageSize=1", "?pubsubTopic=%2Fwaku%2F2%2Frs%2F16%2F32"):
        assert shown(ask(alone, "GET", STORE + query)) == no_topics
    subscribe(alone)
    assert shown(ask(alone, "GET", RELAY)) == (200, None)  # an empty page
    assert shown(post(alone, RELAY, to_json(new_message()) | {"payload": ""})) == (400, b"missing Payload field")
    assert shown(post(alone, RELAY, to_json(new_message(bytes(1024 * 1024))))) == (500, b"")
    assert shown(post(alone, not_joined, to_json(new_message()))) == (500, b"")


def test_the_watch_reads_enr_version_and_clock_of_go_waku_and_recognises_it(alone: str, settings: LazySettings) -> None:
    settings.WAKU_NODES = settings.WAKU_STORE_NODES = [alone]
    check_all(now=timezone.now())
    notice = NOTICES.read([alone])[alone]
    assert [complaint.id for complaint in notice.complaints] == ["go_waku"]
    assert (notice.memory["version"], notice.memory["shards"]) == ("go-waku 0.10.0", "16: 32")
    assert notice.memory["health"] == ""


def test_fields_that_the_sender_left_out_are_missing_or_null(alone: str) -> None:
    subscribe(alone)
    assert shown(post(alone, RELAY, {"payload": "-_8", "contentTopic": "/a/1/b/c", "colour": 1})) == (200, True)
    (raw,) = read_until(alone, 1)
    assert raw == {"payload": "+/8=", "contentTopic": "/a/1/b/c", "ephemeral": None}
    message = from_json(raw)
    assert (message.version, message.timestamp_ns, message.ephemeral, message.meta) == (0, 0, False, b"")


def test_a_page_has_one_message_more_than_the_capacity_at_most(real_nodes: Nodes) -> None:
    url = real_nodes.real(ring_capacity=3)
    subscribe(url)
    for _ in range(10):
        post(url, RELAY, to_json(new_message()))
    pages = [ask(url, "GET", RELAY).body or [] for _ in range(50)]
    assert sum(map(len, pages)) == 10
    assert 3 <= max(map(len, pages)) <= 4


def test_a_second_subscription_is_a_twin_that_doubles_each_message_and_one_delete_removes_both(alone: str) -> None:
    """Our client subscribes only after a 404 for this reason."""
    for _ in range(2):
        subscribe(alone)
    post(alone, RELAY, to_json(new_message()))
    assert len(read_until(alone, 2)) == 2
    assert shown(say(alone, "DELETE", SUBSCRIPTIONS, [PUBSUB_TOPIC])) == (200, True)
    assert ask(alone, "GET", RELAY).status == 404
    assert shown(say(alone, "DELETE", SUBSCRIPTIONS, [PUBSUB_TOPIC])) == (500, b"")


def test_our_client_relays_to_a_node_without_a_report_of_its_health_and_finds_no_store(real_pair: Pair) -> None:
    sent = new_message()

    async def use(here: WakuNode, there: WakuNode) -> None:
        await drained(here, there)
        await here.publish(PUBSUB_TOPIC, sent)
        assert await received(there, 1) == [sent]
        with pytest.raises(NoStore):
            await there.store_page(pubsubTopic=PUBSUB_TOPIC, contentTopics="/waku/1/0x75b8b8f6/rfc26")

    real_pair.run(use)
