"""Benchmark of growth: the cost of a message with more worker processes, and with more stores, on this machine's cores.

The development servers and all processes share the cores, so wall-clock times say nothing about more cores. The CPU
time of one message over all processes of the server does: it shows what the processes cost each other. While it does
not grow, more cores process more messages, until PostgreSQL has none left.

Stores are read by a bridge alone, whose first node is read live, too. A read is a message that a node delivered in any
way, also only as a hash. The search for late messages, every ten minutes, does not show in a run this short.
"""

import os
import random
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

import httpx
import psutil
from coincurve import PrivateKey
from prometheus_client.mmap_dict import MmapedDict

from bench.running import servers
from bench.running.servers import SERVER_KEY, TOPIC
from bench.running.tables import show
from bench.throughput import with_processes
from kit.db.base import fetch
from waku_bridge.codec import wire
from waku_bridge.dialect import to_json
from waku_bridge.messages import WakuMessage

PROCESSES, STORES = (1, 2, 4, 8), (1, 2, 4)
RATE, SECONDS = 100, 10.0
PAYLOAD_BYTES = 560
WAVE_SECONDS = 0.01
BEFORE_SECONDS, SETTLING_SECONDS = 2.0, 12.0  # the latter until the last message was read from the stores, too
CLIENT = httpx.Client(trust_env=False)
READ = "pushserver_bridge_messages_read_total"
OWN_TOPIC = wire.content_topic(wire.personal_name(PrivateKey(bytes.fromhex(SERVER_KEY)).public_key.format()))


def run() -> dict[str, object]:
    """Measure, print and return the figures."""
    processes = {number: with_processes(number) for number in PROCESSES}
    by_process = {number: {"total": run.cpu_ms, **run.by_process()} for number, run in processes.items()}
    stores = {number: servers.in_own_process(_reading, number) for number in STORES}
    _show("CPU time of one request at saturation, milliseconds", "processes", by_process)
    _show(f"Reading {RATE} messages a second, milliseconds each, and a bridge with nothing to read", "stores", stores)
    return {"processes": by_process, "stores": stores}


def _show(title: str, first: str, figures: dict[int, dict[str, float]]) -> None:
    """Print the figures that are not 0 everywhere."""
    names = [name for name in figures[1] if any(each.get(name, 0) > 0.01 for each in figures.values())]
    rows = {str(number): [each.get(name, 0.0) for name in names] for number, each in figures.items()}
    show(title, (first, *names), rows)


def _reading(stores: int) -> dict[str, float]:
    """Return the costs of reading from ``stores`` stores, that of the node that is read live first."""
    with servers.around_django() as around, ExitStack() as stack:
        further = [stack.enter_context(servers.node("--shard", TOPIC)) for _ in range(stores - 1)]
        urls = [os.environ["WAKU_NODES"], *further]
        environment = os.environ | {"WAKU_STORE_NODES": ",".join(urls)}
        command = [sys.executable, "manage.py", "run_waku_bridge"]
        bridge = psutil.Process(stack.enter_context(servers.process(command, env=environment)).pid)
        _gossip(urls, [0])
        servers.wait_until(lambda: _known() == 1)
        roots, metrics = {"bridge": bridge, "postgres": around.postgres}, around.folder / "data" / "metrics"
        idle, _ = _spent(roots, urls, rate=0)
        reads = _reads(metrics)
        busy, sent = _spent(roots, urls, rate=RATE)
        servers.wait_until(lambda: _known() == 1 + (sent + 1) // 2)
        time.sleep(SETTLING_SECONDS)
        costs = {name: seconds / sent * 1e3 for name, seconds in busy.items()}
        costs["reads of each"] = (_reads(metrics) - reads) / sent
        return costs | {"idle bridge, % of a core": 100 * idle["bridge"] / SECONDS}


def _spent(roots: dict[str, psutil.Process], urls: Sequence[str], *, rate: int) -> tuple[dict[str, float], int]:
    """Send messages at an even rate for a while, every second one for us. Return the CPU seconds and the number."""
    time.sleep(BEFORE_SECONDS)
    before = {name: servers.cpu_seconds(process) for name, process in roots.items()}
    sent, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < SECONDS:
        sent += _gossip(urls, range(sent, round(elapsed * rate)))
        time.sleep(max(0.0, began + elapsed + WAVE_SECONDS - time.perf_counter()))
    return {name: servers.cpu_seconds(process) - before[name] for name, process in roots.items()}, sent


def _gossip(urls: Sequence[str], numbers: Iterable[int]) -> int:
    """Publish messages with these numbers to all nodes, and return how many. Every second one is for us."""
    wave = []
    for number in numbers:
        topic = f"/waku/1/0x{random.getrandbits(32):08x}/rfc26" if number % 2 else OWN_TOPIC
        message = to_json(WakuMessage(os.urandom(PAYLOAD_BYTES), topic, time.time_ns()))
        wave.append({"pubsubTopic": TOPIC, "message": message, "isOurs": number % 2 == 0})
    for url in urls if wave else ():
        CLIENT.post(f"{url}/dev/gossip", json=wave).raise_for_status()
    return len(wave)


def _known() -> int:
    [(number,)] = fetch("SELECT count(*) FROM waku_bridge_inboundenvelope", {})
    return int(number)


def _reads(metrics: Path) -> float:
    """Return the number of messages that the bridge has read, from the files of its counters."""
    return sum(
        value
        for file in metrics.glob("counter_*.db")
        for key, value, *_ in MmapedDict.read_all_values_from_file(str(file))  # type: ignore[no-untyped-call]
        if READ in key
    )
