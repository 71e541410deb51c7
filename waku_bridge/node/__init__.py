"""A Waku node as the bridge sees it: `client` asks it, `dialect` understands its JSON, `errors` names what fails."""

from waku_bridge.node.client import WakuNode
from waku_bridge.node.dialect import from_json, to_json
from waku_bridge.node.errors import BadNodeMessage, NodeError, NotSubscribed

__all__ = ["BadNodeMessage", "NodeError", "NotSubscribed", "WakuNode", "from_json", "to_json"]
