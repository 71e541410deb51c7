"""Benchmark of the nightly reports: Spark for hardly any events, 1, 5 and 50 million, and the export from PostgreSQL.

Events are those of one day, in the proportions of a busy server: the exported day, thinned out or repeated. All jobs
then run as they do at night, by spark-submit on this machine's cores. Two figures are for comparison: the export of a
million rows, and most of the figures (counts, percentiles, the heaviest) by plain SQL on them. ``python -m bench
reports --events 10k,1m,50m``.
"""

import subprocess
import tempfile
import time
from argparse import Namespace
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from django.db import connection

from bench.running.servers import Around, in_own_process
from bench.running.tables import show
from spark_reports.export.days import digests_in, export_day
from spark_reports.jobs.plan import PLAN, path_of
from spark_reports.jobs.tables import ATTEMPTS, EVENT_TABLES
from spark_reports.lake import EXPORT_ID, Day, Lake, arrow_schema, file_in
from spark_reports.running.loading import write_earlier
from spark_reports.running.runs import make_plan
from spark_reports.running.spark import Submission, archive_of, empty, environment, spark_home, submit

DAY = date(2026, 11, 20)
NIGHT = datetime(2026, 11, 21, 2, tzinfo=UTC)
DRIVER_MEMORY = "2g"
TARGETS = (1.45, 1.6)  # time and CPU of ten thousand and of a million events, by those of bare Spark
TARGET_ROWS_PER_SECOND = 200_000  # of the export, for a second of CPU
BARE = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
print(spark.read.parquet(sys.argv[1]).count())
spark.stop()
"""
FILL, SAME_IN_SQL = (Path(__file__).with_name(name) for name in ("reports_fill.sql", "reports_same.sql"))
# The rows set the columns that reports read. Other required columns get a default.
COLUMNS_WITHOUT_DEFAULT = """
    SELECT table_name, column_name, CASE WHEN data_type IN ('text', 'bytea') THEN quote_literal('')
        WHEN data_type = 'boolean' THEN 'false' WHEN data_type LIKE 'timestamp%' THEN 'now()' ELSE '0' END
    FROM information_schema.columns
    WHERE table_schema = 'public' AND is_nullable = 'NO' AND column_default IS NULL AND is_identity = 'NO'
        AND data_type IN ('text', 'bytea', 'boolean', 'timestamp with time zone', 'smallint', 'integer', 'bigint')
        AND table_name ~ '^(waku_bridge|notifications|registrations)_'"""


def run(around: Around, options: Namespace) -> dict[str, object]:
    """Measure the export and these sizes, print them, and return the figures."""
    _fill()
    export = _export(Lake(str(around.folder / "lake")))
    _archive_classes(around.folder)
    sizes = [in_own_process(_measure, size, around.folder) for size in options.events]
    columns = {"seconds": "seconds", "bare_seconds": "bare Spark, s", "by_bare": "times"}
    columns |= {"cpu_seconds": "CPU s", "cpu_by_bare": "times", "driver_mib": "MiB, peak", "lake_mib": "lake MiB"}
    title = (
        f"Nightly reports, all jobs together (by time and CPU: 10k ≤ {TARGETS[0]}, 1m ≤ {TARGETS[1]} times bare Spark)"
    )
    rows = {f"{size['events']:,}": [size[key] for key in columns] for size in sizes}
    show(title, ("events", *columns.values()), rows)
    per_cpu = f"{export['rows_per_cpu_second']:,.0f} for a second of CPU (target {TARGET_ROWS_PER_SECOND:,})"
    print(f"export: {export['rows']:,} rows in {export['seconds']:.1f} s, {per_cpu}")
    print(f"most of the figures by plain SQL: {export['sql_seconds']:.1f} s")
    return {"export": export, "spark": sizes}


def _fill() -> None:
    with connection.cursor() as cursor:
        cursor.execute(COLUMNS_WITHOUT_DEFAULT)
        for table, column, default in cursor.fetchall():
            cursor.execute(f"ALTER TABLE {table} ALTER COLUMN {column} SET DEFAULT {default}")
        for statement in _statements(FILL):
            cursor.execute(statement)


def _statements(path: Path) -> list[str]:
    return [statement for statement in path.read_text(encoding="utf-8").split(";") if statement.strip()]


def _export(lake: Lake) -> dict[str, float]:
    """Return the figures of the export of a day, and the time of most figures of the reports by plain SQL."""
    started, cpu, theirs = time.monotonic(), time.process_time(), _postgres_seconds()
    rows = sum(export_day(DAY, lake, now=NIGHT).rows.values())
    seconds, python_cpu_seconds = time.monotonic() - started, time.process_time() - cpu
    postgres_cpu_seconds = _postgres_seconds() - theirs
    started_sql = time.monotonic()
    with connection.cursor() as cursor:
        for statement in _statements(SAME_IN_SQL):
            cursor.execute(statement)
            cursor.fetchall()
    return {
        "rows": rows,
        "seconds": seconds,
        "python_cpu_seconds": python_cpu_seconds,
        "postgres_cpu_seconds": postgres_cpu_seconds,
        "rows_per_cpu_second": rows / (python_cpu_seconds + postgres_cpu_seconds),
        "sql_seconds": time.monotonic() - started_sql,
    }


def _postgres_seconds() -> float:
    """Return the CPU time of PostgreSQL so far, with that of sessions that ended."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        [pid] = cursor.fetchone()
    server = psutil.Process(pid).parent()
    assert server is not None
    ended = server.cpu_times()
    running = [each.cpu_times() for each in server.children()]
    return sum(ended[:4]) + sum(each.user + each.system for each in running)


