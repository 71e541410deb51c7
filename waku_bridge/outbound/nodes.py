"""The Waku nodes of the settings, the best one first."""

from collections.abc import Iterable
from time import monotonic

from kit.http.peers import Peers
from waku_bridge.node import Busy, NodeError, WakuNode

MOST_DISTRUST_SECONDS = 120.0
# A node that says it is asked too often is left alone for at least this long.
BUSY_SECONDS = 60.0


class Nodes:
    """The nodes, and how each of them did. It belongs to the one event loop that asks them."""

    def __init__(self, nodes: Iterable[WakuNode]) -> None:
        self._nodes = {node.url: node for node in nodes}
        self._peers = Peers(self._nodes, most_distrust_seconds=MOST_DISTRUST_SECONDS)

    def in_order(self, *, last: str = "") -> list[WakuNode]:
        """Return all nodes, the best first. The node at the URL ``last`` comes last, for when no other helps."""
        urls = sorted(self._peers.in_order(monotonic()), key=lambda url: url == last)
        return [self._nodes[url] for url in urls]

    def trusted(self, *, last: str = "") -> list[WakuNode]:
        """Return the nodes that did not fail a moment ago."""
        now = monotonic()
        return [node for node in self.in_order(last=last) if self._peers.is_trusted(node.url, now)]

    def failed(self, node: WakuNode, error: NodeError) -> None:
        """Note that a node failed."""
        self._peers.failed(node.url, monotonic(), at_least_seconds=BUSY_SECONDS if isinstance(error, Busy) else 0.0)

    def answered(self, node: WakuNode, seconds: float) -> None:
        """Note that a node answered, and how long that took."""
        self._peers.answered(node.url)
        self._peers.took(node.url, seconds, monotonic())
