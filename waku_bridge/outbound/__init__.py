"""The way of replies to the network.

`recording` encodes them into the outbox, `publishing` sends them to a node after the commit, and `confirming` checks
with store nodes whether the network has them. `Nodes` orders the nodes by their recent health. `outbox` has the steps
of a batch that do all of this.

See docs/waku.md.
"""

from waku_bridge.node.client import Nodes
from waku_bridge.outbound.outbox import Outbox
from waku_bridge.outbound.recording import MAX_PARTS, MESSAGE_TYPES, Reply, record, reply_to, return_address

__all__ = ["MAX_PARTS", "MESSAGE_TYPES", "Nodes", "Outbox", "Reply", "record", "reply_to", "return_address"]
