"""Benchmark of growth: the cost of a message with more worker processes, and with more stores, on this machine's cores.

The development servers and all processes share the cores, so wall-clock times say nothing about more cores. The CPU
time of one message over all processes of the server does: it shows what the processes cost each other. While it does
not grow, more cores process more messages, until PostgreSQL has none left. Run alone with ``python -m bench growth``.
"""

from rich.console import Console
from rich.table import Table

from bench.nodes.reading_costs import reading_bridge
from bench.whole.throughput import with_processes

PROCESSES = (1, 2, 4, 8)
STORES = (1, 2, 4)
RATE, SECONDS = 100, 10.0


def run() -> dict[str, object]:
    """Measure, print and return the figures."""
    processes = {number: with_processes(number) for number in PROCESSES}
    by_process = {number: {"total": run.cpu_ms, **run.by_process()} for number, run in processes.items()}
    stores = {number: _reading(number) for number in STORES}
    _print("CPU time of one request at saturation, milliseconds", "processes", by_process)
    _print(f"Reading {RATE} messages a second, milliseconds each, and a bridge with nothing to read", "stores", stores)
    return {"processes": by_process, "stores": stores}


def _reading(stores: int) -> dict[str, float]:
    """Return the costs of reading from ``stores`` stores."""
    with reading_bridge(stores) as reader:
        idle, busy = reader.measure(0, SECONDS), reader.measure(RATE, SECONDS)
    own = {"bridge": busy["bridge_ms"], "postgres": busy["postgres_ms"], "reads of each": busy["reads"]}
    return own | {"idle bridge, % of a core": 100 * idle["bridge_share"]}


def _print(title: str, first: str, figures: dict[int, dict[str, float]]) -> None:
    columns = [
        name for name in next(iter(figures.values())) if any(each.get(name, 0) > 0.01 for each in figures.values())
    ]
    table = Table(title=title)
    for column in (first, *columns):
        table.add_column(column, justify="right")
    for number, each in figures.items():
        table.add_row(str(number), *(f"{each.get(name, 0.0):.2f}" for name in columns))
    Console().print(table)
