"""Rules of the config check: each compares a node's answers with what the bridge needs, and names an action. Pure.

A missing answer is no complaint, except for the version and the shards. Texts hold names and numbers but never a text
of the node, because `/readyz` is public.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from pushserver.console.checks.nodes.readings import Reading
from pushserver.console.checks.peers import UNREACHABLE, Complaint

OLDEST_VERSION = (0, 36, 0)
MAX_SKEW_SECONDS = 5.0
CLOCK = "clock_skew"
MIN_RING = 1000
# Gossip aims at six peers per shard, and takes more below four.
MIN_MESH_PEERS = 4
# Default capacities of nwaku's relay cache, since 0.36 and before. A page of go-waku may hold one message more.
DEFAULT_RINGS = frozenset({30, 31, 50, 51})
STUCK_TIMES = 3
SHARD = re.compile(r"/waku/2/rs/(\d+)/(\d+)")


@dataclass(frozen=True, slots=True)
class Expectations:
    """The bridge's use of a node: it reads these shards live (``is_read``), its store (``is_store``), or both."""

    pubsub_topics: tuple[str, ...]
    max_message_bytes: int
    is_read: bool = True
    is_store: bool = True

    @property
    def shards(self) -> list[tuple[int, int]]:
        return shards_of(self.pubsub_topics)


def shards_of(pubsub_topics: Iterable[str]) -> list[tuple[int, int]]:
    """Return cluster and shard of each topic."""
    found = map(SHARD.fullmatch, pubsub_topics)
    return [(int(match[1]), int(match[2])) for match in found if match]


Rule = Callable[[Reading, Expectations], Iterator[Complaint]]


def complaints(reading: Reading, expected: Expectations) -> list[Complaint]:
    """Return the complaints of one reading."""
    if not reading.is_reachable:
        return [NO_ANSWER]
    return [complaint for rule in RULES for complaint in rule(reading, expected)]


NO_ANSWER = Complaint(
    UNREACHABLE,
    "the node does not answer",
    "Nothing is read from it or published through it. With no other node, messages wait in the network's stores.",
    "Start it, or correct WAKU_NODES and WAKU_STORE_NODES.",
)


def _version(reading: Reading, _expected: Expectations) -> Iterator[Complaint]:
    version = reading.version
    if version is None or not (version.numbers or version.is_go_waku):
        yield Complaint(
            "unknown_version",
            "the node does not report its version",
            "The bridge may misunderstand its answers.",
            "Use a release of nwaku, and make sure that the server can reach /version or /debug/v1/version.",
        )
    elif not version.is_go_waku and version.numbers < OLDEST_VERSION:
        yield Complaint(
            "old_version",
            f"{version} is older than {'.'.join(map(str, OLDEST_VERSION))}",
            "Older versions ignore --rest-relay-cache-capacity, and their store has another interface.",
            "Update it: 0.38 is tested.",
        )


def _go_waku(reading: Reading, _expected: Expectations) -> Iterator[Complaint]:
    if reading.version and reading.version.is_go_waku:
        yield Complaint(
            "go_waku",
            "the node is go-waku",
            "It has no store to catch up from, reports no health, and stands still while its cache is not read.",
            "Use nwaku: go-waku is for tests.",
        )


def _health(reading: Reading, _expected: Expectations) -> Iterator[Complaint]:
    if reading.health and reading.health.node != "READY":
        yield Complaint(
            "not_ready",
            f"its health is {reading.health.node or 'an unknown word'}",
            "While it is not READY it may receive and publish nothing, and still answer as if all were well.",
            "A start takes a minute. After that look at its peers and its log.",
        )


def _peers(reading: Reading, _expected: Expectations) -> Iterator[Complaint]:
    if reading.health and reading.health.has_no_peers:
        yield Complaint(
            "no_peers",
            "it has no peers to gossip with",
            "It receives and stores nothing, and no reply is published through it.",
            "Make sure that it finds peers (bootstrap nodes, --cluster-id, firewall), and run a second node.",
        )


def _mesh(reading: Reading, expected: Expectations) -> Iterator[Complaint]:
    if expected.is_read and reading.mesh_peers is not None and reading.mesh_peers < MIN_MESH_PEERS:
        yield Complaint(
            "few_peers",
            f"its mesh of our shard has {reading.mesh_peers} peers, and {MIN_MESH_PEERS} are usual",
            "Messages may get lost with each peer that leaves, and without peers none arrive.",
            "Make sure that it finds peers (bootstrap nodes, firewall). On a test network few peers are normal.",
        )


