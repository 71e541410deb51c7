"""Benchmark of the store walker: the messages per second that it can follow on one core, next to their floor.

A window of a store (the development node, which keeps it in SQLite) is read twice into PostgreSQL by a walker in a
process of its own. The first time all messages are new, as after an outage. The second time all are known, as in most
passes. The sustained rate follows from both: each message is read once itself and twice by its hash. The walker's own
CPU time is counted, and PostgreSQL's separately. The floor of a message is its share of a page parsed by orjson, its
base64 decoded and its SHA-256 computed. Run alone with ``python -m bench walker``.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from base64 import b64decode
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from time import process_time
from typing import Any

import orjson
import psutil
from rich.console import Console
from rich.table import Table

from bench.nodes.reading import own_topic, raw_message, surroundings
from bench.running import servers
from bench.running.servers import TOPIC
from embedded.node.archive import Archive
from waku_bridge.codec.topics import message_hash
from waku_bridge.messages import WakuMessage

COUNT = 30_000
OURS_OF_TEN = 1
PAYLOAD_BYTES = 560
PAGE = 100
STORE = "store.sqlite3"
PERIOD_SECONDS = 3
# Reads of each message's hash: one while it is fresh and one while it is late, when no message is missing.
HASH_READS = 2
TARGET = 500
ROWS = {
    "floor_us": ("floor of a message: parse, decode, hash", "µs CPU", None),
    "unknown_us": ("a message that is not known", "µs CPU", None),
    "ratio": ("floor / that", "", None),
    "known_us": ("a hash that is known", "µs CPU", None),
    "postgres_us": ("PostgreSQL, per unknown message", "µs CPU", None),
    "catching_up_per_second": ("catching up, on one core", "messages/s", None),
    "keeps_up_with_per_second": ("keeps up with, on one core", "messages/s", TARGET),
    "wall_per_second": ("catching up by the clock, with the node's own work", "messages/s", None),
}


def run() -> dict[str, object]:
    """Measure, print and return the figures."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        started_at = _fill(Path(folder) / STORE)
        with surroundings("--data", f"{folder}/{STORE}") as (environment, database):
            walked = servers.result_of("bench.nodes.walker", database.pid, started_at, environment=environment)
    result: dict[str, object] = {"messages": COUNT, "ours_of_ten": OURS_OF_TEN, **walked}
    _print(result)
    return result


def _fill(file: Path) -> int:
    """Write one message per millisecond, the last of them now. Return the time of the first, in Unix nanoseconds."""
    started_ns = time.time_ns() - COUNT * 10**6
    archive = Archive(file)
    for number in range(COUNT):
        is_ours = number % 10 < OURS_OF_TEN
        topic = own_topic() if is_ours else f"/waku/1/0x{number:08x}/rfc26"
        message = WakuMessage(os.urandom(PAYLOAD_BYTES), topic, started_ns + number * 10**6)
        archive.insert(message_hash(TOPIC, message), TOPIC, message)
    archive.close()
    return started_ns


def measure(database: psutil.Process, started_ns: int) -> dict[str, float]:
    """Measure the walker in a process of its own, whose CPU time is the walker's."""
    import django  # noqa: PLC0415 - the parent needs no Django

    django.setup()
    return asyncio.run(_walk(database, started_ns))


async def _walk(database: psutil.Process, started_ns: int) -> dict[str, float]:
    from django.conf import settings  # noqa: PLC0415 - once Django is set up

    from kit.http.connections import new_client  # noqa: PLC0415
    from kit.processes.leader import Term  # noqa: PLC0415
    from waku_bridge.models import InboundEnvelope  # noqa: PLC0415
    from waku_bridge.node import WakuNode  # noqa: PLC0415
    from waku_bridge.query_topics import QueryTopics  # noqa: PLC0415
    from waku_bridge.reading.intake import Intake, Session  # noqa: PLC0415
    from waku_bridge.reading.store.walker import StoreWalker  # noqa: PLC0415
    from waku_bridge.reading.store.windows import Window  # noqa: PLC0415

    session = Session(QueryTopics())
    intake = Intake(session, keep=timedelta(days=3))
    start = datetime.fromtimestamp(started_ns // 10**9, UTC)
    window = Window(start, start + timedelta(seconds=COUNT / 1000 + 2))
    async with new_client(timeout_seconds=30, max_answer_bytes=2**26) as client:
        node = WakuNode(settings.WAKU_NODES[0], client)
        walker = StoreWalker(node, TOPIC, intake, period_seconds=PERIOD_SECONDS, recovery=timedelta(hours=1))
        figures = []
        for _ in range(2):
            began, cpu, other = time.perf_counter(), process_time(), servers.cpu_seconds(database)
            await walker._read_whole(window, Term(asyncio.Event()), loop="fast")  # noqa: SLF001 - a pass without its times
            spent = process_time() - cpu, servers.cpu_seconds(database) - other, time.perf_counter() - began
            figures.append([seconds / COUNT * 1e6 for seconds in spent])
    await session.close()
    assert await asyncio.to_thread(InboundEnvelope.objects.count) == COUNT * OURS_OF_TEN // 10
    return _figures(figures)


def _figures(figures: list[list[float]]) -> dict[str, float]:
    (unknown_us, postgres_us, wall_us), (known_us, _, _) = figures
    floor_us = _floor_us()
    return {
        "floor_us": floor_us,
        "unknown_us": unknown_us,
        "ratio": floor_us / unknown_us,
        "known_us": known_us,
        "postgres_us": postgres_us,
        "catching_up_per_second": 1e6 / unknown_us,
        "keeps_up_with_per_second": 1e6 / (unknown_us + HASH_READS * known_us),
        "wall_per_second": 1e6 / wall_us,
    }


def _floor_us() -> float:
    entries = [
        {
            "messageHash": f"0x{os.urandom(32).hex()}",
            "message": raw_message(PAYLOAD_BYTES, own_topic()),
            "pubsubTopic": TOPIC,
        }
        for _ in range(PAGE)
    ]
    page = orjson.dumps({"statusCode": 200, "messages": entries})
    rounds = 200
    started = process_time()
    for _ in range(rounds):
        for entry in orjson.loads(page)["messages"]:
            sha256(b64decode(entry["message"]["payload"])).digest()
    return (process_time() - started) / rounds / PAGE * 1e6


def _print(result: dict[str, Any]) -> None:
    table = Table(title=f"Store walker, {COUNT:,} messages, {OURS_OF_TEN} of ten ours")
    for column in ("figure", "value", "unit", "target"):
        table.add_column(column, justify="right" if column in {"value", "target"} else "left")
    for name, (label, unit, target) in ROWS.items():
        digits = 2 if name == "ratio" else 0 if unit == "messages/s" else 1
        table.add_row(label, f"{result[name]:,.{digits}f}", unit, f"≥ {target}" if target else "")
    Console().print(table)


if __name__ == "__main__":
    print(json.dumps(measure(psutil.Process(int(sys.argv[1])), int(sys.argv[2]))))