def _archive_classes(folder: Path) -> None:
    """Create the archive of classes, as the first night of a server does."""
    with tempfile.TemporaryDirectory(prefix="bench-lake-") as name:
        lake = Lake(name)
        _submit(lake, _copy_day(Lake(str(folder / "lake")), lake, 10_000), {}, _classes(folder))


def _classes(folder: Path) -> Path | None:
    return archive_of(spark_home() / "jars", folder)


def _copy_day(exported: Lake, lake: Lake, events: int) -> Day:
    """Write the exported day into another lake with about this number of events: every n-th of them, or all n times."""
    day = exported.day(DAY)
    assert day is not None
    step, times = max(1, round(day.row_count / events)), max(1, round(events / day.row_count))
    rows = {}
    with lake.incoming("copied") as folder:
        for table in EVENT_TABLES:
            schema = arrow_schema(table).with_metadata({EXPORT_ID: "copied"})
            copied = pa.concat_tables([exported.read(table, DAY)[::step]] * times).cast(schema)
            pq.write_table(copied, file_in(folder, table), compression="zstd")
            rows[table.name] = copied.num_rows
        copy = replace(day, export_id="copied", rows=rows, digests=digests_in(folder))
        lake.publish(copy, folder)
    return copy


def _measure(events: int, around: Path) -> dict[str, Any]:
    """Return the figures of one size, in a process that has had no other children.

    ``driver_mib`` is the peak of resident memory of Spark's one process (driver and, on this machine, executor). Its
    ``cpu_seconds`` do not depend on other users of the machine. ``bare_seconds`` is the time that Spark takes in the
    same minute to start, to count one table and to end.
    """
    reports: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="bench-lake-") as folder:
        lake = Lake(folder)
        day = _copy_day(Lake(str(around / "lake")), lake, events)
        lake_mib = sum(path.stat().st_size for path in Path(folder).rglob("*.parquet")) / 2**20
        started = time.monotonic()
        _submit(lake, day, reports, _classes(around))
        seconds, spent = time.monotonic() - started, getrusage(RUSAGE_CHILDREN)
        bare_seconds = _bare_seconds(lake)
        both = getrusage(RUSAGE_CHILDREN)
    bare_cpu = both.ru_utime + both.ru_stime - spent.ru_utime - spent.ru_stime
    times = {"seconds": seconds, "bare_seconds": bare_seconds, "by_bare": seconds / bare_seconds}
    times["cpu_seconds"] = spent.ru_utime + spent.ru_stime
    times |= {"bare_cpu_seconds": bare_cpu, "cpu_by_bare": times["cpu_seconds"] / bare_cpu}
    sizes = {"events": day.row_count, "driver_mib": spent.ru_maxrss / 1024, "lake_mib": lake_mib}
    return {**sizes, **times, "reports": reports}


def _bare_seconds(lake: Lake) -> float:
    """Return the time that Spark takes to start, to count one table and to end."""
    script = Path(lake.url) / "bare.py"
    script.write_text(BARE, encoding="ascii")
    command = [str(spark_home() / "bin" / "spark-submit"), "--master", "local[2]", str(script)]
    command.append(f"{lake.url}/{path_of(ATTEMPTS.name, DAY)}")
    started = time.monotonic()
    subprocess.run(command, env=environment("local[2]", rows=10**9), check=True, capture_output=True)
    return time.monotonic() - started


def _submit(lake: Lake, day: Day, reports: dict[str, float], classes: Path | None) -> None:
    def on_line(line: str) -> None:
        if line:
            name, seconds, _ = line.split()
            reports[name] = float(seconds)

    with empty(Path(lake.url) / "scratch") as folder:
        write_earlier(folder, DAY, [])
        (folder / PLAN).write_text(make_plan(lake, {DAY: day}, [], []).to_json(), encoding="utf-8")
        submit(Submission("local[2]", DRIVER_MEMORY, lake.url, folder, day.row_count, on_line, classes))
