"""HTTP client of a Waku node: nwaku's REST interface, with the liberties that go-waku takes.

Reading drains: what a GET returned is gone from the node, so the caller must store a page before it does anything else.
"""

import base64
import binascii
import json
from typing import Any
from urllib.parse import quote

import httpx
import orjson

from waku_bridge.messages import WakuMessage

JSON_HEADERS = {"Content-Type": "application/json"}
INT64_MAX = 2**63 - 1
HTTP_OK = 200
HTTP_BAD_REQUEST = 400
HTTP_NOT_FOUND = 404


class NodeError(Exception):
    """The node cannot be reached, or did not do what it was asked.

    NodeError
    ├── NotSubscribed       the node forgot the shard, usually because it restarted
    └── BadNodeMessage      one message of a page is not what 14/WAKU2-MESSAGE describes
    """


class NotSubscribed(NodeError):  # noqa: N818 - says what is wrong
    pass


class BadNodeMessage(NodeError):  # noqa: N818 - says what is wrong
    pass


class WakuNode:
    """One node at ``url``; ``client`` is shared and belongs to the caller."""

    def __init__(self, url: str, client: httpx.AsyncClient) -> None:
        self.url = url
        self._client = client
        self._has_lightpush = True

    async def subscribe(self, pubsub_topic: str) -> None:
        """Have the node keep the messages of a shard for us. Repeating it is harmless on nwaku."""
        await self._post("/relay/v1/subscriptions", [pubsub_topic])

    async def read(self, pubsub_topic: str) -> list[Any]:
        """Drain the node's cache: raw JSON objects, roughly in the order they arrived."""
        response = await self._call("GET", f"/relay/v1/messages/{quote(pubsub_topic, safe='')}")
        if response.status_code == HTTP_NOT_FOUND:
            raise NotSubscribed(self.url)
        page = self._json(response)
        if page is None:  # go-waku's way of saying nothing
            return []
        if not isinstance(page, list):
            raise NodeError(f"{self.url} answered a read with something else than a list")
        return page

    async def publish(self, pubsub_topic: str, message: WakuMessage) -> None:
        """Hand a message to the network: by lightpush, which tells how many peers took it, else by relay."""
        if self._has_lightpush and await self._lightpush(pubsub_topic, message):
            return
        path = f"/relay/v1/messages/{quote(pubsub_topic, safe='')}"
        try:
            await self._post(path, to_json(message))
        except NotSubscribed:
            await self.subscribe(pubsub_topic)
            await self._post(path, to_json(message))

    async def stored(self, **params: Any) -> list[Any]:
        """One page of store v3 (GET /store/v3/messages) with the messages themselves, oldest first."""
        response = await self._call("GET", "/store/v3/messages", params={"includeData": "true", **params})
        page = self._json(response)
        return list(page.get("messages") or []) if isinstance(page, dict) else []

    async def _lightpush(self, pubsub_topic: str, message: WakuMessage) -> bool:
        body = {"pubsubTopic": pubsub_topic, "message": to_json(message)}
        response = await self._call("POST", "/lightpush/v3/message", body)
        self._has_lightpush = response.status_code != HTTP_NOT_FOUND
        return response.status_code == HTTP_OK

    async def _post(self, path: str, body: Any) -> None:
        response = await self._call("POST", path, body)
        if response.status_code == HTTP_BAD_REQUEST and b"subscribed" in response.content:
            raise NotSubscribed(self.url)
        if response.status_code != HTTP_OK:
            raise NodeError(f"{self.url}{path} answered {response.status_code}")

    async def _call(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        content = None if body is None else orjson.dumps(body)
        try:
            return await self._client.request(method, self.url + path, content=content, headers=JSON_HEADERS, **options)
        except httpx.HTTPError as error:
            raise NodeError(f"{self.url} cannot be reached: {type(error).__name__}") from error

    def _json(self, response: httpx.Response) -> Any:
        if response.status_code != HTTP_OK:
            raise NodeError(f"{self.url} answered {response.status_code}")
        try:
            return _parse(response.content)
        except (ValueError, RecursionError) as error:
            raise NodeError(f"{self.url} answered something else than JSON") from error


def _parse(content: bytes) -> Any:
    """A page is gone from the node once it is read, so one message with a broken text must not cost its neighbours:
    nwaku passes content topics on as they came, whether they are UTF-8 or not.
    """
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return json.loads(content.decode(errors="replace"), strict=False)


def to_json(message: WakuMessage) -> dict[str, Any]:
    return {
        "payload": base64.b64encode(message.payload).decode(),
        "contentTopic": message.content_topic,
        "version": message.version,
        "timestamp": message.timestamp_ns,
        "ephemeral": message.ephemeral,
    }


def from_json(raw: Any) -> WakuMessage:
    """Read one message of a page; fields that a node leaves out are zero. Raises BadNodeMessage."""
    if not isinstance(raw, dict):
        raise BadNodeMessage("not an object")
    content_topic = raw.get("contentTopic")
    if not isinstance(content_topic, str):
        raise BadNodeMessage("no content topic")
    return WakuMessage(
        payload=_bytes(raw, "payload"),
        content_topic=content_topic,
        timestamp_ns=_integer(raw, "timestamp"),
        version=_integer(raw, "version"),
        ephemeral=bool(raw.get("ephemeral")),
        meta=_bytes(raw, "meta"),
    )


def _bytes(raw: dict[str, Any], name: str) -> bytes:
    text = raw.get(name) or ""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise BadNodeMessage(f"{name} is not base64") from None


def _integer(raw: dict[str, Any], name: str) -> int:
    value = raw.get(name) or 0
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > INT64_MAX:
        raise BadNodeMessage(f"{name} is not a 64-bit integer")
    return value
