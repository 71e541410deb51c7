"""HTTP client of a Waku node: nwaku's REST interface, with the liberties that go-waku takes.

Reading drains: what a GET returned is gone from the node, so the caller must store a page before it does anything else.
"""

from typing import Any
from urllib.parse import quote

import httpx
import orjson

from waku_bridge.messages import WakuMessage
from waku_bridge.node.dialect import parse, to_json
from waku_bridge.node.errors import NodeError, NotSubscribed

JSON_HEADERS = {"Content-Type": "application/json"}
HTTP_OK = 200
HTTP_BAD_REQUEST = 400
HTTP_NOT_FOUND = 404


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
            return parse(response.content)
        except (ValueError, RecursionError) as error:
            raise NodeError(f"{self.url} answered something else than JSON") from error
