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
    assert post(url, SUBSCRIPTIONS, [PUBSUB_TOPIC]).status == 200


def shown(answer: Answer) -> tuple[int, Any]:
    return answer.status, answer.body


def read_until(url: str, count: int) -> list[Any]:
    page: list[Any] = []
    deadline = time.monotonic() + 5
    while len(page) < count and time.monotonic() < deadline:
        page += ask(url, "GET", RELAY).body or []
    return page


# About itself ---------------------------------------------------------------------------------------------------------


def test_health_is_not_implemented_without_rln(alone: str) -> None:
    assert shown(ask(alone, "GET", "/health")) == (501, "Non RLN healthcheck is not implemented")


def test_info_and_version_have_only_their_old_paths_and_the_version_is_a_json_string(alone: str) -> None:
    assert shown(ask(alone, "GET", "/debug/v1/version")) == (200, "v0.10.0-")
    assert ask(alone, "GET", "/debug/v1/info").body.keys() == {"enrUri", "listenAddresses"}
    for path in ("/version", "/info"):
        assert shown(ask(alone, "GET", path)) == (404, b"404 page not found\n")


def test_the_watch_reads_enr_version_and_clock_of_go_waku_and_recognises_it(alone: str, settings: LazySettings) -> None:
    settings.WAKU_NODES = settings.WAKU_STORE_NODES = [alone]
    check_all(now=timezone.now())
    notice = NOTICES.read([alone])[alone]
    assert [complaint.id for complaint in notice.complaints] == ["go_waku"]
    assert (notice.memory["version"], notice.memory["shards"]) == ("go-waku 0.10.0", "16: 32")
    assert notice.memory["health"] == ""


# Relay ----------------------------------------------------------------------------------------------------------------


def test_a_joined_topic_is_not_read_before_it_is_subscribed_to_by_rest(alone: str) -> None:
    assert shown(ask(alone, "GET", RELAY)) == (404, b"no subscription found for pubsubTopic")


def test_an_empty_page_is_null(alone: str) -> None:
    subscribe(alone)
    assert shown(ask(alone, "GET", RELAY)) == (200, None)


def test_success_is_answered_with_true(alone: str) -> None:
    assert shown(post(alone, SUBSCRIPTIONS, [PUBSUB_TOPIC])) == (200, True)
    assert shown(post(alone, RELAY, to_json(new_message()))) == (200, True)
    assert shown(say(alone, "DELETE", SUBSCRIPTIONS, [PUBSUB_TOPIC])) == (200, True)


def test_fields_that_the_sender_left_out_are_missing_or_null(alone: str) -> None:
    subscribe(alone)
    post(alone, RELAY, {"payload": "YWJj", "contentTopic": "/a/1/b/c"})
    (raw,) = read_until(alone, 1)
    assert raw == {"payload": "YWJj", "contentTopic": "/a/1/b/c", "ephemeral": None}
    message = from_json(raw)
    assert (message.version, message.timestamp_ns, message.ephemeral, message.meta) == (0, 0, False, b"")


@pytest.mark.parametrize(("taken", "given"), [("-_-_", "+/+/"), ("+/+/", "+/+/"), ("-_8", "+/8="), ("YWI", "YWI=")])
def test_every_base64_alphabet_is_accepted_and_the_standard_one_is_returned(alone: str, taken: str, given: str) -> None:
    subscribe(alone)
    assert post(alone, RELAY, to_json(new_message()) | {"payload": taken}).status == 200
    assert [raw["payload"] for raw in read_until(alone, 1)] == [given]


def test_unknown_fields_are_ignored(alone: str) -> None:
    assert post(alone, RELAY, to_json(new_message()) | {"colour": 1}).status == 200


@pytest.mark.parametrize(
    ("change", "text"),
    [({"payload": ""}, b"missing Payload field"), ({"contentTopic": ""}, b"missing ContentTopic field")],
)
def test_a_refusal_is_plain_text(alone: str, change: dict[str, str], text: bytes) -> None:
    assert shown(post(alone, RELAY, to_json(new_message()) | change)) == (400, text)


