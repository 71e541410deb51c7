"""The way of replies to the network.

`outbox` has the rows of replies and the steps of a batch that write them. After the commit `sending` offers each reply
to nodes, and asks store nodes whether the network has it. `Nodes` orders the nodes by their recent health.

See docs/waku.md.
"""

from waku_bridge.node import Nodes
from waku_bridge.outbound.outbox import MAX_PARTS, MESSAGE_TYPES, Outbox, Reply, record, reply_to, return_address

__all__ = ["MAX_PARTS", "MESSAGE_TYPES", "Nodes", "Outbox", "Reply", "record", "reply_to", "return_address"]
