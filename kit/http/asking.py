"""HTTP for requests that are rare, by httpx: config checks, alerts, traces."""

import asyncio
from collections.abc import Mapping

import httpx

from kit.http.connections import MAX_ANSWER_BYTES, tls_context


def new_client() -> httpx.AsyncClient:
    """Return a client that asks the hosts of the settings themselves, not the proxies of the environment."""
    headers = {"Accept-Encoding": "identity"}
    return httpx.AsyncClient(trust_env=False, verify=tls_context(), headers=headers, timeout=None)  # noqa: S113 - `ask`


async def ask(
    client: httpx.AsyncClient,
    method: str,
    url: str,
    *,
    seconds: float,
    content: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    max_bytes: int = MAX_ANSWER_BYTES,
) -> httpx.Response:
    """Send one request, and return the answer, which is complete within ``seconds``.

    Raises httpx.HTTPError, httpx.InvalidURL or TimeoutError. httpx's own timeout would start again with every byte.
    """
    async with asyncio.timeout(seconds), client.stream(method, url, content=content, headers=headers) as response:
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise httpx.RemoteProtocolError("the answer is compressed, although the request did not allow it")
        body = bytearray()
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > max_bytes:
                raise httpx.RemoteProtocolError("the answer is too large")
        return httpx.Response(response.status_code, headers=response.headers, content=bytes(body))
