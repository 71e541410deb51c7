"""Replies on their way out: `recording` encodes them into the outbox, `publishing` hands them to a node after the
transaction, `confirming` asks store nodes whether the network has them. `nodes` knows which node is worth asking.
"""

from waku_bridge.outbound.confirming import confirm
from waku_bridge.outbound.nodes import Nodes
from waku_bridge.outbound.publishing import BATCH_SIZE, hand_out_left_behind, publish
from waku_bridge.outbound.recording import MAX_PARTS, MESSAGE_TYPES, Reply, answer_requests, record

__all__ = [
    "BATCH_SIZE",
    "MAX_PARTS",
    "MESSAGE_TYPES",
    "Nodes",
    "Reply",
    "answer_requests",
    "confirm",
    "hand_out_left_behind",
    "publish",
    "record",
]
