"""Benchmark of a database that is a millisecond away, as one on another machine is.

The whole server runs at an even rate, first on the embedded PostgreSQL, then on one behind a process that delays every
piece by half a millisecond. That process (`bench.running.delaying`) is not counted. Both are in one run. Run alone with
``python -m bench away``; it takes two minutes.
"""

from rich.console import Console
from rich.table import Table

from bench.running.fleet import fleet
from bench.running.phones import Phones
from bench.whole.throughput import paced, prepare

PHONES = 400
RATE = 100
SECONDS = 15.0
MILLISECONDS = {"here": 0.0, "away": 1.0}
P50_GOAL_MS = 50.0


def run() -> dict[str, object]:
    """Measure both, print them, and return the figures."""
    figures = {name: _measure(milliseconds) for name, milliseconds in MILLISECONDS.items()}
    _print(figures)
    return {**figures}


def _measure(milliseconds: float) -> dict[str, float]:
    with fleet(away_ms=milliseconds) as running:
        phones = Phones(PHONES)
        prepare(running, phones)
        steady = paced(running, phones, rate=RATE, seconds=SECONDS)
        return {"p50_ms": steady.p50_ms, "p99_ms": steady.p99_ms, "cpu_ms": steady.run.cpu_ms}


def _print(figures: dict[str, dict[str, float]]) -> None:
    table = Table(title=f"{RATE} messages a second, from a node to gorush")
    for column in ("database", "p50 ms", "p99 ms", "CPU ms"):
        table.add_column(column, justify="left" if column == "database" else "right")
    for name, found in figures.items():
        style = "red" if found["p50_ms"] > P50_GOAL_MS else ""
        table.add_row(name, *(f"{value:,.2f}" for value in found.values()), style=style)
    Console().print(table, f"Goal: p50 ≤ {P50_GOAL_MS:g} ms in both.")
