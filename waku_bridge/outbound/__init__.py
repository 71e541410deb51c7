"""The way of replies to the network.

`recording` encodes them into the outbox. After the commit `sending` offers each to nodes, and asks store nodes whether
the network has it (`confirming`). `outbox` has the steps of a batch that do all of this and write what came of it.
`Nodes` orders the nodes by their recent health.

See docs/waku.md.
"""

from waku_bridge.node import Nodes
from waku_bridge.outbound.outbox import Outbox
from waku_bridge.outbound.recording import MAX_PARTS, MESSAGE_TYPES, Reply, record, reply_to, return_address

__all__ = ["MAX_PARTS", "MESSAGE_TYPES", "Nodes", "Outbox", "Reply", "record", "reply_to", "return_address"]
