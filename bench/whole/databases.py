"""Benchmark of the server on Debian's PostgreSQL with its defaults, as operators run it, against the embedded one.

Both are measured in one run, one after the other: idle, at two even rates, and saturated. Delays and rates depend on
other work of the machine. CPU times of one request, and their ratio, hardly do. Needs the package `postgresql`. Run
alone with ``python -m bench databases``; it takes four minutes.
"""

import os
import time
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from bench.running.fleet import Fleet, fleet
from bench.running.phones import Phones
from bench.whole.throughput import paced, prepare, process_backlog
from embedded.servers import installed
from kit.errors import StartError

PHONES = 400
BACKLOG = 3000
IDLE_SECONDS = 20.0
SETTLING_SECONDS = 10.0
PACED = {20: 15.0, 100: 10.0}  # seconds by rate
GOAL = 1.25
NAMES = ("embedded", "system")


def run() -> dict[str, object]:
    """Measure both, print them, and return the figures."""
    try:
        installed.installed()
    except StartError as error:
        print(f"databases: not measured. {error}")
        return {}
    figures = {name: _measure(name) for name in NAMES}
    ratios = {name: figures["system"][name] / value for name, value in figures["embedded"].items()}
    _print(figures, ratios)
    return {**figures, "ratios": ratios}


def _measure(database: str) -> dict[str, float]:
    os.environ["DATABASE"] = database
    with fleet() as running:
        phones = Phones(PHONES)
        prepare(running, phones)
        found = {"idle_percent": _idle_percent(running)}
        for rate, seconds in PACED.items():
            steady = paced(running, phones, rate=rate, seconds=seconds)
            found |= {
                f"at_{rate}_cpu_ms": steady.run.cpu_ms,
                f"at_{rate}_postgres_ms": steady.run.by_process()["postgres"],
                f"at_{rate}_p50_ms": steady.p50_ms,
                f"at_{rate}_p99_ms": steady.p99_ms,
            }
        full = process_backlog(running, phones.requests(BACKLOG))
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


def _print(figures: Mapping[str, Mapping[str, float]], ratios: Mapping[str, float]) -> None:
    table = Table(title="The whole server on two kinds of PostgreSQL")
    for column in ("figure", *NAMES, "ratio", "goal"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for name, ratio in ratios.items():
        has_goal = name.endswith(("_cpu_ms", "_percent"))
        values = [f"{figures[each][name]:,.2f}" for each in NAMES]
        goal = f"≤ {GOAL:g}" if has_goal else ""
        style = "red" if has_goal and ratio > GOAL else ""
        table.add_row(name.replace("_", " "), *values, f"{ratio:.2f}", goal, style=style)
    Console().print(table)
