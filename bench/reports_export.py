"""The export of a day from a real PostgreSQL, and the figures of the reports by plain SQL on the same rows."""

import logging
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path

import django

from pushserver.embedded.postgres import EmbeddedPostgres
from spark_reports.lake import Lake

DAY = date(2026, 11, 20)
FILL = Path(__file__).with_name("reports_fill.sql")
SAME_IN_SQL = Path(__file__).with_name("reports_same.sql")


def run() -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="bench-export-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # PostgreSQL may run as another account
        with _database(folder):
            _fill()
            return _measure(Lake(str(folder / "lake")))


@contextmanager
def _database(folder: Path) -> Iterator[None]:
    postgres = EmbeddedPostgres(folder / "postgres")
    spec = postgres.spec()
    spec.prepare()
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(spec.command, **silent, **spec.arguments()) as process:  # type: ignore[call-overload]
        try:
            while not postgres.is_ready():
                time.sleep(0.05)
            _set_up_django(folder, postgres.url())
            yield
            _close_connections()
        finally:
            process.send_signal(spec.stop_signal)


def _set_up_django(folder: Path, database_url: str) -> None:
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "pushserver.settings",
        "DATA_DIR": str(folder / "data"),
        "DATABASE_URL": database_url,
        "SECRET_KEY": "only-for-the-benchmark-and-long-enough-for-it",
        "FIELD_ENCRYPTION_KEYS": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
        "SERVER_PRIVATE_KEY": "02" * 32,
    }
    django.setup()
    logging.disable(logging.INFO)
    from django.core.management import call_command  # noqa: PLC0415 - once Django is set up

    call_command("migrate", verbosity=0)


def _close_connections() -> None:
    from django.db import connections  # noqa: PLC0415

    connections.close_all()


def _fill() -> None:
    from django.db import connection  # noqa: PLC0415

    with connection.cursor() as cursor:
        for statement in _statements(FILL):
            cursor.execute(statement)


def _statements(path: Path) -> list[str]:
    return [statement for statement in path.read_text(encoding="utf-8").split(";") if statement.strip()]


def _measure(lake: Lake) -> dict[str, float]:
    from spark_reports.export import export_day  # noqa: PLC0415

    marks: list[tuple[str, float]] = []
    started = time.monotonic()
    manifest = export_day(
        DAY,
        lake,
        now=datetime(2026, 11, 21, 2, tzinfo=UTC),
        on_rows=lambda name, _: marks.append((name, time.monotonic())),
    )
    seconds = time.monotonic() - started
    rows = sum(manifest.rows.values())
    sql_seconds = _in_sql()
    last = dict(marks)
    ends = {name: round(at - started, 2) for name, at in last.items()}
    return {"rows": rows, "seconds": seconds, "rows_per_second": rows / seconds, "sql_seconds": sql_seconds} | {
        f"until_{name}": at for name, at in ends.items()
    }


def _in_sql() -> float:
    from django.db import connection  # noqa: PLC0415

    started = time.monotonic()
    with connection.cursor() as cursor:
        for statement in _statements(SAME_IN_SQL):
            cursor.execute(statement)
            cursor.fetchall()
    return time.monotonic() - started
