"""Benchmark of the time from a client's POST to the commit into the inbox, on an idle system.

A whole bridge, a development node and PostgreSQL run as processes of their own. The commit's time is PostgreSQL's own
(track_commit_timestamp). Messages come one by one at random moments, so that each meets the bridge at another point of
its period. The times are wall-clock times, which other tenants of the machine make longer. Run alone with ``python -m
bench live``.
"""

import random
import time
from statistics import quantiles
from typing import Any

import httpx
import psutil
import psycopg
from rich.console import Console
from rich.table import Table

from bench.nodes.reading import BRIDGE, own_topic, raw_message, surroundings
from bench.running import servers

COUNT = 400
PAUSE_SECONDS = 0.05, 0.25
PAYLOAD_BYTES = 560
TARGET_MS = 250
COMMITTED = "SELECT timestamp_ns, pg_xact_commit_timestamp(xmin), path FROM waku_bridge_inboundenvelope"


def run() -> dict[str, object]:
    """Measure, print and return the figures."""
    with (
        surroundings(track_commit_timestamp="on") as (environment, _),
        servers.process(BRIDGE, env=environment) as bridge,
        psycopg.connect(environment["DATABASE_URL"], autocommit=True) as database,
        httpx.Client(base_url=environment["WAKU_NODES"], trust_env=False) as client,
    ):
        result = _measure(client, database, psutil.Process(bridge.pid))
    _print(result)
    return result


def _measure(
    client: httpx.Client, database: "psycopg.Connection[tuple[Any, ...]]", bridge: psutil.Process
) -> dict[str, object]:
    _publish(client)  # the first waits for the bridge to start
    servers.wait_until(lambda: len(database.execute(COMMITTED).fetchall()) == 1)
    began, cpu = time.perf_counter(), servers.cpu_seconds(bridge)
    for _ in range(COUNT):
        _publish(client)
        time.sleep(random.uniform(*PAUSE_SECONDS))  # noqa: S311 - spreads, guards nothing
    share = (servers.cpu_seconds(bridge) - cpu) / (time.perf_counter() - began)
    servers.wait_until(lambda: len(database.execute(COMMITTED).fetchall()) == COUNT + 1)
    _first, *others = sorted(database.execute(COMMITTED).fetchall())
    return _figures(others) | {"bridge_cpu_share": share}


def _publish(client: httpx.Client) -> None:
    """Publish a message whose timestamp is the moment before the POST."""
    client.post(servers.PUBLISH_PATH, json=raw_message(PAYLOAD_BYTES, own_topic())).raise_for_status()


def _figures(rows: list[tuple[Any, ...]]) -> dict[str, object]:
    delays = sorted(committed_at.timestamp() * 1000 - sent_ns / 1e6 for sent_ns, committed_at, _ in rows)
    percentiles = quantiles(delays, n=100, method="inclusive")
    return {
        "messages": len(rows),
        "live": sum(path == "live" for _, _, path in rows),
        "p50_ms": percentiles[49],
        "p90_ms": percentiles[89],
        "p99_ms": percentiles[98],
        "max_ms": delays[-1],
    }


def _print(result: dict[str, Any]) -> None:
    table = Table(title="From POST to inbox, idle system")
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_column("target", justify="right")
    for name in ("p50_ms", "p90_ms", "p99_ms", "max_ms"):
        table.add_row(name.replace("_", ", "), f"{result[name]:,.0f}", f"≤ {TARGET_MS}" if name == "p99_ms" else "")
    table.add_row("messages, of these by the live path", f"{result['messages']}, {result['live']}", "")
    table.add_row("bridge, share of a core", f"{result['bridge_cpu_share']:.1%}", "")
    Console().print(table)