def test_an_oversized_message_and_a_topic_not_joined_are_500_without_a_text(alone: str) -> None:
    assert shown(post(alone, RELAY, to_json(new_message(bytes(1024 * 1024))))) == (500, b"")
    not_joined = "/relay/v1/messages/%2Fwaku%2F2%2Frs%2F16%2F1023"
    assert shown(post(alone, not_joined, to_json(new_message()))) == (500, b"")


def test_a_page_has_one_message_more_than_the_capacity_at_most(real_nodes: Nodes) -> None:
    url = real_nodes.real(ring_capacity=3)
    subscribe(url)
    for _ in range(10):
        post(url, RELAY, to_json(new_message()))
    pages = [ask(url, "GET", RELAY).body or [] for _ in range(50)]
    assert sum(map(len, pages)) == 10
    assert 3 <= max(map(len, pages)) <= 4


def test_a_second_subscription_is_a_twin_and_doubles_each_message(alone: str) -> None:
    """Our client subscribes only after a 404 for this reason."""
    subscribe(alone)
    subscribe(alone)
    post(alone, RELAY, to_json(new_message()))
    assert len(read_until(alone, 2)) == 2


def test_one_delete_removes_the_twins_and_another_one_is_500(alone: str) -> None:
    subscribe(alone)
    subscribe(alone)
    assert say(alone, "DELETE", SUBSCRIPTIONS, [PUBSUB_TOPIC]).status == 200
    assert ask(alone, "GET", RELAY).status == 404
    assert shown(say(alone, "DELETE", SUBSCRIPTIONS, [PUBSUB_TOPIC])) == (500, b"")
    subscribe(alone)
    post(alone, RELAY, to_json(new_message()))
    assert len(read_until(alone, 1)) == 1


def test_any_text_is_accepted_as_a_shard(alone: str) -> None:
    assert shown(post(alone, SUBSCRIPTIONS, ["nonsense"])) == (200, True)


def test_an_unknown_topic_is_404_and_an_unknown_method_405(alone: str) -> None:
    assert ask(alone, "GET", "/relay/v1/messages/waku").status == 404
    assert shown(ask(alone, "PUT", RELAY)) == (405, b"")


# Publishing and store -------------------------------------------------------------------------------------------------


def test_our_client_relays_to_a_node_without_a_report_of_its_health(real_pair: Pair) -> None:
    sent = new_message()

    async def use(here: WakuNode, there: WakuNode) -> None:
        await drained(here, there)
        await here.publish(PUBSUB_TOPIC, sent)
        assert await received(there, 1) == [sent]

    real_pair.run(use)


@pytest.mark.parametrize("query", ["", "?pageSize=1", "?pubsubTopic=%2Fwaku%2F2%2Frs%2F16%2F32"])
def test_the_store_requires_content_topics(alone: str, query: str) -> None:
    refused = {"status_code": 400, "status_desc": "pubsubTopic and contentTopics are required"}
    assert shown(ask(alone, "GET", STORE + query)) == (400, refused)


def test_the_store_takes_hashes_in_url_safe_base64_only(alone: str) -> None:
    refused = ask(alone, "GET", f"{STORE}?hashes=0x{'00' * 32}")
    assert (refused.status, "base64" in refused.body["status_desc"]) == (400, True)
    taken = ask(alone, "GET", f"{STORE}?hashes=__8{'A' * 40}=")
    assert "base64" not in taken.body.get("status_desc", "")


def test_nodes_like_this_one_serve_no_store_of_version_3(real_pair: Pair) -> None:
    async def use(_here: WakuNode, there: WakuNode) -> None:
        with pytest.raises(NoStore):
            await there.store_page(pubsubTopic=PUBSUB_TOPIC, contentTopics="/waku/1/0x75b8b8f6/rfc26")

    real_pair.run(use)
