"""Nightly reports: how long Spark takes for 1, 5 and 50 million events, and the export from a real PostgreSQL.

Events are those of one day, in the proportions of a busy server, written straight into a lake; all jobs then run as
they do at night, by spark-submit on this machine's cores. Beside it: the export of a million rows, and the same figures
by plain SQL on the same rows. ``python -m bench reports --events 1m,5m,50m``.
"""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from bench.reports_events import write_day
from spark_reports.lake import Lake, Manifest

DAY = date(2026, 11, 20)
SIZES = (1_000_000, 5_000_000)
DRIVER_MEMORY = "2g"
TARGET_SECONDS = 300.0  # for 50 million
TARGET_RATIO = 11.0
TARGET_DRIVER_MIB = 4096
TARGET_ROWS_PER_SECOND = 200_000


@dataclass(frozen=True, slots=True)
class Measured:
    """``driver_mib``: the most that Spark's one process (driver and, on this machine, executor) had resident."""

    events: int
    seconds: float
    driver_mib: float
    lake_mib: float
    reports: dict[str, float]


def run(sizes: Sequence[int] = SIZES) -> dict[str, object]:
    from bench import reports_export  # noqa: PLC0415 - sets Django up

    export = reports_export.run()
    measured = [_measure(size) for size in sizes]
    _print(measured, export)
    return {"spark": [asdict(m) for m in measured], "export": export}


def parse_sizes(text: str) -> list[int]:
    """``1m,5m`` as numbers."""
    units = {"k": 1000, "m": 1_000_000}
    return [int(float(part[:-1]) * units[part[-1]]) if part[-1] in units else int(part) for part in text.split(",")]


def _measure(events: int) -> Measured:
    with tempfile.TemporaryDirectory(prefix="bench-lake-") as folder:
        lake = Lake(folder)
        Console().print(f"writing {events:,} events ...")
        manifest = write_day(lake, DAY, events)
        lake_mib = sum(f.size_bytes for files in manifest.tables.values() for f in files) / 2**20
        reports: dict[str, float] = {}
        started = time.monotonic()
        with _peak_of_java() as peak:
            _submit(lake, manifest, reports)
        seconds = time.monotonic() - started
        return Measured(sum(manifest.rows.values()), round(seconds, 1), round(peak(), 0), round(lake_mib, 1), reports)


def _submit(lake: Lake, manifest: Manifest, reports: dict[str, float]) -> None:
    from spark_reports.runs import make_plan  # noqa: PLC0415 - needs Django
    from spark_reports.spark import Submission, submit  # noqa: PLC0415

    def on_line(line: str) -> None:
        if line:
            name, seconds, _ = line.split()
            reports[name] = float(seconds)

    with lake.writing("incoming/bench/plan.json") as out:
        out.write(make_plan(lake, {DAY: manifest}, "incoming/bench").to_json().encode())
    submit(Submission("local[2]", DRIVER_MEMORY, lake.url, "incoming/bench/plan.json", 3600, on_line))


@contextmanager
def _peak_of_java() -> Iterator[Callable[[], float]]:
    """MiB: the high-water mark of the Java process below us, as the kernel keeps it."""
    peak, is_over = [0.0], threading.Event()

    def watch() -> None:
        while not is_over.wait(0.5):
            for process in psutil.Process().children(recursive=True):
                try:
                    if process.name() == "java":
                        peak[0] = max(peak[0], _high_water_mib(process.pid))
                except (psutil.NoSuchProcess, OSError):
                    continue

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield lambda: peak[0]
    finally:
        is_over.set()
        watcher.join()


def _high_water_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0.0)


def _print(measured: Sequence[Measured], export: dict[str, Any]) -> None:
    table = Table(title="Nightly reports, all jobs together, 2 cores")
    for name in ("events", "seconds", "ratio", "Spark MiB (peak)", "lake MiB"):
        table.add_column(name, justify="right")
    for number, m in enumerate(measured):
        before = measured[number - 1] if number else None
        ratio = f"{m.events / before.events:.0f} x data: {m.seconds / before.seconds:.1f} x time" if before else ""
        table.add_row(f"{m.events:,}", f"{m.seconds:.1f}", ratio, f"{m.driver_mib:.0f}", f"{m.lake_mib:.0f}")
    Console().print(table)
    Console().print(
        f"export: {export['rows']:,} rows in {export['seconds']:.1f} s = {export['rows_per_second']:,.0f} rows/s "
        f"(target {TARGET_ROWS_PER_SECOND:,}); the same figures in plain SQL: {export['sql_seconds']:.1f} s"
    )
