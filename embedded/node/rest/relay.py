"""Relay with static sharding: `/relay/v1/subscriptions` and `/relay/v1/messages/{pubsubTopic}`."""

from aiohttp import web

from embedded.node.envelope import InvalidMessageError, is_static_shard, read_message, relay_fields
from embedded.node.node import NODE
from embedded.node.rest.http import json_reply, ok, read_json

routes = web.RouteTableDef()


@routes.post("/relay/v1/subscriptions")
async def subscribe(request: web.Request) -> web.Response:
    for topic in await _read_topics(request):
        request.app[NODE].subscribe(topic)
    return ok()


@routes.delete("/relay/v1/subscriptions")
async def unsubscribe(request: web.Request) -> web.Response:
    for topic in await _read_topics(request):
        request.app[NODE].unsubscribe(topic)
    return ok()


async def _read_topics(request: web.Request) -> list[str]:
    topics = await read_json(request)
    if not isinstance(topics, list) or not all(isinstance(topic, str) for topic in topics):
        raise InvalidMessageError("Invalid content body, could not decode: not a list of topics")
    if bad := [topic[:100] for topic in topics if not is_static_shard(topic)]:
        raise InvalidMessageError(f"Invalid pubsub topic(s): {bad}")
    return topics


@routes.get("/relay/v1/messages/{pubsubTopic}", allow_head=False)
async def drain(request: web.Request) -> web.Response:
    """Answer with everything on the topic, and forget it before the answer has arrived."""
    node = request.app[NODE]
    messages = node.drain(request.match_info["pubsubTopic"])
    if messages is None:
        return web.Response(status=404)
    return json_reply([relay_fields(message) for message in messages])


@routes.post("/relay/v1/messages/{pubsubTopic}")
async def publish(request: web.Request) -> web.Response:
    """Answer OK even when no peer took the message. The body is read only for a shard that the node has joined."""
    node, topic = request.app[NODE], request.match_info["pubsubTopic"]
    if not node.ring.is_subscribed(topic):
        raise InvalidMessageError(f"Failed to publish: Node not subscribed to topic: {topic[:100]}")
    message = read_message(await read_json(request), now_ns=node.clock_ns())
    if node.is_too_large(message):
        raise InvalidMessageError(f"Failed to publish: {node.too_large}")
    node.publish(topic, message)
    return ok()
