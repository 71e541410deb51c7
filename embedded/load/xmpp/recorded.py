"""The pushes recorded by the development gorush, or by the fakes behind a real one."""

from http import HTTPStatus

import httpx
import orjson

from kit.http.connections import HttpClient

# The key of the ciphertext in a device's push, in the generic style.
CIPHERTEXT_KEY = "e"


async def pushes_recorded(
    gorush_url: str, client: HttpClient, *, since: int
) -> tuple[list[tuple[str, int]], int] | None:
    """Return what was recorded after ``since``, or None when that gorush keeps no record.

    The result has the ciphertext of each push with the time of its arrival (Unix nanoseconds), and the ``since`` of the
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
        accepted = (push for push in page["pushes"] if not push["error"] and CIPHERTEXT_KEY in (push["data"] or {}))
        pushes += [(str(push["data"][CIPHERTEXT_KEY]), push["received_ms"] * 1_000_000) for push in accepted]
        since = page["last_id"]
