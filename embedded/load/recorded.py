"""The pushes recorded by the development gorush, or by the fakes behind a real one."""

from collections.abc import Callable, Mapping
from http import HTTPStatus

import httpx
import orjson

from kit.http.connections import HttpClient


async def pushes_recorded(
    gorush_url: str, client: HttpClient, *, identify: Callable[[Mapping[str, str]], str], since: int
) -> tuple[list[tuple[str, int]], int] | None:
    """Return what was recorded after ``since``, or None when that gorush keeps no record.

    ``identify`` returns what identifies a push by its data, or an empty text for a push of another bridge, which is
    left out. The result has this of each push with the time of its arrival (Unix nanoseconds), and the ``since`` of
    the next call.
    """
    pushes: list[tuple[str, int]] = []
    while True:
        try:
            answer = await client.request("GET", f"{gorush_url}/dev/pushes?since={since}&limit=10000")
        except httpx.TransportError:
            return None
        if answer.status_code != HTTPStatus.OK:
            return None
        page = orjson.loads(answer.content)
        if not page["pushes"]:
            return pushes, since
        accepted = ((identify(push["data"] or {}), push) for push in page["pushes"] if not push["error"])
        pushes += [(identifier, push["received_ms"] * 1_000_000) for identifier, push in accepted if identifier]
        since = page["last_id"]
