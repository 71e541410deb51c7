"""Benchmark of a bridge with a million query topics: what it needs, and how soon it reads.

The topics are in PostgreSQL. Memory and time to load are measured in a fresh process that does nothing else. The whole
bridge is measured from its start until a message on the last of the topics, which waits in the node, is in the inbox.
Both figures are given in wall-clock time, as an operator sees them, and in CPU time, which other tenants of the machine
do not make longer. Run alone with ``python -m bench topics``.
"""

import asyncio
import gc
import json
import random
import sys
import time
from typing import Any

import httpx
import psutil
import psycopg
from rich.console import Console
from rich.table import Table

from bench.nodes.reading import BRIDGE, raw_message, surroundings
from bench.running import servers

COUNT = 1_000_000
LOOKUPS = 200_000
START_SECONDS = 120
MEBIBYTE = 1024 * 1024
TARGETS = {
    "set_mib": ("memory of the topics, MiB", None),
    "load_seconds": ("time to load them, s", 10),
    "load_cpu_seconds": ("CPU time of it, with PostgreSQL's, s", None),
    "lookup_us": ("one look-up of a content topic, µs", None),
    "lookups_per_second": ("look-ups per second", None),
    "bridge_mib": ("memory of the whole bridge, MiB", 200),
    "bridge_start_seconds": ("from its start to its first message, s", 10),
    "bridge_start_cpu_seconds": ("CPU time of it, with PostgreSQL's, s", None),
}
# Names are the hex of 64 bytes. The server itself derives the topic by Keccak-256, which spreads as evenly.
FILL = """
    INSERT INTO registrations_topickey (name, topic, created_at)
    SELECT encode(digest, 'hex'), ('x' || encode(substr(digest, 1, 4), 'hex'))::bit(32)::bigint, now()
    FROM (SELECT sha512(number::text::bytea) AS digest FROM generate_series(1, %s) AS number) AS numbered
"""


def run() -> dict[str, object]:
    """Measure, print and return the figures."""
    with surroundings() as (environment, database):
        topic = _fill(environment["DATABASE_URL"])
        measured = servers.result_of("bench.nodes.topics", database.pid, environment=environment)
        result: dict[str, object] = {"topics": COUNT, **measured}
        result |= _measure_bridge(environment, topic, database)
    _print(result)
    return result


def _fill(database_url: str) -> int:
    """Fill the table and return one of the topics."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(FILL, [COUNT])
        connection.execute("VACUUM ANALYZE registrations_topickey")
        row = connection.execute("SELECT topic FROM registrations_topickey ORDER BY id DESC LIMIT 1").fetchone()
    assert row is not None
    return int(row[0])


def load_and_look_up(database: psutil.Process) -> dict[str, float]:
    """Measure the set of topics in a process of its own: resident memory before and after, and its look-ups."""
    import django  # noqa: PLC0415 - the parent needs no Django

    django.setup()
    from waku_bridge.codec.topics import of_number  # noqa: PLC0415 - once Django is set up
    from waku_bridge.query_topics import QueryTopics  # noqa: PLC0415 - as above
    from waku_bridge.reading.intake import Session  # noqa: PLC0415

    process = psutil.Process()
    gc.collect()
    memory, started, cpu = process.memory_info().rss, time.perf_counter(), servers.cpu_seconds(process, database)
    topics = QueryTopics()
    asyncio.run(Session(topics).execute("SELECT 1"))
    load_seconds, load_cpu_seconds = time.perf_counter() - started, servers.cpu_seconds(process, database) - cpu
    grown = process.memory_info().rss - memory
    numbers = random.Random(1)  # noqa: S311 - the same ones in every run
    names = [of_number(numbers.getrandbits(32)) for _ in range(LOOKUPS)]
    seconds = min(_look_up(topics, names) for _ in range(5))
    return {
        "set_mib": grown / MEBIBYTE,
        "load_seconds": load_seconds,
        "load_cpu_seconds": load_cpu_seconds,
        "lookup_us": seconds / LOOKUPS * 1e6,
        "lookups_per_second": LOOKUPS / seconds,
    }


def _look_up(topics: Any, names: list[str]) -> float:
    started = time.process_time()
    for name in names:
        name in topics  # noqa: B015 - only the asking is measured
    return time.process_time() - started


def _measure_bridge(environment: dict[str, str], topic: int, postgres: psutil.Process) -> dict[str, float]:
    message = raw_message(1, f"/waku/1/0x{topic:08x}/rfc26")
    httpx.post(environment["WAKU_NODES"] + servers.PUBLISH_PATH, json=message, trust_env=False).raise_for_status()
    started, cpu = time.perf_counter(), servers.cpu_seconds(postgres)
    with (
        psycopg.connect(environment["DATABASE_URL"], autocommit=True) as database,
        servers.process(BRIDGE, env=environment) as bridge,
    ):
        servers.wait_until(lambda: _inbox_size(database) == 1, START_SECONDS)
        process = psutil.Process(bridge.pid)
        return {
            "bridge_mib": process.memory_info().rss / MEBIBYTE,
            "bridge_start_seconds": time.perf_counter() - started,
            "bridge_start_cpu_seconds": servers.cpu_seconds(process, postgres) - cpu,
        }


def _inbox_size(database: "psycopg.Connection[tuple[Any, ...]]") -> int:
    row = database.execute("SELECT count(*) FROM waku_bridge_inboundenvelope").fetchone()
    assert row is not None
    return int(row[0])


def _print(result: dict[str, Any]) -> None:
    table = Table(title=f"A bridge with {COUNT:,} query topics")
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_column("target", justify="right")
    for name, (label, target) in TARGETS.items():
        table.add_row(label, f"{result[name]:,.1f}", f"≤ {target}" if target else "")
    Console().print(table)


if __name__ == "__main__":
    print(json.dumps(load_and_look_up(psutil.Process(int(sys.argv[1])))))
