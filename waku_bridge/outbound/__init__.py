"""Replies on their way out.

`recording` encodes them into the outbox, `publishing` hands them to a node after the commit, and `confirming` asks
store nodes whether the network has them. `Nodes` knows which node is worth asking, and `outbox` is what a batch does
with all of that.

See docs/waku.md.
"""

from waku_bridge.node.client import Nodes
from waku_bridge.outbound.outbox import Outbox
from waku_bridge.outbound.recording import MAX_PARTS, MESSAGE_TYPES, Reply, record, reply_to, return_address

__all__ = ["MAX_PARTS", "MESSAGE_TYPES", "Nodes", "Outbox", "Reply", "record", "reply_to", "return_address"]
