"""Benchmark of the nightly reports: Spark for hardly any events, 1, 5 and 50 million, and the export from PostgreSQL.

Events are those of one day, in the proportions of a busy server, written straight into a lake. All jobs then run as
they do at night, by spark-submit on this machine's cores. Two figures are for comparison: the export of a million rows,
and most of the figures (counts, percentiles, the heaviest) by plain SQL on them. ``python -m bench reports --events
10k,1m,50m``.
"""

import json
import subprocess
import sys
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

from bench.lake import reports_export
from bench.running import servers
from embedded.demo.facts import write_day
from spark_reports.lake import Lake, Manifest

DAY = date(2026, 11, 20)
SIZES = (10_000, 1_000_000, 5_000_000)  # the first one shows the minimum time of a night
DRIVER_MEMORY = "2g"
TARGET_SECONDS = 60.0  # for 50 million
TARGET_ROWS_PER_SECOND = 200_000


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one size.

    ``driver_mib`` is the peak of resident memory of Spark's one process (driver and, on this machine, executor). Its
    ``cpu_seconds`` do not depend on other users of the machine. ``bare_seconds`` is the time that Spark takes in the
    same minute to start, to count one table and to end.
    """

    events: int
    seconds: float
    bare_seconds: float
    cpu_seconds: float
    driver_mib: float
    lake_mib: float
    reports: dict[str, float]


def run(sizes: Sequence[int] = SIZES) -> dict[str, object]:
    """Measure these sizes, print them, and return the figures."""
    with tempfile.TemporaryDirectory(prefix="bench-reports-") as name:
        folder = Path(name)
        with servers.postgres(folder) as (url, _):
            environment = servers.environment(folder, url, LOG_LEVEL="WARNING")
            result: dict[str, Any] = servers.result_of("bench.lake.reports", folder, *sizes, environment=environment)
    _print(result)
    return result


def measure(folder: Path, sizes: Sequence[int]) -> dict[str, object]:
    """Measure the export and these sizes. This runs in a process of its own, with Django."""
    import django  # noqa: PLC0415 - the parent needs no Django

    django.setup()
    export = reports_export.measure(folder)
    _archive_classes(folder)
    return {"export": export, "spark": [asdict(_measure(size, folder)) for size in sizes]}


def parse_sizes(text: str) -> list[int]:
    """Return sizes such as ``1m,5m`` as numbers."""
    units = {"k": 1000, "m": 1_000_000}
    return [int(float(part[:-1]) * units[part[-1]]) if part[-1] in units else int(part) for part in text.split(",")]


def _archive_classes(folder: Path) -> None:
    """Create the archive of classes, as the first night of a server does."""
    from spark_reports.running.classes import replacing  # noqa: PLC0415 - once Django is set up

    with tempfile.TemporaryDirectory(prefix="bench-lake-") as name, replacing(_classes(folder)) as draft:
        lake = Lake(name)
        _submit(lake, write_day(lake, DAY, 10_000), {}, new_classes=draft)


def _classes(folder: Path) -> Path:
    from spark_reports.running.classes import archive_of  # noqa: PLC0415
    from spark_reports.running.spark import spark_home  # noqa: PLC0415

    return archive_of(spark_home() / "jars", folder) or folder / "none"


def _measure(events: int, classes_folder: Path) -> Measured:
    with tempfile.TemporaryDirectory(prefix="bench-lake-") as folder:
        lake = Lake(folder)
        manifest = write_day(lake, DAY, events)
        lake_mib = sum(f.size_bytes for files in manifest.tables.values() for f in files) / 2**20
        reports: dict[str, float] = {}
        started = time.monotonic()
        with _java() as java:
            _submit(lake, manifest, reports, classes=_classes(classes_folder))
        seconds = time.monotonic() - started
        bare_seconds = _bare(lake)
    cpu_seconds, driver_mib = java()
    return Measured(sum(manifest.rows.values()), seconds, bare_seconds, cpu_seconds, driver_mib, lake_mib, reports)


BARE = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
print(spark.read.parquet(sys.argv[1]).count())
spark.stop()
"""


def _bare(lake: Lake) -> float:
    """Return the time that Spark takes to start, to count one table and to end."""
    from spark_reports.running.spark import environment, spark_home  # noqa: PLC0415

    script = Path(lake.url) / "bare.py"
    script.write_text(BARE, encoding="ascii")
    command = [str(spark_home() / "bin" / "spark-submit"), "--master", "local[2]", str(script)]
    started = time.monotonic()
    subprocess.run(
        [*command, f"{lake.url}/facts/table=attempts"],
        env=environment("local[2]", rows=10**9),
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.monotonic() - started


def _submit(lake: Lake, manifest: Manifest, reports: dict[str, float], **archive: Path) -> None:
    from spark_reports.running.runs import make_plan  # noqa: PLC0415 - once Django is set up
    from spark_reports.running.spark import Submission, submit  # noqa: PLC0415

    def on_line(line: str) -> None:
        if line:
            name, seconds, _ = line.split()
            reports[name] = float(seconds)

    plan = make_plan(lake, {DAY: manifest}, "incoming/bench").to_json()
    rows = sum(manifest.rows.values())
    scratch = Path(lake.url) / "scratch"
    submit(Submission("local[2]", DRIVER_MEMORY, lake.url, plan, scratch, rows, on_line, **archive))


@contextmanager
def _java() -> Iterator[Callable[[], tuple[float, float]]]:
    """Watch the Java process below this one.

    The value returns its CPU seconds and its memory peak in MiB, as the kernel records it.
    """
    seen = [0.0, 0.0]
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.5):
            for process in psutil.Process().children(recursive=True):
                try:
                    if process.name() == "java":
                        seen[:] = servers.cpu_seconds(process), max(seen[1], _high_water_mib(process.pid))
                except (psutil.NoSuchProcess, OSError):
                    continue

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield lambda: (seen[0], seen[1])
    finally:
        is_over.set()
        watcher.join()


def _high_water_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0.0)


def _print(result: dict[str, Any]) -> None:
    table = Table(title=f"Nightly reports, all jobs together (target: 50 million in {TARGET_SECONDS:.0f} s)")
    columns = (
        "events",
        "seconds",
        "bare Spark, s",
        "times (1m: ≤ 1.5)",
        "against the row above",
        "CPU s",
        "MiB, peak",
        "lake MiB",
    )
    for name in columns:
        table.add_column(name, justify="right")
    before: dict[str, Any] = {}
    for row in result["spark"]:
        table.add_row(
            f"{row['events']:,}",
            f"{row['seconds']:.1f}",
            f"{row['bare_seconds']:.1f}",
            f"{row['seconds'] / row['bare_seconds']:.2f}",
            f"{row['events'] / before['events']:.0f} x data, {row['seconds'] / before['seconds']:.1f} x time"
            if before
            else "",
            *[f"{row[name]:.0f}" for name in ("cpu_seconds", "driver_mib", "lake_mib")],
        )
        before = row
    export = result["export"]
    Console().print(table)
    Console().print(
        f"export: {export['rows']:,} rows in {export['seconds']:.1f} s = {export['rows_per_second']:,.0f} rows/s "
        f"(target {TARGET_ROWS_PER_SECOND:,}); most of the figures by plain SQL: {export['sql_seconds']:.1f} s"
    )


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), [int(size) for size in sys.argv[2:]])))
