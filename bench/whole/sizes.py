"""Benchmark of the sizes of rows on disk, with their share of the indexes, for plans with many registrations.

The database is filled as after a month of traffic (`manage.py seed_bench`), with ten attempts for each registration.
Every figure is `pg_total_relation_size` of a table with its partitions, divided by its rows. Indexes are built at once
there, so they are denser than those of a database that grew: plan for half as much again. Run alone with ``python -m
bench sizes``.
"""

from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench.request.path import servers_of_one_process

REGISTRATIONS = 50_000
ATTEMPTS_EACH = 10
SIZES = """
    SELECT coalesce(inhparent::regclass::text, relname), sum(pg_total_relation_size(oid))::bigint,
        sum(pg_indexes_size(oid))::bigint, sum(reltuples)::bigint
    FROM pg_class LEFT JOIN pg_inherits ON inhrelid = oid
    WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
    GROUP BY 1 ORDER BY 2 DESC
"""
# Smaller tables have a fixed size, whatever the number of registrations.
MIN_ROWS = 1000


class Size(NamedTuple):
    """The size of one table."""

    table: str
    rows: int
    bytes_each: float
    index_bytes_each: float


def run() -> dict[str, object]:
    """Measure, print and return the figures."""
    with servers_of_one_process():
        sizes = _measure()
    table = Table(title=f"Bytes on disk by row, of {REGISTRATIONS:,} registrations with {ATTEMPTS_EACH} attempts each")
    for column in ("table", "rows", "for each registration", "bytes a row", "of them indexes"):
        is_name = column == "table"
        table.add_column(column, justify="left" if is_name else "right", no_wrap=is_name)
    for size in sizes:
        each = f"{size.rows / REGISTRATIONS:.2f}"
        table.add_row(size.table, f"{size.rows:,}", each, f"{size.bytes_each:.0f}", f"{size.index_bytes_each:.0f}")
    Console().print(table)
    return {size.table: size._asdict() for size in sizes}


def _measure() -> list[Size]:
    from django.db import connection  # noqa: PLC0415 - once Django is set up

    from embedded import seeding  # noqa: PLC0415

    seeding.fill(REGISTRATIONS, REGISTRATIONS * ATTEMPTS_EACH, lambda _: None)
    seeding.settle()
    with connection.cursor() as cursor:
        cursor.execute(SIZES)  # the number of rows as VACUUM has just counted it
        found = cursor.fetchall()
    return [Size(name, rows, total / rows, indexes / rows) for name, total, indexes, rows in found if rows > MIN_ROWS]
