"""Benchmark of reading: reads of each message, and their cost, for an idle bridge, 20 messages per second, and a flood.

A whole bridge as `manage.py up` starts it, one development node with the default ring of 50, PostgreSQL and Valkey run
as processes of their own. Half of the messages are for us. A read is a message that the node delivered in any way:
live, from the store, or only as a hash from the store. The search for late messages, which reads each message once more
every ten minutes, does not show in a run this short. Run alone with ``python -m bench reading``.
"""

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
from prometheus_client.mmap_dict import MmapedDict
from rich.console import Console
from rich.table import Table

from bench.nodes.reading import BRIDGE, own_topic, raw_message, surroundings
from bench.running import servers

PAYLOAD_BYTES = 560
WAVE_SECONDS = 0.01
# Messages per second (0: none) and duration.
PHASES = {
    "idle": (0, 10.0),
    "20 per second": (20, 20.0),
    "500 per second": (500, 10.0),
    "1 000 per second": (1000, 8.0),
}
SETTLE_SECONDS = 12.0
READ = "pushserver_bridge_messages_read_total"


def run() -> dict[str, object]:
    """Measure, print and return the figures."""
    with reading_bridge() as reader:
        result: dict[str, object] = {name: reader.measure(rate, seconds) for name, (rate, seconds) in PHASES.items()}
    _print(result)
    return result


class ReadingBridge:
    """A bridge that reads, and the costs of it and its servers so far. All of its nodes receive every message."""

    def __init__(self, metrics: Path, urls: Sequence[str], database: Any, processes: dict[str, psutil.Process]) -> None:
        self._metrics = metrics
        self._urls = urls
        self._client = httpx.Client(trust_env=False)
        self._database = database
        self._processes = processes

    def measure(self, rate: int, seconds: float) -> dict[str, float]:
        """Send messages at this rate for this time, and return their costs."""
        time.sleep(2)
        cpu, reads, known, began = self._cpu(), self._reads(), self.known(), time.perf_counter()
        sent = ours = 0
        while (elapsed := time.perf_counter() - began) < seconds:
            wave = [_message(is_ours=number % 2 == 0) for number in range(sent, round(elapsed * rate))]
            if wave:
                self.gossip(wave)
            sent, ours = sent + len(wave), ours + sum(each["isOurs"] for each in wave)
            time.sleep(max(0.0, began + elapsed + WAVE_SECONDS - time.perf_counter()))
        spent = {name: value - cpu[name] for name, value in self._cpu().items()}
        if sent:
            servers.wait_until(lambda: self.known() - known == ours)
            time.sleep(SETTLE_SECONDS)  # until the last message was read from the store, too
        figures = {f"{name}_share": value / seconds for name, value in spent.items()}
        if sent:
            figures |= {f"{name}_ms": value / sent * 1e3 for name, value in spent.items()}
            figures |= {"messages": sent, "reads": (self._reads() - reads) / sent}
        return figures

    def gossip(self, wave: Sequence[dict[str, Any]]) -> None:
        """Publish these messages to all nodes."""
        for url in self._urls:
            self._client.post(f"{url}/dev/gossip", json=wave).raise_for_status()

    def known(self) -> int:
        """Return the number of envelopes in the inbox."""
        row = self._database.execute("SELECT count(*) FROM waku_bridge_inboundenvelope").fetchone()
        return int(row[0])

    def _cpu(self) -> dict[str, float]:
        return {name: servers.cpu_seconds(process) for name, process in self._processes.items()}

    def _reads(self) -> float:
        """Return the number of messages that the bridge has read, from the files of its counters."""
        return sum(
            value
            for file in self._metrics.glob("counter_*.db")
            for key, value, *_ in MmapedDict.read_all_values_from_file(str(file))  # type: ignore[no-untyped-call]
            if READ in key
        )


@contextmanager
def reading_bridge(stores: int = 1) -> Iterator[ReadingBridge]:
    """Run a bridge that reads one node live, and ``stores`` stores, that of this node first."""
    with ExitStack() as stack:
        environment, postgres = stack.enter_context(surroundings())
        [valkey] = [child for child in psutil.Process().children() if "valkey" in child.name()]
        further = [stack.enter_context(servers.node("--shard", servers.TOPIC)) for _ in range(stores - 1)]
        urls = [environment["WAKU_NODES"], *further]
        environment |= {"WAKU_STORE_NODES": ",".join(urls)}
        bridge = psutil.Process(stack.enter_context(servers.process(BRIDGE, env=environment)).pid)
        database = stack.enter_context(psycopg.connect(environment["DATABASE_URL"], autocommit=True))
        processes = {"bridge": bridge, "postgres": postgres, "valkey": valkey}
        reader = ReadingBridge(Path(environment["DATA_DIR"]) / "metrics", urls, database, processes)
        reader.gossip([_message(is_ours=True)])
        servers.wait_until(lambda: reader.known() == 1)
        yield reader


def _message(*, is_ours: bool) -> dict[str, Any]:
    topic = own_topic() if is_ours else f"/waku/1/0x{random.getrandbits(32):08x}/rfc26"
    return {"pubsubTopic": servers.TOPIC, "message": raw_message(PAYLOAD_BYTES, topic), "isOurs": is_ours}


def _print(result: dict[str, Any]) -> None:
    table = Table(title="Reading")
    for column in ("phase", "messages", "reads of each", "bridge", "PostgreSQL", "Valkey", "bridge, share of a core"):
        table.add_column(column, justify="left" if column == "phase" else "right")
    for phase, figures in result.items():
        costs = (f"{figures[f'{name}_ms']:.3f} ms" if "reads" in figures else "" for name in NAMES)
        reads = f"{figures['reads']:.2f}" if "reads" in figures else ""
        count = f"{figures.get('messages', 0):,.0f}"
        table.add_row(phase, count, reads, *costs, f"{figures['bridge_share']:.2%}")
    Console().print(table)


NAMES = ("bridge", "postgres", "valkey")
