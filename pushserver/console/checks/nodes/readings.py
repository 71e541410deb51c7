"""Parsers of a node's answers about itself: `/health`, `/info`, `/version` and the peers of its mesh. Pure.

No answer is trusted: one that is malformed counts as missing. Words are compared with known ones, so that no text of
a node reaches logs or pages.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from pushserver.console.checks.nodes.enr import Shards, read_shards
from waku_bridge.reading.pages import LongestPage

VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,6}))?(?!\d)")
HTTP_BAD_REQUEST = 400
STATES = frozenset(
    {"READY", "NOT_READY", "NOT_MOUNTED", "INITIALIZING", "SYNCHRONIZING", "SHUTTING_DOWN", "EVENT_LOOP_LAGGING"}
)
CONNECTIONS = frozenset({"Connected", "PartiallyConnected", "Disconnected"})


@dataclass(frozen=True, slots=True)
class Version:
    """The version of a node. ``numbers`` is empty when the node was built without a version."""

    numbers: tuple[int, ...]
    is_go_waku: bool = False

    def __str__(self) -> str:
        return (
            f"{'go-waku' if self.is_go_waku else 'nwaku'} {'.'.join(map(str, self.numbers)) or 'of no known version'}"
        )


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a node in nwaku's words. ``protocols`` has the state of each protocol by its name.

    A text is empty where the node gave none, or an unknown one.
    """

    node: str = ""
    connection: str = ""
    protocols: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_no_peers(self) -> bool:
        """Return whether messages reach nobody by relay. The node itself is READY all the same."""
        return self.connection == "Disconnected" or self.protocols.get("Relay") == "NOT_READY"


@dataclass(frozen=True, slots=True)
class Reading:
    """The answers of one node to one check. None means that an answer was missing or malformed.

    ``shards`` are those of its record, and ``joined`` says of some shards (cluster, number) whether it relays them.
    ``skew_seconds`` is how far its clock is ahead of ours, at least. ``size_limit_bytes`` is the limit in its refusal
    of a message of the largest size that Status sends, or 0 when it took the message.
    """

    is_reachable: bool
    health: Health | None = None
    version: Version | None = None
    shards: Shards | None = None
    joined: Mapping[tuple[int, int], bool] = field(default_factory=dict)
    skew_seconds: float | None = None
    size_limit_bytes: int | None = None
    longest_page: LongestPage = field(default_factory=LongestPage)
    mesh_peers: int | None = None  # of our first shard; a node reports them only with --rest-admin


def read_health(body: bytes) -> Health | None:
    """Return the health, or None for go-waku, which implements it for RLN only."""
    answer = _read_json(body)
    if not isinstance(answer, dict):
        return None
    listed = answer.get("protocolsHealth")
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    protocols = {name: _known(state, STATES) for entry in entries for name, state in entry.items() if name != "desc"}
    return Health(
        _known(answer.get("nodeHealth"), STATES), _known(answer.get("connectionStatus"), CONNECTIONS), protocols
    )


def _known(word: Any, words: frozenset[str]) -> str:
    return word if isinstance(word, str) and word in words else ""


def read_version(body: bytes) -> Version | None:
    """Read a version: plain text from nwaku, a JSON string from go-waku."""
    answer = _read_json(body)
    is_go_waku = isinstance(answer, str)
    text = answer if isinstance(answer, str) else body.decode(errors="replace")
    if not text or "\n" in text.strip() or len(text) > 100:
        return None
    found = VERSION.match(text)
    return Version(tuple(int(number) for number in found.groups("0")) if found else (), is_go_waku)


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
