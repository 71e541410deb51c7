"""What one request costs on its whole way through the server, next to what cannot be avoided.

The way: inbox → decode and decide → gorush → reply encoded → node, with one notification per request, on a real
PostgreSQL, the development gorush and the development node. Counted is the CPU time of this process, which does what
bridge and workers do, and of PostgreSQL; not Celery's handling of the batches, and not the development servers. The
floor is the request's own cryptography in a bare loop, and two keep-alive POSTs by aiohttp. Every figure is the least
of several rounds: other tenants of the machine only ever add. Run alone with ``python -m bench path``.
"""

import asyncio
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

import aiohttp
import django
import psutil
from rich.console import Console
from rich.table import Table

from bench import codec, servers
from bench.servers import cpu_seconds

ROUNDS = 8
REQUESTS = 1000
CLIENTS = 200
BATCH = 200
EFFICIENCY_TARGET = 0.5
DISPATCH_TARGET_MS = 0.4  # CPU time of ours per notification, PostgreSQL's not counted
TOPIC = "/waku/2/rs/16/32"


# Names of what is measured: the POSTs of the floor, and the stage that is dispatch.
POSTS = ("POST to gorush", "POST to the node")
DISPATCH = "gorush"


@dataclass(frozen=True, slots=True)
class Servers:
    postgres: psutil.Process
    node_url: str
    gorush_url: str


@dataclass(frozen=True, slots=True)
class Floor:
    """What one request cannot cost less than."""

    crypto_ms: float
    gorush_post_ms: float
    node_post_ms: float

    @property
    def http_ms(self) -> float:
        return self.gorush_post_ms + self.node_post_ms

    @property
    def total_ms(self) -> float:
        return self.crypto_ms + self.http_ms


def run() -> dict[str, object]:
    with ExitStack() as stack:
        running = stack.enter_context(_servers())
        rounds = [_measure_round(running) for _ in range(ROUNDS)]
    least = {part: min(times[part] for times in rounds) for part in rounds[0]}
    posts_ms = [least.pop(server) for server in POSTS]
    total_ms = sum(least.values())
    floor = Floor(_crypto_floor_ms(), *posts_ms)
    _print(least, floor, total_ms)
    return {
        "crypto_floor_ms": floor.crypto_ms,
        "http_floor_ms": floor.http_ms,
        "gorush_post_floor_ms": floor.gorush_post_ms,
        "stages_ms": least,
        "dispatch_ms": least[DISPATCH],
        "dispatch_target_ms": DISPATCH_TARGET_MS,
        "total_ms": total_ms,
        "efficiency": floor.total_ms / total_ms,
    }


@contextmanager
def _servers() -> Iterator[Servers]:
    """A PostgreSQL with its usual safety, a node and a gorush, for the length of the benchmark."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name, ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)
        database_url, database = stack.enter_context(servers.postgres(folder))
        node_url = stack.enter_context(servers.node("--shard", TOPIC))
        gorush_url = stack.enter_context(servers.gorush())
        _set_up_django(folder, database_url, node_url, gorush_url)
        yield Servers(database, node_url, gorush_url)
        _close_connections()


def _set_up_django(folder: Path, database_url: str, node_url: str, gorush_url: str) -> None:
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "pushserver.settings",
        "DATA_DIR": str(folder / "data"),
        "DATABASE_URL": database_url,
        "WAKU_NODES": node_url,
        "GORUSH_URL": gorush_url,
        "DEBUG": "0",
        "SECRET_KEY": "only-for-the-benchmark-and-long-enough-for-it",
        "FIELD_ENCRYPTION_KEYS": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
        "SERVER_PRIVATE_KEY": "02" * 32,
    }
    django.setup()
    logging.disable(logging.INFO)
    from django.core.management import call_command  # noqa: PLC0415 - once Django is set up

    call_command("migrate", verbosity=0)


def _close_connections() -> None:
    from django.db import connections  # noqa: PLC0415

    connections.close_all()


def _crypto_floor_ms() -> float:
    """ECIES open, two recoveries; two signatures, ECIES seal: the bare loops of the codec benchmark."""
    results: dict[str, Any] = codec.run()
    return float(results["decode request"]["floor_us"] + results["encode response"]["floor_us"]) / 1000


async def _posts_ms(running: Servers) -> dict[str, float]:
    """CPU time of a POST of a typical body to each server, by aiohttp over kept connections."""
    urls, sizes = (f"{running.gorush_url}/dev/nothing", f"{running.node_url}/dev/nothing"), (577, 835)
    times = {}
    async with aiohttp.ClientSession() as session:
        for name, url, size in zip(POSTS, urls, sizes, strict=True):
            times[name] = min([await _post_all(session, url, b"x" * size) for _ in range(5)])
    return times


async def _post_all(session: aiohttp.ClientSession, url: str, body: bytes) -> float:
    posts, width = 384, 64
    started = process_time()
    for _ in range(posts // width):
        await asyncio.gather(*(_post(session, url, body) for _ in range(width)))
    return (process_time() - started) * 1000 / posts


async def _post(session: aiohttp.ClientSession, url: str, body: bytes) -> None:
    async with session.post(url, data=body) as response:
        await response.read()


def _measure_round(running: Servers) -> dict[str, float]:
    """CPU milliseconds per request of each stage, of PostgreSQL for all of them, and of the POSTs at the same time."""
    from bench.path_stages import Stages  # noqa: PLC0415 - it imports models, so after Django is set up

    stages = Stages(clients=CLIENTS, requests=REQUESTS, batch=BATCH, topic=TOPIC)
    times = asyncio.run(_posts_ms(running))
    before = cpu_seconds(running.postgres)
    for name, stage in stages.all():
        started = process_time()
        stage()
        times[name] = (process_time() - started) * 1000 / REQUESTS
    times["postgres"] = (cpu_seconds(running.postgres) - before) * 1000 / REQUESTS
    return times


def _print(stages: dict[str, float], floor: Floor, total_ms: float) -> None:
    table = Table(title="One request, inbox → gorush → reply: CPU time")
    table.add_column("part")
    table.add_column("ms", justify="right")
    parts = {"floor: cryptography": floor.crypto_ms, "floor: two POSTs": floor.http_ms, **stages, "total": total_ms}
    for name, value in parts.items():
        table.add_row(name, f"{value:.3f}")
    ratio = stages[DISPATCH] / floor.gorush_post_ms
    dispatch = (
        f"{stages[DISPATCH]:.3f} (target {DISPATCH_TARGET_MS}), {ratio:.1f} times the POST's {floor.gorush_post_ms:.3f}"
    )
    table.add_row("dispatch per notification", dispatch)
    table.add_row("efficiency = floor / total", f"{floor.total_ms / total_ms:.2f} (target {EFFICIENCY_TARGET})")
    Console().print(table)
