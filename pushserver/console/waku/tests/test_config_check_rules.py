"""The config check without a network: parsers of a node's answers about itself, which trust none of them, and rules."""

import re
from base64 import urlsafe_b64encode
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from embedded.node.wire import write_enr
from pushserver.console.checks.enr import Shards, read_shards
from pushserver.console.checks.nodes import (
    RULES,
    Reading,
    read_health,
    read_info,
    read_mesh,
    read_version,
)
from pushserver.console.checks.peers import complaints_of
from waku_bridge.dialect import read_skew
from waku_bridge.reading.pages import LongestPage

PROTOCOLS = {"Relay": "READY", "Store": "READY", "Filter": "NOT_MOUNTED"}
GOOD = Reading(
    is_reachable=True,
    health="READY",
    connection="Connected",
    protocols=PROTOCOLS,
    version=(0, 38, 1),
    shards=Shards(16, frozenset({32, 64})),
    joined={(16, 32): True, (16, 0): False},
    skew_seconds=0.0,
    size_limit_bytes=0,
    longest_page=LongestPage(700, 1),
    own_shards=[(16, 32)],
)


def found(reading: Reading = GOOD) -> list[str]:
    return [complaint.id for complaint in complaints_of(RULES, reading)]


def without(protocol: str, state: str = "NOT_MOUNTED") -> Reading:
    return replace(GOOD, protocols=PROTOCOLS | {protocol: state})


