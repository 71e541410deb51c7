"""The floor of one request: its cryptography in a bare loop, and two POSTs over kept connections.

Cores of rented machines are often two threads of one core: the same work takes more CPU time while the other thread is
busy. So there is a second floor, of the same work on all cores at once, as in a saturated server.
"""

import asyncio
import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, process_time
from typing import Any, NamedTuple

import aiohttp

from bench import codec
from bench.running import servers

POSTS, WIDTH, ROUNDS = 384, 64, 7
CROWDED_SECONDS = 5.0
SIZES_BYTES = (577, 835)  # of typical bodies: a push for gorush, and a reply for the node


class Floor(NamedTuple):
    """CPU milliseconds of one request: its cryptography, its POST to gorush, both of its POSTs, and all together."""

    crypto_ms: float
    gorush_post_ms: float
    http_ms: float
    total_ms: float


def measure() -> Floor:
    """Measure the floors. Each is the minimum of several rounds, because other tenants only add to it."""
    results: dict[str, Any] = codec.run()
    crypto_ms = (results["decode request"]["floor_us"] + results["encode response"]["floor_us"]) / 1000
    with _urls() as urls:
        gorush_ms, node_ms = (asyncio.run(_post_ms(*each)) for each in zip(urls, SIZES_BYTES, strict=True))
    return Floor(crypto_ms, gorush_ms, gorush_ms + node_ms, crypto_ms + gorush_ms + node_ms)


def crowded_ms() -> float:
    """Return the CPU milliseconds of one request's cryptography and POSTs while every core does the same work."""
    cores = os.cpu_count() or 1
    with _urls() as urls, multiprocessing.get_context("spawn").Pool(cores) as pool:
        return sum(pool.map(_request_ms, [urls] * cores, chunksize=1)) / cores


@contextmanager
def _urls() -> Iterator[tuple[str, str]]:
    """Run a gorush and a node, and yield an address of each that does nothing."""
    with servers.gorush() as gorush_url, servers.node() as node_url:
        yield f"{gorush_url}/dev/nothing", f"{node_url}/dev/nothing"


def _request_ms(urls: tuple[str, str]) -> float:
    """Return the CPU milliseconds of a request in this process, after a while in which the others have begun, too."""
    asyncio.run(_requests_ms(urls, 1.0))
    return asyncio.run(_requests_ms(urls, CROWDED_SECONDS))


async def _requests_ms(urls: tuple[str, str], seconds: float) -> float:
    crypto = codec.request_floor()
    until, count, started = monotonic() + seconds, 0, process_time()
    async with aiohttp.ClientSession() as session:
        while monotonic() < until:
            for _ in range(WIDTH):
                crypto()
            posts = zip(urls, SIZES_BYTES, strict=True)
            await asyncio.gather(*(_post(session, url, size) for url, size in posts for _ in range(WIDTH)))
            count += WIDTH
    return (process_time() - started) * 1000 / count


async def _post_ms(url: str, size_bytes: int) -> float:
    """Return the CPU time of a POST by aiohttp, which is the fastest client here."""
    rounds_ms = []
    async with aiohttp.ClientSession() as session:
        for _ in range(ROUNDS):
            started = process_time()
            for _ in range(POSTS // WIDTH):
                await asyncio.gather(*(_post(session, url, size_bytes) for _ in range(WIDTH)))
            rounds_ms.append((process_time() - started) * 1000 / POSTS)
    return min(rounds_ms)


async def _post(session: aiohttp.ClientSession, url: str, size_bytes: int) -> None:
    async with session.post(url, data=b"x" * size_bytes) as response:
        await response.read()
