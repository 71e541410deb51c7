"""The config check of Waku nodes: settings of a node that the bridge cannot work with (docs/waku.md).

No answer of a node is trusted: one that is malformed counts as missing. Words are compared with known ones, so that no
text of a node reaches logs or pages. A missing answer is no complaint, except for the version and the shards.

The limit of the message size can only be found by sending a message. A server must not send useless messages into a
public network, so only an operator's command does this (`manage.py check_node --size`).
"""

import asyncio
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import quote

import httpx
import orjson
from django.conf import settings
from django.utils import timezone

from kit.display import host_of
from kit.http import new_client, submit
from pushserver.console.checks.engine import NoticeCache, ask_peer, read_all
from pushserver.console.checks.enr import Shards, read_shards
from pushserver.console.checks.peers import UNREACHABLE, Complaint, Rule, complaints_of
from pushserver.console.waku.metrics import (
    NODE_CLOCK_SKEW_SECONDS,
    NODE_HEALTHY,
    NODE_MESH_PEERS,
    NODE_VERSION_TIMESTAMP_SECONDS,
)
from waku_bridge.dialect import MessageTooLarge, read_skew, refusal, to_json
from waku_bridge.messages import WakuMessage
from waku_bridge.reading.live import LONGEST_PAGE
from waku_bridge.reading.pages import LongestPage

NOTICES = NoticeCache("node")
# The words that a node may use.
STATES = frozenset(
    {"READY", "NOT_READY", "NOT_MOUNTED", "INITIALIZING", "SYNCHRONIZING", "SHUTTING_DOWN", "EVENT_LOOP_LAGGING"}
)
CONNECTIONS = frozenset({"Connected", "PartiallyConnected", "Disconnected"})


@dataclass(frozen=True, slots=True)
class Reading:
    """The answers of one node to one check, and our use of it. None means that an answer was missing or malformed.

    ``health``, ``connection`` and ``protocols`` (the state of each by its name) are in nwaku's words, which are empty
    where the node gave none, or an unknown one. A ``version`` is empty when the node was built without one. ``shards``
    are those of its record, and ``joined`` says of some shards (cluster, number) whether it relays them.
    ``skew_seconds`` is how far its clock is ahead of ours, at least. ``size_limit_bytes`` is the limit in its refusal
    of a message of the largest size that Status sends, or 0 when it took the message.
    """

    is_reachable: bool
    health: str | None = None
    connection: str = ""
    protocols: Mapping[str, str] = field(default_factory=dict)
    version: tuple[int, ...] | None = None
    is_go_waku: bool = False
    shards: Shards | None = None
    joined: Mapping[tuple[int, int], bool] = field(default_factory=dict)
    skew_seconds: float | None = None
    size_limit_bytes: int | None = None
    longest_page: LongestPage = field(default_factory=LongestPage)
    mesh_peers: int | None = None  # of our first shard; a node reports them only with --rest-admin
    own_shards: Sequence[tuple[int, int]] = ()  # those of the settings, as cluster and number
    is_read: bool = True  # live
    is_store: bool = True  # its store is read

    @property
    def software(self) -> str:
        """Return its name and version, or an empty text when it does not report them."""
        name = "go-waku" if self.is_go_waku else "nwaku"
        number = ".".join(map(str, self.version or ())) or "of no known version"
        return "" if self.version is None else f"{name} {number}"


SHARD = re.compile(r"/waku/2/rs/(\d+)/(\d+)")


def shards_of(pubsub_topics: Iterable[str]) -> list[tuple[int, int]]:
    """Return cluster and shard of each topic."""
    found = map(SHARD.fullmatch, pubsub_topics)
    return [(int(match[1]), int(match[2])) for match in found if match]


# Rules ----------------------------------------------------------------------------------------------------------------
OLDEST_VERSION = (0, 36, 0)
MAX_SKEW_SECONDS = 5.0
CLOCK = "clock_skew"
MIN_RING = 1000
# Gossip aims at six peers per shard, and takes more below four.
MIN_MESH_PEERS = 4
# Default capacities of nwaku's relay cache, since 0.36 and before. A page of go-waku may hold one message more.
DEFAULT_RINGS = frozenset({30, 31, 50, 51})
STUCK_TIMES = 3
MAX_MESSAGE_BYTES = 1024 * 1024  # the limit of Status and its fleet
# The difference is a reserve for topics, base64 and other bytes that a node may count.
PROBE_BYTES = MAX_MESSAGE_BYTES - 4096


