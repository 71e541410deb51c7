"""Lightpush v3: publish a message, and answer with the true number of peers that took it.

The HTTP status is the protocol's own code, also where HTTP has no such status (420, 505 for "no peers").
"""

from collections.abc import Mapping

from aiohttp import web

from embedded.node.envelope import InvalidMessageError, is_static_shard, read_message
from embedded.node.node import NODE, Node
from embedded.node.rest.http import json_reply, read_json
from waku_bridge.messages import WakuMessage

BAD_REQUEST = 400
TOO_LARGE = 413
UNSUPPORTED_TOPIC = 421

routes = web.RouteTableDef()


@routes.post("/lightpush/v3/message")
async def push(request: web.Request) -> web.Response:
    """Publish a message, or refuse it with the protocol's own code."""
    node = request.app[NODE]
    try:
        topic, message = _read_push(await read_json(request), node)
    except InvalidMessageError as exc:
        return _refuse(BAD_REQUEST, f"Invalid push request: {exc}")
    if refusal := _refusal(node, topic, message):
        return refusal
    node.publish(topic, message)
    return json_reply({"relayPeerCount": node.relay_peer_count})


def _refusal(node: Node, topic: str, message: WakuMessage) -> web.Response | None:
    if not is_static_shard(topic):
        return _refuse(UNSUPPORTED_TOPIC, "Unsupported pubsub topic")
    if node.is_too_large(message):
        return _refuse(TOO_LARGE, node.too_large)
    return None


def _read_push(fields: object, node: Node) -> tuple[str, WakuMessage]:
    if not isinstance(fields, Mapping) or not fields.keys() <= {"pubsubTopic", "message"}:
        raise InvalidMessageError("not an object of `pubsubTopic` and `message`")
    topic = fields.get("pubsubTopic")
    if not isinstance(topic, str) or not topic:
        raise InvalidMessageError("Pubsub topic must be specified when static sharding is enabled")
    return topic, read_message(fields.get("message"), now_ns=node.clock_ns())


def _refuse(code: int, description: str) -> web.Response:
    return json_reply({"statusDesc": description}, status=code)
