"""Benchmark of a database that is a millisecond away, as one on another machine is.

The whole server runs at an even rate, first on the embedded PostgreSQL, then on one behind a process that delays every
piece by half a millisecond. That process (`bench.running.delaying`) is not counted. Both are in one run, which takes
two minutes.
"""

from bench.running.fleet import fleet
from bench.running.load import Load
from bench.running.phones import Phones
from bench.running.tables import show

PHONES = 400
RATE, SECONDS = 100, 15.0
MILLISECONDS = {"here": 0.0, "away": 1.0}
P50_GOAL_MS = 50.0


def run() -> dict[str, object]:
    """Measure both, print them, and return the figures."""
    figures = {name: _measure(milliseconds) for name, milliseconds in MILLISECONDS.items()}
    missed = [name for name, found in figures.items() if found["p50_ms"] > P50_GOAL_MS]
    title = f"{RATE} messages a second, from a node to gorush (goal: p50 ≤ {P50_GOAL_MS:g} ms in both)"
    rows = {name: [*found.values()] for name, found in figures.items()}
    show(title, ("database", "p50 ms", "p99 ms", "CPU ms"), rows, missed=missed)
    return {**figures}


def _measure(milliseconds: float) -> dict[str, float]:
    with fleet(away_ms=milliseconds) as running:
        load = Load(running, Phones(PHONES))
        load.prepare()
        return load.paced(rate=RATE, seconds=SECONDS).figures()
