"""The floor of one request: its cryptography in a bare loop, and two POSTs over kept connections.

Cores of rented machines are often two threads of one core: the same work takes more CPU time while the other thread is
busy. So there is a second floor, of the same work on all cores at once, as in a saturated server.
"""

import asyncio
import multiprocessing
import os
from dataclasses import dataclass
from time import monotonic, process_time
from typing import Any

import aiohttp

from bench.request import codec
from bench.running import servers

POSTS = 384
WIDTH = 64
ROUNDS = 7
CROWDED_SECONDS = 5.0
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
        """Return the CPU time of both POSTs."""
        return self.gorush_post_ms + self.node_post_ms

    @property
    def total_ms(self) -> float:
        """Return the whole floor."""
        return self.crypto_ms + self.http_ms


def measure() -> Floor:
    """Measure the floors. Each is the minimum of several rounds, because other tenants only add to it."""
    results: dict[str, Any] = codec.run()
    crypto_ms = float(results["decode request"]["floor_us"] + results["encode response"]["floor_us"]) / 1000
    with servers.node() as node_url, servers.gorush() as gorush_url:
        return Floor(
            crypto_ms,
            asyncio.run(post_ms(f"{gorush_url}/dev/nothing", GORUSH_BYTES)),
            asyncio.run(post_ms(f"{node_url}/dev/nothing", NODE_BYTES)),
        )


def crowded_ms() -> float:
    """Return the CPU milliseconds of one request's cryptography and POSTs while every core does the same work."""
    cores = os.cpu_count() or 1
    with (
        servers.node() as node_url,
        servers.gorush() as gorush_url,
        multiprocessing.get_context("spawn").Pool(cores) as pool,
    ):
        urls = f"{gorush_url}/dev/nothing", f"{node_url}/dev/nothing"
        each = pool.starmap(_request_ms, [(urls, CROWDED_SECONDS)] * cores, chunksize=1)
    return sum(each) / cores


def _request_ms(urls: tuple[str, str], seconds: float) -> float:
    """Return the CPU milliseconds of a request in this process, after a while in which the others have begun, too."""
    asyncio.run(_requests_ms(urls, 1.0))
    return asyncio.run(_requests_ms(urls, seconds))


async def _requests_ms(urls: tuple[str, str], seconds: float) -> float:
    crypto = codec.request_floor()
    until, count, started = monotonic() + seconds, 0, process_time()
    async with aiohttp.ClientSession() as session:
        while monotonic() < until:
            for _ in range(WIDTH):
                crypto()
            bodies = zip(urls, (b"x" * GORUSH_BYTES, b"x" * NODE_BYTES), strict=True)
            await asyncio.gather(*(_post(session, url, body) for url, body in bodies for _ in range(WIDTH)))
            count += WIDTH
    return (process_time() - started) * 1000 / count


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