def _mounted(reading: Reading, expected: Expectations) -> Iterator[Complaint]:
    protocols = reading.health.protocols if reading.health else {}
    if expected.is_read and protocols.get("Relay") == "NOT_MOUNTED":
        yield Complaint(
            "no_relay",
            "relay is not mounted",
            "There is nothing to read from this node.",
            "Start it with --relay=true, or take it out of WAKU_NODES.",
        )
    if expected.is_store and protocols.get("Store") == "NOT_MOUNTED":
        yield Complaint(
            "no_store",
            "it has no store of its own",
            "Messages that the live path loses are not found again here.",
            "Start it with --store=true, or name other nodes in WAKU_STORE_NODES.",
        )


def _shards(reading: Reading, expected: Expectations) -> Iterator[Complaint]:
    if not (reading.shards and expected.shards and expected.is_read):
        return
    clusters = {cluster for cluster, _ in expected.shards}
    if reading.shards.cluster not in clusters:
        yield Complaint(
            "wrong_cluster",
            f"it is in cluster {reading.shards.cluster}, and we read cluster {', '.join(map(str, sorted(clusters)))}",
            "It has no contact with nodes of our cluster: nothing arrives and nothing goes out, without an error.",
            "Correct --cluster-id, or WAKU_PUBSUB_TOPICS.",
        )
    elif missing := sorted({shard for _, shard in expected.shards} - reading.shards.shards):
        yield Complaint(
            "shard_not_served",
            f"its record does not name shard {', '.join(map(str, missing))}",
            "It serves the shard only while our subscription lasts, few peers find it, and a restart ends the "
            "subscription.",
            "Start it with --shard for each shard of WAKU_PUBSUB_TOPICS.",
        )
    elif idle := [shard for cluster, shard in expected.shards if reading.joined.get((cluster, shard)) is False]:
        yield Complaint(
            "shard_not_served",
            f"it does not relay shard {', '.join(map(str, idle))}, although its record names it",
            "Nothing arrives from this node, and no reply is published through it.",
            "See its log, and restart it.",
        )


def _other_shards(reading: Reading, expected: Expectations) -> Iterator[Complaint]:
    others = {shard for shard, is_joined in reading.joined.items() if is_joined} - set(expected.shards)
    if others and expected.is_read and not (reading.version and reading.version.is_go_waku):
        yield Complaint(
            "other_shards",
            f"it also relays shard {', '.join(str(shard) for _, shard in sorted(others))}, which nobody reads here",
            "It probably relays and stores every shard of its cluster, whatever its record says.",
            "Start it with --num-shards-in-network=0, and with --shard for each shard of WAKU_PUBSUB_TOPICS.",
        )


def _no_shards(reading: Reading, expected: Expectations) -> Iterator[Complaint]:
    if reading.shards is None and expected.is_read:
        yield Complaint(
            "shards_unknown",
            "its record names no shards",
            "It may be in another network. After a restart it receives nothing until we subscribe again.",
            "Start it with --cluster-id and --shard, and make sure that the server can reach /info or /debug/v1/info.",
        )


def _ring(reading: Reading, expected: Expectations) -> Iterator[Complaint]:
    page = reading.longest_page
    if expected.is_read and page.size in DEFAULT_RINGS and page.times >= STUCK_TIMES:
        yield Complaint(
            "small_ring",
            f"{page.times} pages held exactly {page.size} messages, and none held more",
            "This is the default capacity of its relay cache. In a burst the cache drops messages: they come late, "
            "from the store, and ephemeral ones not at all.",
            f"Start it with --rest-relay-cache-capacity of {MIN_RING} at least; 10000 is better.",
        )


def _size_limit(reading: Reading, expected: Expectations) -> Iterator[Complaint]:
    if reading.size_limit_bytes is not None and 0 < reading.size_limit_bytes < expected.max_message_bytes:
        yield Complaint(
            "small_messages",
            f"it takes messages of {reading.size_limit_bytes} bytes at most",
            "Status sends up to 1 MiB. A larger message never reaches the node's cache or store, without an error.",
            "Start it with --max-msg-size=1024KiB.",
        )


def _clock(reading: Reading, _expected: Expectations) -> Iterator[Complaint]:
    if complaint := about_clock(reading.skew_seconds):
        yield complaint


def about_clock(skew_seconds: float | None) -> Complaint | None:
    """Return the complaint about a clock that is ``skew_seconds`` ahead of ours, or None."""
    if skew_seconds is None or abs(skew_seconds) <= MAX_SKEW_SECONDS:
        return None
    return Complaint(
        CLOCK,
        f"its clock is {abs(skew_seconds):.0f} s {'ahead of' if skew_seconds > 0 else 'behind'} ours",
        "A store refuses messages that are 20 s away from its clock. With a wrong clock it keeps none.",
        "Run NTP on the node and here.",
    )


RULES: tuple[Rule, ...] = (
    _version,
    _go_waku,
    _health,
    _peers,
    _mesh,
    _mounted,
    _shards,
    _other_shards,
    _no_shards,
    _ring,
    _size_limit,
    _clock,
)