def _other_cluster(node: Reading) -> str:
    """Return our clusters in words if the node is in none of them."""
    own = {cluster for cluster, _shard in node.own_shards}
    return _in_words(own) if node.shards and node.is_read and node.shards.cluster not in own else ""


def _shards_not_named(node: Reading) -> str:
    if node.shards is None or not node.is_read or _other_cluster(node):
        return ""
    return _in_words({shard for _cluster, shard in node.own_shards} - node.shards.shards)


def _shards_not_relayed(node: Reading) -> str:
    if node.shards is None or not node.is_read or _other_cluster(node) or _shards_not_named(node):
        return ""
    return _in_words(shard for cluster, shard in node.own_shards if node.joined.get((cluster, shard)) is False)


def _other_shards(node: Reading) -> str:
    others = {shard for shard, is_joined in node.joined.items() if is_joined} - set(node.own_shards)
    return _in_words(shard for _cluster, shard in others) if node.is_read and not node.is_go_waku else ""


def _in_words(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


def _clock(node: Reading) -> str:
    skew_seconds = node.skew_seconds or 0.0
    words = f"{abs(skew_seconds):.0f} s {'ahead of' if skew_seconds > 0 else 'behind'} ours"
    return words if abs(skew_seconds) > MAX_SKEW_SECONDS else ""


CLOCK_RULE: Rule[Reading] = Rule(
    CLOCK,
    _clock,
    "its clock is {found}",
    "A store refuses messages that are 20 s away from its clock. With a wrong clock it keeps none.",
    "Run NTP on the node and here.",
)
RULES: Sequence[Rule[Reading]] = (
    Rule(
        UNREACHABLE,
        lambda node: not node.is_reachable,
        "the node does not answer",
        "Nothing is read from it or published through it. With no other node, messages wait in the network's stores.",
        "Start it, or correct WAKU_NODES and WAKU_STORE_NODES.",
    ),
    Rule(
        "unknown_version",
        lambda node: not (node.version or node.is_go_waku),
        "the node does not report its version",
        "The bridge may misunderstand its answers.",
        "Use a release of nwaku, and make sure that the server can reach /version or /debug/v1/version.",
    ),
    Rule(
        "old_version",
        lambda node: node.software if node.version and not node.is_go_waku and node.version < OLDEST_VERSION else "",
        f"{{found}} is older than {'.'.join(map(str, OLDEST_VERSION))}",
        "Older versions ignore --rest-relay-cache-capacity, and their store has another interface.",
        "Update it: 0.38 is tested.",
    ),
    Rule(
        "go_waku",
        lambda node: node.is_go_waku,
        "the node is go-waku",
        "It has no store to catch up from, reports no health, and stands still while its cache is not read.",
        "Use nwaku: go-waku is for tests.",
    ),
    Rule(
        "not_ready",
        lambda node: node.health not in {None, "READY"} and (node.health or "an unknown word"),
        "its health is {found}",
        "While it is not READY it may receive and publish nothing, and still answer as if all were well.",
        "A start takes a minute. After that look at its peers and its log.",
    ),
    Rule(
        "no_peers",
        # The node itself is READY all the same.
        lambda node: node.protocols.get("Relay") == "NOT_READY" or node.connection == "Disconnected",
        "it has no peers to gossip with",
        "It receives and stores nothing, and no reply is published through it.",
        "Make sure that it finds peers (bootstrap nodes, --cluster-id, firewall), and run a second node.",
    ),
    Rule(
        "few_peers",
        lambda node: node.is_read and node.mesh_peers is not None and node.mesh_peers < MIN_MESH_PEERS,
        f"its mesh of our shard has {{peer.mesh_peers}} peers, and {MIN_MESH_PEERS} are usual",
        "Messages may get lost with each peer that leaves, and without peers none arrive.",
        "Make sure that it finds peers (bootstrap nodes, firewall). On a test network few peers are normal.",
    ),
    Rule(
        "no_relay",
        lambda node: node.is_read and node.protocols.get("Relay") == "NOT_MOUNTED",
        "relay is not mounted",
        "There is nothing to read from this node.",
        "Start it with --relay=true, or take it out of WAKU_NODES.",
    ),
    Rule(
        "no_store",
        lambda node: node.is_store and node.protocols.get("Store") == "NOT_MOUNTED",
        "it has no store of its own",
        "Messages that the live path loses are not found again here.",
        "Start it with --store=true, or name other nodes in WAKU_STORE_NODES.",
    ),
    Rule(
        "wrong_cluster",
        _other_cluster,
        "it is in cluster {peer.shards.cluster}, and we read cluster {found}",
        "It has no contact with nodes of our cluster: nothing arrives and nothing goes out, without an error.",
        "Correct --cluster-id, or WAKU_PUBSUB_TOPICS.",
    ),
    Rule(
        "shard_not_served",
        _shards_not_named,
        "its record does not name shard {found}",
        "It serves the shard only while our subscription lasts, few peers find it, and a restart ends the "
        "subscription.",
        "Start it with --shard for each shard of WAKU_PUBSUB_TOPICS.",
    ),
    Rule(
        "shard_not_served",
        _shards_not_relayed,
        "it does not relay shard {found}, although its record names it",
        "Nothing arrives from this node, and no reply is published through it.",
        "See its log, and restart it.",
    ),
    Rule(
        "other_shards",
        _other_shards,
        "it also relays shard {found}, which nobody reads here",
        "It probably relays and stores every shard of its cluster, whatever its record says.",
        "Start it with --num-shards-in-network=0, and with --shard for each shard of WAKU_PUBSUB_TOPICS.",
    ),
    Rule(
        "shards_unknown",
        lambda node: node.is_read and node.shards is None,
        "its record names no shards",
        "It may be in another network. After a restart it receives nothing until we subscribe again.",
        "Start it with --cluster-id and --shard, and make sure that the server can reach /info or /debug/v1/info.",
    ),
    Rule(
        "small_ring",
        lambda node: (
            node.is_read and node.longest_page.size in DEFAULT_RINGS and node.longest_page.times >= STUCK_TIMES
        ),
        "{peer.longest_page.times} pages held exactly {peer.longest_page.size} messages, and none held more",
        "This is the default capacity of its relay cache. In a burst the cache drops messages: they come late, "
        "from the store, and ephemeral ones not at all.",
        f"Start it with --rest-relay-cache-capacity of {MIN_RING} at least; 10000 is better.",
    ),
    Rule(
        "small_messages",
        lambda node: 0 < (node.size_limit_bytes or 0) < PROBE_BYTES,
        "it takes messages of {peer.size_limit_bytes} bytes at most",
        "Status sends up to 1 MiB. A larger message never reaches the node's cache or store, without an error.",
        "Start it with --max-msg-size=1024KiB.",
    ),
    CLOCK_RULE,
)


def about_clock(skew_seconds: float) -> Complaint | None:
    """Return the complaint about a clock that is ``skew_seconds`` ahead of ours, or None."""
    return CLOCK_RULE.complaint(Reading(is_reachable=True, skew_seconds=skew_seconds))


# Asking ---------------------------------------------------------------------------------------------------------------
# The last possible shard, which no node serves.
PROBE_SHARD = 1023
PROBE_CONTENT_TOPIC = "/push-server/1/size-probe/proto"
HTTP_OK, HTTP_BAD_REQUEST = 200, 400
SUBSCRIPTIONS = "/relay/v1/subscriptions"
_ask = partial(ask_peer, headers={"Content-Type": "application/json"})


def configured() -> list[str]:
    """Return the URLs of all nodes of the settings."""
    return list(dict.fromkeys([*settings.WAKU_NODES, *settings.WAKU_STORE_NODES]))


def check_all(*, now: datetime) -> None:
    """Check each node of the settings once. It is safe to run twice, and no answer of a node makes it fail."""
    urls = configured()
    before = NOTICES.read(urls)
    readings = read_all(_read, urls)
    for url, reading in zip(urls, readings, strict=True):
        full = replace(reading, longest_page=LONGEST_PAGE.read(url) or LongestPage())
        _measure(host_of(url), full)
        NOTICES.note(url, complaints_of(RULES, full), known=before.get(url), now=now, facts=facts_of(full))


def check(url: str, *, with_size: bool) -> tuple[Reading, list[Complaint]]:
    """Check one node and save nothing. ``with_size`` publishes a useless message of 1 MiB."""
    [reading] = read_all(_read, [url])
    if with_size and reading.is_reachable:
        reading = replace(reading, size_limit_bytes=submit(_probe_size(url)).result())
    return reading, complaints_of(RULES, reading)


def _measure(host: str, reading: Reading) -> None:
    if reading.health is not None or not reading.is_reachable:
        NODE_HEALTHY.labels(host).set(reading.health == "READY")
    if reading.version is not None:
        NODE_VERSION_TIMESTAMP_SECONDS.labels(host, reading.software).set_to_current_time()
    if reading.skew_seconds is not None:
        NODE_CLOCK_SKEW_SECONDS.labels(host).set(reading.skew_seconds)
    if reading.mesh_peers is not None:
        NODE_MESH_PEERS.labels(host).set(reading.mesh_peers)


def facts_of(reading: Reading) -> dict[str, str]:
    """Return the facts about a node that the console shows, in words."""
    longest = reading.longest_page.size
    return {
        "version": reading.software or "not known",
        "health": reading.health or "not reported",
        "cluster and shards": str(reading.shards or "not reported"),
        "longest page": f"{longest} messages" if longest else "shorter than 30 messages",
    }


async def _read(client: httpx.AsyncClient, url: str) -> Reading:
    asked_at = timezone.now()
    health = await _ask(client, f"{url}/health")
    answered_at, date = timezone.now(), health.headers.get("Date", "") if health else ""
    info, version, mesh = await asyncio.gather(
        _ask_either(client, url, "/debug/v1/info", "/info"),
        _ask_either(client, url, "/debug/v1/version", "/version"),
        _ask(client, f"{url}/admin/v1/peers/mesh/on/{settings.WAKU_PUBSUB_TOPICS[0].rpartition('/')[2]}"),
    )
    shards = shards_of(settings.WAKU_PUBSUB_TOPICS)
    asked = [*shards, *_others(shards)]
    joined = await asyncio.gather(*(_is_joined(client, url, *shard) for shard in asked))
    words, connection, protocols = read_health(_content(health))
    number, is_go_waku = read_version(_content(version))
    return Reading(
        is_reachable=any(answer is not None for answer in (info, health, version)),
        health=words,
        connection=connection,
        protocols=protocols,
        version=number,
        is_go_waku=is_go_waku,
        shards=read_info(_content(info)),
        joined={shard: is_joined for shard, is_joined in zip(asked, joined, strict=True) if is_joined is not None},
        skew_seconds=read_skew(date, asked_at=asked_at, answered_at=answered_at),
        mesh_peers=read_mesh(_content(mesh)),
        own_shards=shards,
        is_read=url in settings.WAKU_NODES,
        is_store=url in settings.WAKU_STORE_NODES,
    )


def _content(answer: httpx.Response | None) -> bytes:
    return answer.content if answer and answer.status_code == HTTP_OK else b""


def _others(shards: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the lowest shard that we do not read. A node that follows all shards of its cluster follows this one."""
    return [(cluster, min(set(range(len(shards) + 1)) - {number for _, number in shards})) for cluster, _ in shards[:1]]


async def _is_joined(client: httpx.AsyncClient, url: str, cluster: int, shard: int) -> bool | None:
    """Return whether the node relays a shard. The request has no body, so that nothing can be published."""
    answer = await _ask(client, url + _messages(f"/waku/2/rs/{cluster}/{shard}"), "POST")
    return read_joined(answer.status_code, answer.content) if answer else None


async def _probe_size(url: str) -> int | None:
    """Return the size limit in the node's refusal of a message, 0 when it takes the message, or None without either.

    The message has the largest size that Status sends. It is ephemeral, and on a shard that no node serves, which the
    node joins for it: a node that takes the message finds no peer to send it to. Lightpush would measure another node.
    """
    pubsub_topic = f"{settings.WAKU_PUBSUB_TOPICS[0].rpartition('/')[0]}/{PROBE_SHARD}"
    message = WakuMessage(
        os.urandom(PROBE_BYTES), PROBE_CONTENT_TOPIC, int(timezone.now().timestamp() * 10**9), ephemeral=True
    )
    topics = orjson.dumps([pubsub_topic])
    async with new_client() as client:
        await _ask(client, url + SUBSCRIPTIONS, "POST", content=topics)
        try:
            answer = await _ask(client, url + _messages(pubsub_topic), "POST", content=orjson.dumps(to_json(message)))
        finally:
            await _ask(client, url + SUBSCRIPTIONS, "DELETE", content=topics)
    if answer is None:
        return None
    if answer.status_code == HTTP_OK:
        return 0
    error = refusal(answer.status_code, answer.content[:1000].decode(errors="replace"), where=url)
    return (error.limit_bytes or None) if isinstance(error, MessageTooLarge) else None


def _messages(pubsub_topic: str) -> str:
    return f"/relay/v1/messages/{quote(pubsub_topic, safe='')}"


async def _ask_either(client: httpx.AsyncClient, url: str, path: str, newer_path: str) -> httpx.Response | None:
    """Request the older path first: every version so far has it, and go-waku no other. nwaku calls it deprecated."""
    answer = await _ask(client, url + path)
    if answer is None or answer.status_code == HTTP_OK:
        return answer
    return await _ask(client, url + newer_path)


# Parsing --------------------------------------------------------------------------------------------------------------
VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,6}))?(?!\d)")


def read_health(body: bytes) -> tuple[str | None, str, dict[str, str]]:
    """Return the health of a node, its connection, and the state of each protocol.

    The health is None for go-waku, which implements it for RLN only.
    """
    answer = _read_json(body)
    if not isinstance(answer, dict):
        return None, "", {}
    listed = answer.get("protocolsHealth")
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    protocols = {name: _known(state, STATES) for entry in entries for name, state in entry.items() if name != "desc"}
    return _known(answer.get("nodeHealth"), STATES), _known(answer.get("connectionStatus"), CONNECTIONS), protocols


def _known(word: Any, words: frozenset[str]) -> str:
    return word if isinstance(word, str) and word in words else ""


def read_version(body: bytes) -> tuple[tuple[int, ...] | None, bool]:
    """Read a version, and whether it is of go-waku: plain text is from nwaku, a JSON string from go-waku."""
    answer = _read_json(body)
    is_go_waku = isinstance(answer, str)
    text = answer if isinstance(answer, str) else body.decode(errors="replace")
    if not text or "\n" in text.strip() or len(text) > 100:
        return None, False
    found = VERSION.match(text)
    return tuple(int(number) for number in found.groups("0")) if found else (), is_go_waku


def read_info(body: bytes) -> Shards | None:
    """Return the shards in the record of an answer to `/info`."""
    answer = _read_json(body)
    record = answer.get("enrUri") if isinstance(answer, dict) else None
    return read_shards(record) if isinstance(record, str) else None


def read_joined(status: int, body: bytes) -> bool | None:
    """Return whether nwaku relays a shard, by its answer to a message without a body.

    It refuses a shard that it has not joined before it looks at the body, and then the missing body, without a text.
    """
    if status != HTTP_BAD_REQUEST:
        return None
    return False if b"not subscribed" in body else None if body else True


def read_mesh(body: bytes) -> int | None:
    """Return the number of peers in the relay mesh of one shard, from `/admin/v1/peers/mesh/on/{shard}`."""
    answer = _read_json(body)
    peers = answer.get("peers") if isinstance(answer, dict) else None
    return len(peers) if isinstance(peers, list) else None


def _read_json(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
