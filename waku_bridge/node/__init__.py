"""Access to a Waku node: `client` sends requests to it, `dialect` parses its JSON, `errors` has the exceptions.

See docs/waku.md.
"""

from waku_bridge.node.client import WakuNode
from waku_bridge.node.dialect import StoreEntry, StorePage, from_json, to_json
from waku_bridge.node.errors import (
    BadNodeMessage,
    Busy,
    CursorLost,
    MessageTooLarge,
    NodeError,
    NoPeers,
    NoStore,
    NotSubscribed,
    Slow,
    Unreachable,
)

__all__ = [
    "BadNodeMessage",
    "Busy",
    "CursorLost",
    "MessageTooLarge",
    "NoPeers",
    "NoStore",
    "NodeError",
    "NotSubscribed",
    "Slow",
    "StoreEntry",
    "StorePage",
    "Unreachable",
    "WakuNode",
    "from_json",
    "to_json",
]
