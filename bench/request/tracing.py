"""Benchmark of tracing: the benchmark of the path, in rounds without traces and with them.

Rounds with and without traces alternate in one process, so that other work of the machine affects both alike. The CPU
time of the process (batches, event loop, the thread that exports) and of PostgreSQL is counted; the collector runs
beside it and is not counted. The first span, which the bridge writes, is added to the work of a worker. The last two
are not, because no step waits for the stores here. Every figure is the median of the rounds. Every percentage is the
median of what a round took more than the rounds beside it. Run alone with ``python -m bench tracing``.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from statistics import mean, median
from time import process_time, time_ns

import psutil
from rich.console import Console
from rich.table import Table

from bench.request.path import BATCH, CLIENTS, REQUESTS, servers_of_one_process
from bench.running import servers
from embedded.servers.ports import free_port

ROUNDS = 10
# By the share of messages that are traced. The second series without traces shows how much of a difference is chance.
SHARES: Sequence[tuple[str, float]] = (("off", 0.0), ("10 %", 0.1), ("off again", 0.0), ("100 %", 1.0))
GOAL_PERCENT = 3.0


def run() -> dict[str, object]:
    """Measure, print and return the figures."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    os.environ |= {"OTEL_EXPORTER_OTLP_ENDPOINT": url}
    command = [sys.executable, "-m", "bench.request.tracing", str(port)]
    with servers.process(command), servers_of_one_process() as postgres:
        servers.wait_until(lambda: servers.answers(url))
        spent: dict[str, list[float]] = {name: [] for name, _ in SHARES}
        for _ in range(ROUNDS + 1):
            for name, share in SHARES:
                spent[name].append(_round(share, postgres))
    [_to_warm_up, *rounds] = [dict(zip(spent, times, strict=True)) for times in zip(*spent.values(), strict=True)]
    milliseconds = {name: median(each[name] for each in rounds) for name in spent}
    percent = {name: median(_more(each, name) for each in rounds) for name in spent}
    _print(milliseconds, percent)
    return {"milliseconds": milliseconds, "percent": percent}


def _more(times: Mapping[str, float], name: str) -> float:
    """Return by how many percent a round took more than those without traces beside it."""
    return 100 * (times[name] / mean([times["off"], times["off again"]]) - 1)


def _round(share: float, postgres: psutil.Process) -> float:
    """Return the CPU milliseconds of one request, while this share of them is traced."""
    from django.conf import settings  # noqa: PLC0415 - once Django is set up

    from bench.request.path_parts import Parts  # noqa: PLC0415

    settings.TRACES, settings.TRACES_SHARE = False, share
    steps = Parts(postgres, clients=CLIENTS, requests=REQUESTS, batch=BATCH)
    settings.TRACES = share > 0
    before = process_time()
    _begin([envelope.hash for envelope in steps.incoming])
    of_postgres = steps.run()["postgres"]
    if settings.TRACES:
        _flush()
    return (process_time() - before + of_postgres) * 1000 / REQUESTS


def _begin(hashes: Sequence[bytes]) -> None:
    """Begin the traces, as the bridge does."""
    from kit.tracing.spans import Role, step  # noqa: PLC0415

    began_ns = time_ns()
    for each in hashes:
        step("read", each, {"path": "live"}, began_ns=began_ns, role=Role.CONSUMER, is_first=True)


def _flush() -> None:
    from kit.tracing.spans import spans  # noqa: PLC0415

    spans().flush()


def _print(milliseconds: dict[str, float], percent: dict[str, float]) -> None:
    table = Table(title="One request, inbox → gorush → reply: CPU time by the share that is traced")
    for column in ("traced", "ms", "more than off"):
        table.add_column(column, justify="left" if column == "traced" else "right")
    for name, each in milliseconds.items():
        goal = f" (≤ {GOAL_PERCENT:g} %)" if name == "10 %" else ""
        table.add_row(name, f"{each:.3f}", f"{percent[name]:+.1f} %{goal}")
    Console().print(table)


class _Sink(BaseHTTPRequestHandler):
    """A collector that reads everything and keeps nothing."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer()

    def _answer(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        """Write no log."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), _Sink).serve_forever()
