"""`make bench`: every benchmark in turn, as tables for people and one JSON file for comparison.

Figures are CPU times, and ratios measured in one run. Wall-clock times depend on the other tenants of the machine.
"""

import argparse
import json
import multiprocessing
import os
import platform
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from bench.lake import reports
from bench.nodes import live, load, reading_costs, topics, walker
from bench.pages import console
from bench.request import codec, path, request_files, tracing, xmpp
from bench.whole import away, databases, growth, life, month, retention, scale, sizes, throughput

FORK = multiprocessing.get_context("fork")
RESULTS = Path(__file__).parent / "results"
BENCHMARKS: dict[str, Callable[[], dict[str, object]]] = {
    "codec": codec.run,
    "path": path.run,
    "files": request_files.run,
    "tracing": tracing.run,
    "xmpp": xmpp.run,
    "topics": topics.run,
    "live": live.run,
    "life": life.run,
    "walker": walker.run,
    "reading": reading_costs.run,
    "load": load.run,
    "reports": reports.run,
    "retention": retention.run,
    "month": month.run,
    "console": console.run,
    "throughput": throughput.run,
    "databases": databases.run,
    "away": away.run,
    "scale": scale.run,
    "growth": growth.run,
    "sizes": sizes.run,
}


def main() -> None:
    """Run the benchmarks that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="name", help=f"which ones: {', '.join(BENCHMARKS)} (default: all but month)"
    )
    parser.add_argument("--events", type=reports.parse_sizes, help="sizes of the reports' days: 1m,5m,50m")
    parser.add_argument("--registrations", type=int, default=console.REGISTRATIONS, help="of the console's database")
    parser.add_argument("--attempts", type=int, default=console.ATTEMPTS, help="of the console's database")
    parser.add_argument("--requests", type=int, default=month.REQUESTS, help="in the tables of the month")
    parser.add_argument("--minutes", type=int, default=month.MINUTES, help="of messages after the month")
    parser.add_argument("--keep", type=Path, metavar="folder", help="folder for the filled console database")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("Stopped."))  # so that the servers are stopped
    names = arguments.names or [name for name in BENCHMARKS if name != "month"]  # month takes an hour
    if unknown := set(names) - BENCHMARKS.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    sizes = arguments.registrations, arguments.attempts
    benchmarks = BENCHMARKS | {"console": partial(console.run, *sizes, arguments.keep)}
    benchmarks["month"] = partial(month.run, arguments.requests, arguments.minutes)
    if arguments.events:
        benchmarks["reports"] = partial(reports.run, arguments.events)
    write({name: alone(benchmarks[name]) for name in names})


def alone(benchmark: Callable[[], dict[str, object]]) -> dict[str, object]:
    """Run a benchmark in a process of its own, because a process can set up Django only once, for one database."""
    receiver, sender = FORK.Pipe(duplex=False)
    child = FORK.Process(target=lambda: sender.send(benchmark()))
    child.start()
    sender.close()
    try:
        result: dict[str, object] = receiver.recv()
    except EOFError:
        sys.exit("The benchmark failed; its messages are above.")
    except BaseException:
        child.terminate()  # it stops its servers
        raise
    finally:
        child.join()
    return result


def write(results: dict[str, dict[str, object]]) -> None:
    """Write the results into a file named after the time."""
    RESULTS.mkdir(exist_ok=True)
    measured_at = datetime.now(UTC)
    file = RESULTS / f"{measured_at:%Y%m%dT%H%M%SZ}.json"
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "machine": platform.machine()}
    file.write_text(json.dumps({"measured_at": measured_at.isoformat(), "machine": machine, **results}, indent=2))
    print(f"Written to {file.relative_to(RESULTS.parent.parent)}")


if __name__ == "__main__":
    main()
