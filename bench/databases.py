"""Benchmark of the server on Debian's PostgreSQL with its defaults, as operators run it, against the embedded one.

Both are measured in one run, one after the other: idle, at two even rates, and saturated. Delays and rates depend on
other work of the machine. CPU times of one request, and their ratio, hardly do. Needs the package `postgresql`, and
takes four minutes.
"""

import os
import time

from bench.running.fleet import Fleet, fleet
from bench.running.load import Load
from bench.running.phones import Phones
from bench.running.tables import show
from embedded.servers import installed
from kit.processes import StartError

PHONES, BACKLOG = 400, 3000
SETTLING_SECONDS, IDLE_SECONDS = 10.0, 20.0
PACED = {20: 15.0, 100: 10.0}  # seconds by rate
GOAL = 1.25
WITH_GOAL = ("_cpu_ms", "_percent")


def run() -> dict[str, object]:
    """Measure both, print them, and return the figures."""
    try:
        installed.installed()
    except StartError as error:
        print(f"databases: not measured. {error}")
        return {}
    embedded, system = _measure("embedded"), _measure("system")
    ratios = {name: system[name] / value for name, value in embedded.items()}
    title = f"The whole server on two kinds of PostgreSQL (goal: CPU and idle ≤ {GOAL:g} times)"
    rows = {name: (value, system[name], ratios[name]) for name, value in embedded.items()}
    missed = [name for name, ratio in ratios.items() if name.endswith(WITH_GOAL) and ratio > GOAL]
    show(title, ("figure", "embedded", "system", "ratio"), rows, missed=missed)
    return {"embedded": embedded, "system": system, "ratios": ratios}


def _measure(database: str) -> dict[str, float]:
    os.environ["DATABASE"] = database
    with fleet() as running:
        load = Load(running, Phones(PHONES))
        load.prepare()
        found = {"idle_percent": _idle_percent(running)}
        for rate, seconds in PACED.items():
            steady = load.paced(rate=rate, seconds=seconds)
            figures = {**steady.figures(), "postgres_ms": steady.by_process()["postgres"]}
            found |= {f"at_{rate}_{name}": value for name, value in figures.items()}
        full = load.process_backlog(load.phones.requests(BACKLOG))
    return found | {
        "full_cpu_ms": full.cpu_ms,
        "full_postgres_ms": full.by_process()["postgres"],
        "full_per_second": full.per_second,
    }


def _idle_percent(running: Fleet) -> float:
    time.sleep(SETTLING_SECONDS)
    before = sum(running.cpu_seconds().values())
    time.sleep(IDLE_SECONDS)
    return 100 * (sum(running.cpu_seconds().values()) - before) / IDLE_SECONDS
