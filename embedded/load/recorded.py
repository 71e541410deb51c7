"""The pushes recorded by the development gorush, or by the fakes behind a real one."""

from http import HTTPStatus

import httpx
import orjson

from kit.http.connections import HttpClient


async def pushes_recorded(
    gorush_url: str, client: HttpClient, *, key: str, since: int
) -> tuple[list[tuple[str, int]], int] | None:
    """Return what was recorded after ``since``, or None when that gorush keeps no record.

    ``key`` is the one of the ciphertext in a push. Pushes without it are of another bridge, and are left out. The
    result has the ciphertext of each push with the time of its arrival (Unix nanoseconds), and the ``since`` of the
    next call.
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
        accepted = (push for push in page["pushes"] if not push["error"] and key in (push["data"] or {}))
        pushes += [(str(push["data"][key]), push["received_ms"] * 1_000_000) for push in accepted]
        since = page["last_id"]
