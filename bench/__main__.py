"""`make bench`: every benchmark in turn, as tables for people and one JSON file for comparison.

Figures are CPU times, and ratios measured in one run. Wall-clock times depend on the other tenants of the machine.
"""

import argparse
import json
import os
import platform
import signal
import sys
from argparse import Namespace
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.running import servers
from bench.running.fleet import fleet_and_django

RESULTS = Path(__file__).parent / "results"
NAMES = ["codec", "path", "files", "life", "reports", "month", "console"]
NAMES += ["throughput", "databases", "away", "scale", "growth"]
# The servers around a benchmark that uses models. It is imported once they run and Django is set up for them.
AROUND: dict[str, Callable[[Namespace], AbstractContextManager[object]]] = {
    "path": lambda _: servers.around_django(),
    "files": lambda _: servers.around_django(),
    "reports": lambda _: servers.around_django(),
    "month": lambda _: fleet_and_django(),
    # Filling writes as much as a month of traffic does.
    "console": lambda options: servers.around_django(options.keep, max_wal_size="4GB"),
}


def main() -> None:
    """Run the benchmarks that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    help_ = f"which ones: {', '.join(NAMES)} (default: all but month)"
    parser.add_argument("names", nargs="*", metavar="name", help=help_)
    sizes = [10_000, 1_000_000, 5_000_000]  # the first one shows the minimum time of a night
    parser.add_argument("--events", type=_sizes, default=sizes, help="sizes of the reports' days: 1m,5m,50m")
    parser.add_argument("--registrations", type=int, default=1_000_000, help="of the console's database")
    parser.add_argument("--attempts", type=int, default=10_000_000, help="of the console's database")
    parser.add_argument("--requests", type=int, default=5_000_000, help="in the tables of the month")
    parser.add_argument("--days", type=int, default=30, help="over which these are spread")
    parser.add_argument("--minutes", type=int, default=60, help="of messages after the month")
    parser.add_argument("--keep", type=Path, metavar="folder", help="folder for the filled console database")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("Stopped."))  # so that the servers are stopped
    names = options.names or [name for name in NAMES if name != "month"]  # month takes an hour
    if unknown := set(names).difference(NAMES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    _write({name: servers.in_own_process(_run, name, options) for name in names})


def _sizes(text: str) -> list[int]:
    """Return sizes such as ``1m,5m`` as numbers."""
    units = {"k": 1000, "m": 1_000_000}
    return [int(float(part[:-1]) * units[part[-1]]) if part[-1] in units else int(part) for part in text.split(",")]


def _run(name: str, options: Namespace) -> Any:
    if name not in AROUND:
        return import_module(f"bench.{name}").run()
    with AROUND[name](options) as around:
        return import_module(f"bench.{name}").run(around, options)


def _write(results: dict[str, dict[str, object]]) -> None:
    """Write the results into a file named after the time."""
    RESULTS.mkdir(exist_ok=True)
    measured_at = datetime.now(UTC)
    file = RESULTS / f"{measured_at:%Y%m%dT%H%M%SZ}.json"
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "machine": platform.machine()}
    file.write_text(json.dumps({"measured_at": measured_at.isoformat(), "machine": machine, **results}, indent=2))
    print(f"Written to {file.relative_to(RESULTS.parent.parent)}")


if __name__ == "__main__":
    main()
