"""Benchmark of one request on its whole way through the server, next to its floor.

The way: inbox → batches of one worker (decode, decide, push, record, reply, note) → node. Each request has one
notification. PostgreSQL, the development gorush and the development node run beside this process.

The CPU time of this process is counted, which does the work of the bridge and of a worker process, and that of
PostgreSQL. That of the development servers is not. The table shows each step of a batch, the rest of the thread
(searches for rows, commits), and the event loop with its POSTs. The floor is the request's own cryptography in a bare
loop, and two keep-alive POSTs by aiohttp. Every figure is the minimum of several rounds, because other tenants of the
machine only add to it. Run alone with ``python -m bench path``.
"""

import logging
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from bench.running import floors, servers
from bench.running.floors import Floor
from bench.running.servers import TOPIC

ROUNDS = 8
REQUESTS = 1000
CLIENTS = 200
BATCH = 200
EFFICIENCY_TARGET = 0.5
# The name of a figure: the event loop that sends our POSTs.
LOOP = "event loop: two POSTs"


def run() -> dict[str, object]:
    """Measure, print and return the figures."""
    with servers_of_one_process() as postgres:
        minimum = minimum_of(ROUNDS, postgres)
    total_ms = sum(minimum.values())
    floor = floors.measure()
    _print(minimum, floor, total_ms)
    return {
        "crypto_floor_ms": floor.crypto_ms,
        "http_floor_ms": floor.http_ms,
        "gorush_post_floor_ms": floor.gorush_post_ms,
        "stages_ms": minimum,
        "loop_ms": minimum[LOOP],
        "total_ms": total_ms,
        "efficiency": floor.total_ms / total_ms,
    }


def minimum_of(rounds: int, postgres: psutil.Process) -> dict[str, float]:
    """Return the minimum CPU milliseconds of each part of a request over some rounds, 0 for an unneeded part."""
    measured = [_measure_round(postgres) for _ in range(rounds)]
    parts = dict.fromkeys(part for times in measured for part in times)
    return {part: min(times.get(part, 0.0) for times in measured) for part in parts}


@contextmanager
def servers_of_one_process() -> Iterator[psutil.Process]:
    """Run PostgreSQL with its usual durability, a node and a gorush. The value is the process of PostgreSQL."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name, ExitStack() as stack:
        folder = Path(name)
        database_url, database = stack.enter_context(servers.postgres(folder))
        node_url = stack.enter_context(servers.node("--shard", TOPIC))
        gorush_url = stack.enter_context(servers.gorush())
        servers.set_up_django(folder, database_url, WAKU_NODES=node_url, GORUSH_URL=gorush_url)
        logging.disable(logging.INFO)
        yield database
        servers.close_connections()


def _measure_round(postgres: psutil.Process) -> dict[str, float]:
    """Return the CPU milliseconds per request of each step, and of PostgreSQL for all of them."""
    from bench.request.path_parts import Parts  # noqa: PLC0415 - it imports models, so after Django is set up

    seconds = Parts(postgres, clients=CLIENTS, requests=REQUESTS, batch=BATCH).run()
    return {name: each * 1000 / REQUESTS for name, each in seconds.items()}


def _print(parts: dict[str, float], floor: Floor, total_ms: float) -> None:
    table = Table(title="One request, inbox → gorush → reply: CPU time")
    table.add_column("part")
    table.add_column("ms", justify="right")
    rows = {"floor: cryptography": floor.crypto_ms, "floor: two POSTs": floor.http_ms, **parts, "total": total_ms}
    for name, value in rows.items():
        table.add_row(name, f"{value:.3f}")
    table.add_row("event loop / two POSTs", f"{parts[LOOP] / floor.http_ms:.1f}")
    table.add_row("efficiency = floor / total", f"{floor.total_ms / total_ms:.2f} (target {EFFICIENCY_TARGET})")
    Console().print(table)
