"""What one request costs on its whole way through the server, next to what cannot be avoided.

The way: inbox → decode and decide → gorush → reply encoded → node, with one notification per request, on a real
PostgreSQL, the development gorush and the development node. Counted is the CPU time of this process, which does what
bridge and workers do, and of PostgreSQL; not Celery's handling of the batches, and not the development servers. The
floor is the request's own cryptography in a bare loop, and two keep-alive POSTs by aiohttp. Run alone with
``python -m bench path``.
"""

import asyncio
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import aiohttp
import django
import psutil
from rich.console import Console
from rich.table import Table

from bench import codec, servers
from bench.servers import cpu_seconds

REQUESTS = 4000
CLIENTS = 500
BATCH = 200
TARGET = 0.5
TOPIC = "/waku/2/rs/16/32"


@dataclass(frozen=True, slots=True)
class Servers:
    postgres: psutil.Process
    node_url: str
    gorush_url: str


def run() -> dict[str, object]:
    with ExitStack() as stack:
        running = stack.enter_context(_servers())
        http_floor_ms = asyncio.run(_http_floor_ms(running))
        stages = _measure(running)
    crypto_floor_ms = _crypto_floor_ms()
    total_ms = sum(stages.values())
    result: dict[str, object] = {
        "crypto_floor_ms": crypto_floor_ms,
        "http_floor_ms": http_floor_ms,
        "stages_ms": stages,
        "total_ms": total_ms,
        "efficiency": (crypto_floor_ms + http_floor_ms) / total_ms,
    }
    _print(stages, crypto_floor_ms, http_floor_ms, total_ms)
    return result


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


async def _http_floor_ms(running: Servers) -> float:
    """CPU time of a POST of a typical body to each server, by aiohttp over kept connections."""
    bodies = [(f"{running.gorush_url}/dev/nothing", b"x" * 577), (f"{running.node_url}/dev/nothing", b"x" * 835)]
    rounds, posts, width = 5, 400, 32

    async def post_all(session: aiohttp.ClientSession) -> None:
        for url, body in bodies:
            for _ in range(posts // width):
                await asyncio.gather(*(_post(session, url, body) for _ in range(width)))

    times = []
    async with aiohttp.ClientSession() as session:
        for _ in range(rounds):
            started = process_time()
            await post_all(session)
            times.append((process_time() - started) * 1000 / (posts // width * width))
    return median(times)


async def _post(session: aiohttp.ClientSession, url: str, body: bytes) -> None:
    async with session.post(url, data=body) as response:
        await response.read()


def _measure(running: Servers) -> dict[str, float]:
    """CPU milliseconds per request of each stage, and of PostgreSQL for all of them."""
    from bench.path_stages import Stages  # noqa: PLC0415 - it imports models, so after Django is set up

    stages = Stages(clients=CLIENTS, requests=REQUESTS, batch=BATCH, topic=TOPIC)
    before = cpu_seconds(running.postgres)
    times = {}
    for name, stage in stages.all():
        started = process_time()
        stage()
        times[name] = (process_time() - started) * 1000 / REQUESTS
    times["postgres"] = (cpu_seconds(running.postgres) - before) * 1000 / REQUESTS
    return times


def _print(stages: dict[str, float], crypto: float, http: float, total: float) -> None:
    table = Table(title="One request, inbox → gorush → reply: CPU time")
    table.add_column("part")
    table.add_column("ms", justify="right")
    for name, value in {"floor: cryptography": crypto, "floor: two POSTs": http, **stages, "total": total}.items():
        table.add_row(name, f"{value:.3f}")
    table.add_row("efficiency = floor / total", f"{(crypto + http) / total:.2f} (target {TARGET})")
    Console().print(table)
