"""Decide which readings of a node deviate from what the bridge relies on, and what an operator does about each.

The module is pure. What a node did not say is no complaint, except for what everything rests on. Texts hold names and
numbers, never a text of the node's, because `/readyz` is open to anybody.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kit.health.complaints import Complaint
from waku_bridge.node.config_check.readings import Reading

OLDEST_VERSION = (0, 36, 0)
MAX_SKEW_SECONDS = 5.0
CLOCK = "clock_skew"
MIN_RING = 1000
# Gossip aims at six peers per shard, and takes more below four.
MIN_MESH_PEERS = 4
# What nwaku's ring holds unless told otherwise, since 0.36 and before. A page may hold one more on go-waku.
DEFAULT_RINGS = frozenset({30, 31, 50, 51})
STUCK_TIMES = 3
SHARD = re.compile(r"/waku/2/rs/(\d+)/(\d+)")


@dataclass(frozen=True, slots=True)
class Expectations:
    """What the bridge needs of this node: to be read on these shards, to be asked for stored messages, or both."""

    pubsub_topics: tuple[str, ...]
    max_message_bytes: int
    is_read: bool = True
    is_store: bool = True

    @property
    def shards(self) -> list[tuple[int, int]]:
        """Return cluster and shard of each topic."""
        found = map(SHARD.fullmatch, self.pubsub_topics)
        return [(int(match[1]), int(match[2])) for match in found if match]


Rule = Callable[[Reading, Expectations], Iterator[Complaint]]


def complaints(reading: Reading, expected: Expectations) -> list[Complaint]:
    """Return the complaints of one reading."""
    if not reading.is_reachable:
        return [UNREACHABLE]
    return [complaint for rule in RULES for complaint in rule(reading, expected)]


UNREACHABLE = Complaint(
    "unreachable",
    "the node does not answer",
    "Nothing is read from it or published through it. With no other node, messages wait in the network's stores.",
    "Start it, or correct WAKU_NODES and WAKU_STORE_NODES.",
)


def _version(reading: Reading, _expected: Expectations) -> Iterator[Complaint]:
    version = reading.version
    if version is None or not (version.numbers or version.is_go_waku):
        yield Complaint(
            "unknown_version",
            "the node does not say which version it is",
            "Its answers may mean something else than we read in them.",
            "Use a release of nwaku; see that /version or /debug/v1/version reaches us.",
        )
    elif not version.is_go_waku and version.numbers < OLDEST_VERSION:
        yield Complaint(
            "old_version",
            f"{version} is older than {'.'.join(map(str, OLDEST_VERSION))}",
            "Before that, --rest-relay-cache-capacity was ignored, and the store spoke another dialect.",
            "Update it: we tested 0.38.",
        )


def _go_waku(reading: Reading, _expected: Expectations) -> Iterator[Complaint]:
    if reading.version and reading.version.is_go_waku:
        yield Complaint(
            "go_waku",
            "the node is go-waku",
            "It has no store to catch up from, tells nothing about its health, and stands still while nobody reads it.",
            "Use nwaku; go-waku is for tests.",
        )


def _health(reading: Reading, _expected: Expectations) -> Iterator[Complaint]:
    if reading.health and reading.health.node != "READY":
        yield Complaint(
            "not_ready",
            f"its health is {reading.health.node or 'no word that we know'}",
            "While it is not READY it may receive and publish nothing, and answers as if all were well.",
            "Starting takes a minute; after that look at its peers and its log.",
        )


def _peers(reading: Reading, expected: Expectations) -> Iterator[Complaint]:
    if not reading.health:
        return
    relay = reading.health.protocols.get("Relay", "")
    if reading.health.connection == "Disconnected" or (expected.is_read and relay == "NOT_READY"):
        yield Complaint(
            "no_peers",
            "it has no peers to gossip with",
            "It receives nothing, and what is published through it reaches nobody.",
            "See that it finds peers (bootstrap nodes, --cluster-id, firewall), and keep a second node.",
        )


def _mesh(reading: Reading, expected: Expectations) -> Iterator[Complaint]:
    if expected.is_read and reading.mesh_peers is not None and reading.mesh_peers < MIN_MESH_PEERS:
        yield Complaint(
            "few_peers",
            f"{reading.mesh_peers} peers are in its mesh of our shard, {MIN_MESH_PEERS} would be usual",
            "Each of them that goes may take messages along; without any, nothing arrives.",
            "See that it finds peers (bootstrap nodes, firewall); on a test network this is as it should be.",
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
    if expected.is_read and protocols.get("Lightpush") == "NOT_MOUNTED":
        yield Complaint(
            "no_lightpush",
            "lightpush is not mounted",
            "Replies go out by relay, which says OK even when no peer took them.",
            "Start it with --lightpush=true.",
        )
    if expected.is_store and protocols.get("Store") == "NOT_MOUNTED":
        yield Complaint(
            "no_store",
            "it has no store of its own",
            "What the live path loses is not found again here: each lost answer is a lost message.",
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
            "Nodes of another cluster do not talk to it: nothing arrives and nothing goes out, without an error.",
            "Correct --cluster-id, or WAKU_PUBSUB_TOPICS.",
        )
    elif missing := sorted({shard for _, shard in expected.shards} - reading.shards.shards):
        yield Complaint(
            "shard_not_served",
            f"its record does not name shard {', '.join(map(str, missing))}",
            "It takes part only while our subscription lasts, is found by few peers, and forgets the shard when it "
            "restarts.",
            "Start it with --shard for each shard of WAKU_PUBSUB_TOPICS.",
        )


def _no_shards(reading: Reading, expected: Expectations) -> Iterator[Complaint]:
    if reading.shards is None and expected.is_read:
        yield Complaint(
            "shards_unknown",
            "its record names no shards",
            "It may be in another network; and after a restart it reads nothing until we subscribe again.",
            "Start it with --cluster-id and --shard; see that /info or /debug/v1/info reaches us.",
        )


def _ring(reading: Reading, expected: Expectations) -> Iterator[Complaint]:
    page = reading.longest_page
    if expected.is_read and page.size in DEFAULT_RINGS and page.times >= STUCK_TIMES:
        yield Complaint(
            "small_ring",
            f"{page.times} pages held {page.size} messages, and none more",
            "That is the default of its relay cache, which pushes out what does not fit: bursts are found in the "
            "store only, later, and ephemeral messages not at all.",
            f"Start it with --rest-relay-cache-capacity of {MIN_RING} at least; 10000 is better.",
        )


def _size_limit(reading: Reading, expected: Expectations) -> Iterator[Complaint]:
    if reading.size_limit_bytes is not None and 0 < reading.size_limit_bytes < expected.max_message_bytes:
        yield Complaint(
            "small_messages",
            f"it takes messages of {reading.size_limit_bytes} bytes at most",
            "Status sends up to 1 MiB. What is larger never reaches the node's cache or store, and nobody is told.",
            "Start it with --max-msg-size=1024KiB.",
        )


def _clock(reading: Reading, _expected: Expectations) -> Iterator[Complaint]:
    if complaint := about_clock(reading.skew_seconds):
        yield complaint


def about_clock(skew_seconds: float | None) -> Complaint | None:
    """Return what is wrong with a clock that is so far ahead of ours, or None."""
    if skew_seconds is None or abs(skew_seconds) <= MAX_SKEW_SECONDS:
        return None
    return Complaint(
        CLOCK,
        f"its clock is {abs(skew_seconds):.0f} s {'ahead of' if skew_seconds > 0 else 'behind'} ours",
        "A store refuses messages that are 20 s away from its clock; with a wrong one it keeps nothing.",
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
    _no_shards,
    _ring,
    _size_limit,
    _clock,
)
