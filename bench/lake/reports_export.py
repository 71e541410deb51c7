"""Benchmark of the export of a day from PostgreSQL, and of most figures of the reports by plain SQL."""

import time
from datetime import UTC, date, datetime
from pathlib import Path

from spark_reports.lake import Lake

DAY = date(2026, 11, 20)
FILL = Path(__file__).with_name("reports_fill.sql")
# The rows set the columns that reports read. Other required columns get a default.
COLUMNS_WITHOUT_DEFAULT = """
    SELECT table_name, column_name, CASE WHEN data_type IN ('text', 'bytea') THEN quote_literal('')
        WHEN data_type = 'boolean' THEN 'false' WHEN data_type LIKE 'timestamp%' THEN 'now()' ELSE '0' END
    FROM information_schema.columns
    WHERE table_schema = 'public' AND is_nullable = 'NO' AND column_default IS NULL AND is_identity = 'NO'
        AND data_type IN ('text', 'bytea', 'boolean', 'timestamp with time zone', 'smallint', 'integer', 'bigint')
        AND table_name ~ '^(waku_bridge|notifications|registrations)_'"""
SAME_IN_SQL = Path(__file__).with_name("reports_same.sql")


def measure(folder: Path) -> dict[str, float]:
    """Fill an empty database, for which Django is set up, and measure the export of a day."""
    from django.core.management import call_command  # noqa: PLC0415

    call_command("migrate", verbosity=0)
    _fill()
    return _measure(Lake(str(folder / "lake")))


def _fill() -> None:
    from django.db import connection  # noqa: PLC0415

    with connection.cursor() as cursor:
        cursor.execute(COLUMNS_WITHOUT_DEFAULT)
        for table, column, default in cursor.fetchall():
            cursor.execute(f"ALTER TABLE {table} ALTER COLUMN {column} SET DEFAULT {default}")
        for statement in _statements(FILL):
            cursor.execute(statement)


def _statements(path: Path) -> list[str]:
    return [statement for statement in path.read_text(encoding="utf-8").split(";") if statement.strip()]


def _measure(lake: Lake) -> dict[str, float]:
    from spark_reports.export.days import export_day  # noqa: PLC0415

    ends: dict[str, float] = {}
    started, cpu = time.monotonic(), time.process_time()

    def on_rows(table: str, _rows: int) -> None:
        ends[table] = round(time.monotonic() - started, 2)

    manifest = export_day(DAY, lake, now=datetime(2026, 11, 21, 2, tzinfo=UTC), on_rows=on_rows)
    seconds = time.monotonic() - started
    rows = sum(manifest.rows.values())
    return {
        "rows": rows,
        "seconds": seconds,
        "rows_per_second": rows / seconds,
        "python_cpu_seconds": time.process_time() - cpu,
        "sql_seconds": _in_sql(),
        **{f"until_{name}": end for name, end in ends.items()},
    }


def _in_sql() -> float:
    from django.db import connection  # noqa: PLC0415

    started = time.monotonic()
    with connection.cursor() as cursor:
        for statement in _statements(SAME_IN_SQL):
            cursor.execute(statement)
            cursor.fetchall()
    return time.monotonic() - started
