from dataclasses import replace

import pytest

from waku_bridge.node.config_check.enr import Shards
from waku_bridge.node.config_check.readings import Health, LongestPage, Reading, Version
from waku_bridge.node.config_check.rules import Expectations, complaints

PROTOCOLS = {"Relay": "READY", "Store": "READY", "Filter": "NOT_MOUNTED"}
GOOD = Reading(
    is_reachable=True,
    health=Health("READY", "Connected", PROTOCOLS),
    version=Version((0, 38, 1)),
    shards=Shards(16, frozenset({32, 64})),
    joined={(16, 32): True, (16, 0): False},
    skew_seconds=0.0,
    size_limit_bytes=0,
    longest_page=LongestPage(700, 1),
)
EXPECTED = Expectations(("/waku/2/rs/16/32",), max_message_bytes=1_000_000)


def found(reading: Reading = GOOD, expected: Expectations = EXPECTED) -> list[str]:
    return [complaint.id for complaint in complaints(reading, expected)]


def without(protocol: str, state: str = "NOT_MOUNTED") -> Reading:
    return replace(GOOD, health=Health("READY", "Connected", PROTOCOLS | {protocol: state}))


def test_a_node_as_documented_does_not_deviate() -> None:
    assert found() == []


@pytest.mark.parametrize(
    ("reading", "ids"),
    [
        (Reading(is_reachable=False), ["unreachable"]),
        (replace(GOOD, version=None), ["unknown_version"]),
        (replace(GOOD, version=Version(())), ["unknown_version"]),
        (replace(GOOD, version=Version((0, 35, 1))), ["old_version"]),
        (replace(GOOD, version=Version((0, 36, 0))), []),
        (replace(GOOD, version=Version((0, 10, 0), is_go_waku=True), health=None), ["go_waku"]),
        (replace(GOOD, version=Version((), is_go_waku=True), health=None), ["go_waku"]),
        (replace(GOOD, health=Health("INITIALIZING")), ["not_ready"]),
        (replace(GOOD, health=Health()), ["not_ready"]),
        (replace(GOOD, health=Health("READY", "Disconnected", PROTOCOLS)), ["no_peers"]),
        (replace(GOOD, health=Health("READY", "PartiallyConnected", PROTOCOLS)), []),
        (replace(GOOD, health=None), []),
        (without("Relay", "NOT_READY"), ["no_peers"]),
        (replace(GOOD, mesh_peers=3), ["few_peers"]),
        (replace(GOOD, mesh_peers=4), []),
        (without("Relay"), ["no_relay"]),
        (without("Store"), ["no_store"]),
        (replace(GOOD, shards=Shards(1, frozenset({32}))), ["wrong_cluster"]),
        (replace(GOOD, shards=Shards(16, frozenset({0, 64}))), ["shard_not_served"]),
        (replace(GOOD, joined={(16, 32): False}), ["shard_not_served"]),
        (replace(GOOD, joined={(16, 0): True}), ["other_shards"]),
        (replace(GOOD, joined={(16, 0): True}, version=Version((0, 10, 0), is_go_waku=True)), ["go_waku"]),
        (replace(GOOD, shards=None), ["shards_unknown"]),
        (replace(GOOD, longest_page=LongestPage(50, 3)), ["small_ring"]),
        (replace(GOOD, longest_page=LongestPage(30, 9)), ["small_ring"]),
        (replace(GOOD, longest_page=LongestPage(50, 2)), []),
        (replace(GOOD, longest_page=LongestPage(49, 9)), []),
        (replace(GOOD, longest_page=LongestPage(500, 9)), []),
        (replace(GOOD, size_limit_bytes=153_600), ["small_messages"]),
        (replace(GOOD, size_limit_bytes=1_048_576), []),
        (replace(GOOD, size_limit_bytes=None), []),
        (replace(GOOD, skew_seconds=5.0), []),
        (replace(GOOD, skew_seconds=5.1), ["clock_skew"]),
        (replace(GOOD, skew_seconds=-5.1), ["clock_skew"]),
        (replace(GOOD, skew_seconds=None), []),
    ],
)
def test_each_wrong_fact_is_a_complaint_of_its_own(reading: Reading, ids: list[str]) -> None:
    assert found(reading) == ids


def test_a_node_that_serves_only_its_store_needs_no_relay() -> None:
    store_only = replace(EXPECTED, is_read=False)
    relay_off = Health("READY", "Connected", {"Store": "READY", "Relay": "NOT_MOUNTED"})
    reading = replace(GOOD, health=relay_off, shards=None, longest_page=LongestPage(50, 9))
    assert found(reading, store_only) == []
    assert found(without("Store"), store_only) == ["no_store"]
    assert found(without("Relay", "NOT_READY"), store_only) == ["no_peers"]


def test_a_node_that_is_only_read_needs_no_store() -> None:
    assert found(without("Store"), replace(EXPECTED, is_store=False)) == []


def test_the_text_of_a_complaint_has_its_numbers() -> None:
    expected = replace(EXPECTED, pubsub_topics=("/waku/2/rs/16/32", "/waku/2/rs/16/0", "/waku/2/rs/16/7"))
    (complaint,) = complaints(GOOD, expected)
    assert complaint.problem == "its record does not name shard 0, 7"
    (skewed,) = complaints(replace(GOOD, skew_seconds=-31.4), EXPECTED)
    assert skewed.problem == "its clock is 31 s behind ours"
