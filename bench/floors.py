"""Measure what one request costs at least: its cryptography in a bare loop, and two POSTs over kept connections."""

import asyncio
from dataclasses import dataclass
from time import process_time
from typing import Any

import aiohttp

from bench import codec, servers

POSTS = 384
WIDTH = 64
ROUNDS = 7
# Sizes of typical bodies: a push for gorush, and a reply for the node.
GORUSH_BYTES, NODE_BYTES = 577, 835


@dataclass(frozen=True, slots=True)
class Floor:
    """CPU milliseconds of one request."""

    crypto_ms: float
    gorush_post_ms: float
    node_post_ms: float

    @property
    def http_ms(self) -> float:
        """Return what both POSTs cost."""
        return self.gorush_post_ms + self.node_post_ms

    @property
    def total_ms(self) -> float:
        """Return the whole floor."""
        return self.crypto_ms + self.http_ms


def measure() -> Floor:
    """Measure the floors. Each is the least of several rounds: other tenants of the machine only ever add."""
    results: dict[str, Any] = codec.run()
    crypto_ms = float(results["decode request"]["floor_us"] + results["encode response"]["floor_us"]) / 1000
    with servers.node() as node_url, servers.gorush() as gorush_url:
        return Floor(
            crypto_ms,
            asyncio.run(post_ms(f"{gorush_url}/dev/nothing", GORUSH_BYTES)),
            asyncio.run(post_ms(f"{node_url}/dev/nothing", NODE_BYTES)),
        )


async def post_ms(url: str, size_bytes: int) -> float:
    """Return the CPU time of a POST by aiohttp, which is the fastest client here."""
    async with aiohttp.ClientSession() as session:
        return min([await _post_all(session, url, b"x" * size_bytes) for _ in range(ROUNDS)])


async def _post_all(session: aiohttp.ClientSession, url: str, body: bytes) -> float:
    started = process_time()
    for _ in range(POSTS // WIDTH):
        await asyncio.gather(*(_post(session, url, body) for _ in range(WIDTH)))
    return (process_time() - started) * 1000 / POSTS


async def _post(session: aiohttp.ClientSession, url: str, body: bytes) -> None:
    async with session.post(url, data=body) as response:
        await response.read()