@pytest.mark.parametrize(
    ("reading", "ids"),
    [
        (GOOD, []),  # as documented
        (Reading(is_reachable=False), ["unreachable"]),
        (replace(GOOD, version=None), ["unknown_version"]),
        (replace(GOOD, version=()), ["unknown_version"]),
        (replace(GOOD, version=(0, 35, 1)), ["old_version"]),
        (replace(GOOD, version=(0, 36, 0)), []),
        (replace(GOOD, version=(0, 10, 0), is_go_waku=True, health=None), ["go_waku"]),
        (replace(GOOD, version=(), is_go_waku=True, health=None), ["go_waku"]),
        (replace(GOOD, health="INITIALIZING"), ["not_ready"]),
        (replace(GOOD, health=""), ["not_ready"]),
        (replace(GOOD, connection="Disconnected"), ["no_peers"]),
        (replace(GOOD, connection="PartiallyConnected"), []),
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
        (replace(GOOD, joined={(16, 0): True}, is_go_waku=True), ["go_waku"]),
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


STORE_ONLY, READ_ONLY = {"is_read": False}, {"is_store": False}
RELAY_OFF = {"Store": "READY", "Relay": "NOT_MOUNTED"}


@pytest.mark.parametrize(
    ("reading", "use", "ids"),
    [
        (replace(GOOD, protocols=RELAY_OFF, shards=None, longest_page=LongestPage(50, 9)), STORE_ONLY, []),
        (without("Store"), STORE_ONLY, ["no_store"]),
        (without("Relay", "NOT_READY"), STORE_ONLY, ["no_peers"]),
        (without("Store"), READ_ONLY, []),
    ],
)
def test_a_node_needs_only_what_it_is_used_for(reading: Reading, use: dict[str, bool], ids: list[str]) -> None:
    assert found(replace(reading, **use)) == ids


def test_the_text_of_a_complaint_has_its_numbers() -> None:
    (complaint,) = complaints_of(RULES, replace(GOOD, own_shards=[(16, 32), (16, 0), (16, 7)]))
    assert complaint.problem == "its record does not name shard 0, 7"
    (skewed,) = complaints_of(RULES, replace(GOOD, skew_seconds=-31.4))
    assert skewed.problem == "its clock is 31 s behind ours"


# Parsers --------------------------------------------------------------------------------------------------------------


# The record of a real go-waku v0.10.0, started for /waku/2/rs/16/32.
GO_WAKU = (
    "enr:-Jq4QGB3D_2yJ7RMd_KwVBmzVEB9fpRaLY8FIZljL4UZn-NQeepGCsPJqfkG5duifRanYK_QFWtSdHUE72A4SsnzjUeGAaH-XSrvgmlkgnY0gml"
    "whH8AAAGCcnOFABABACCJc2VjcDI1NmsxoQNPNVvct8wK9yjvPM65YV2QaEu1sspfhZqw8LcEB1hxqoN0Y3CC7kmFd2FrdTIN"
)
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


# The record -----------------------------------------------------------------------------------------------------------


def test_the_record_of_a_real_node_names_its_shards_also_in_its_info():
    assert (
        read_shards(GO_WAKU)
        == read_info(b'{"listenAddresses":[],"enrUri":"%s"}' % GO_WAKU.encode())
        == Shards(16, frozenset({32}))
    )
    assert str(read_shards(GO_WAKU)) == "16: 32"


@pytest.mark.parametrize("shards", [(32,), (32, 64), (0, 1023), tuple(range(60))])
def test_the_record_of_a_development_node_names_its_shards(shards):
    topics = [f"/waku/2/rs/16/{shard}" for shard in shards]
    assert read_shards(write_enr(topics, seq=70_000)) == Shards(16, frozenset(shards))


def record(**pairs: bytes) -> str:
    """Write a record with these items, each shorter than 56 bytes or written with a length of one byte."""

    def string(value: bytes) -> bytes:
        return bytes([0x80 + len(value)]) + value if len(value) < 56 else bytes([0xB8, len(value)]) + value

    items = [bytes(64), b"\x07", *(item for name, value in pairs.items() for item in (name.encode(), value))]
    body = b"".join(map(string, items))
    return "enr:" + urlsafe_b64encode(bytes([0xF8, len(body)]) + body).decode().rstrip("=")


def test_a_record_of_many_shards_is_read_from_bits():
    bits = bytearray(128)
    for shard in (0, 9, 32, 1023):
        bits[shard // 8] |= 1 << shard % 8
    assert read_shards(record(rsv=b"\x00\x10" + bits)) == Shards(16, frozenset({0, 9, 32, 1023}))


@pytest.mark.parametrize(
    "enr",
    [
        "",
        "enr:",
        "enr:-devnode",
        "enr:é",
        "enr:" + "A" * 700,
        GO_WAKU[:-10],
        record(),
        record(rs=b""),
        record(rs=b"\x00\x10\x02\x00\x20"),
        record(rsv=b"\x00\x10\x01"),
        write_enr((), seq=1),
    ],
)
def test_a_record_without_shards_names_none(enr):
    assert read_shards(enr) is None


@given(st.binary(max_size=120))
def test_any_bytes_are_a_record_or_none(data):
    read_shards("enr:" + urlsafe_b64encode(data).decode())


@pytest.mark.parametrize("body", [b"", b"[]", b"5", b"{}", b'{"enrUri":5}', b'{"enrUri":"x"}'])
def test_info_without_a_record_has_no_shards(body):
    assert read_info(body) is None


# Health and version ---------------------------------------------------------------------------------------------------


OF_NWAKU = b"""{"nodeHealth":"READY","connectionStatus":"Connected","colour":1,
    "protocolsHealth":[{"Relay":"NOT_READY","desc":"No peers"},{"Store":"READY"},{"Mix":"what is this"},5]}"""
OF_GO_WAKU = b'"Non RLN healthcheck is not implemented"'
HEALTH = {
    OF_NWAKU: ("READY", "Connected", {"Relay": "NOT_READY", "Store": "READY", "Mix": ""}),
    b'{"nodeHealth":"SYNCHRONIZING","protocolsHealth":[]}': ("SYNCHRONIZING", "", {}),  # before it reported connections
    **dict.fromkeys([b"", OF_GO_WAKU, b"[]", b"READY"], (None, "", {})),
    **dict.fromkeys([b"{}", b'{"nodeHealth":5,"protocolsHealth":{}}', b'{"nodeHealth":"<b>"}'], ("", "", {})),
}


@pytest.mark.parametrize("body", HEALTH)
def test_health_is_read_in_every_form_and_unknown_words_are_empty(body):
    assert read_health(body) == HEALTH[body]


@pytest.mark.parametrize(
    ("body", "version"),
    [
        (b"v0.38.1", ((0, 38, 1), False)),
        (b"v0.37.1-beta", ((0, 37, 1), False)),
        (b"v0.36.0-12-gabcdef1\n", ((0, 36, 0), False)),
        (b"0.39", ((0, 39, 0), False)),
        (b'"v0.10.0-"', ((0, 10, 0), True)),
        (b'"-"', ((), True)),
        (b"n/a", ((), False)),
        (b"abcdef1", ((), False)),
        (b"", (None, False)),
        (b"404 page\nnot found", (None, False)),
        (b"x" * 200, (None, False)),
    ],
)
def test_a_version_is_read_in_every_form(body, version):
    assert read_version(body) == version


@pytest.mark.parametrize(
    ("body", "peers"),
    [
        (b'{"shard":32,"peers":[{"multiaddr":"x"},{}]}', 2),
        (b'{"shard":32,"peers":[]}', 0),
        (b'{"shard":32}', None),
        (b"[]", None),
        (b"", None),
        (b'{"peers":5}', None),
    ],
)
def test_the_peers_of_a_mesh_are_counted(body, peers):
    assert read_mesh(body) == peers


# The clock ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("date", "seconds_of_the_answer", "skew"),
    [
        ("Sat, 21 Nov 2026 12:00:00 GMT", 0, 0.0),
        ("Sat, 21 Nov 2026 11:59:59 GMT", 0, 0.0),  # it may have been 11:59:59.999
        ("Sat, 21 Nov 2026 12:00:03 GMT", 4, 0.0),  # it was written some time before we received it
        ("Sat, 21 Nov 2026 12:00:30 GMT", 0, 30.0),
        ("Sat, 21 Nov 2026 12:00:30 GMT", 4, 26.0),
        ("Sat, 21 Nov 2026 11:59:30 GMT", 0, -29.0),
        ("Sat, 21 Nov 2026 11:59:30 GMT", 4, -29.0),
        ("Sat, 21 Nov 2026 12:00:30 -0000", 0, 30.0),
        ("tomorrow", 0, None),
        ("Sat, 21 Nov 2026 99999999999999999999:00:00 GMT", 0, None),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 0, 251_607_038_399.0),
        ("", 0, None),
    ],
)
def test_the_skew_of_a_clock_is_the_smallest_that_explains_its_date(date, seconds_of_the_answer, skew):
    answered_at = NOON + timedelta(seconds=seconds_of_the_answer)
    assert read_skew(date, asked_at=NOON, answered_at=answered_at) == skew


# docs/waku.md and compose.yaml have the same flags, and the document explains every warning ---------------------------
ROOT = Path(__file__).parents[4]
DOCUMENT = (ROOT / "docs" / "waku.md").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
# One node in compose, with a file for its store and the address of a container.
OF_COMPOSE = {"--listen-address", "--tcp-port", "--rest-address", "--nat", "--dns-discovery-url"}
OF_SEVERAL = {"--store-message-db-url", "--store-sync", "--store-resume"}


def flags(text: str) -> dict[str, str]:
    return dict(flag.split("=", maxsplit=1) for flag in re.findall(r"--[a-z0-9-]+=\S+", text))


DOCUMENTED = flags(re.findall(r"```sh\nwakunode2(.*?)```", DOCUMENT, re.DOTALL)[0])


def test_compose_uses_the_flags_of_the_document() -> None:
    of_compose, others = flags(COMPOSE["services"]["nwaku"]["command"]), OF_COMPOSE | OF_SEVERAL
    assert {n: v for n, v in of_compose.items() if n not in others} == {
        n: v for n, v in DOCUMENTED.items() if n not in others
    }


def test_the_bridge_in_compose_has_the_capacity_of_the_nodes_relay_cache() -> None:
    capacity = COMPOSE["x-server"]["environment"]["WAKU_RING_CAPACITY"]
    assert capacity == f"${{WAKU_RING_CAPACITY:-{DOCUMENTED['--rest-relay-cache-capacity']}}}"


def test_the_node_follows_our_shard_alone_and_the_size_is_spelled_as_nwaku_reads_it() -> None:
    """Measured on nwaku v0.38.1: with a number of shards it joins them all, whatever --shard says."""
    assert (DOCUMENTED["--num-shards-in-network"], DOCUMENTED["--shard"]) == ("0", "32")
    assert re.fullmatch(r"\d+(kib|kb|b)", DOCUMENTED["--max-msg-size"], re.IGNORECASE)


@pytest.mark.parametrize("warning", sorted({*(rule.id for rule in RULES), "not_watched"}))
def test_every_warning_is_explained(warning: str) -> None:
    assert f"| `{warning}` |" in DOCUMENT
