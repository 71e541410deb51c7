"""The second half of docs/figures.md, made from the definitions of tables. `make reference` writes it again."""

from collections.abc import Iterator
from pathlib import Path

from spark_reports.jobs.tables import EVENT_TABLES, REPORT_TABLES, Column, Table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "figures.md"
FACTS = "## Facts in the lake"
ABOUT_FACTS = "Every table also has `day`, which is part of the path. Times are in UTC, `_us` are whole microseconds."
ABOUT_REPORTS = 'Every report also has `day`. "How figures are made" has the formulas.'


def page() -> str:
    """Return the page with its part about tables made again."""
    by_hand = PAGE.read_text(encoding="utf-8").partition(FACTS)[0].rstrip()
    facts, reports = map(section, EVENT_TABLES), map(section, REPORT_TABLES)
    return "\n\n".join([by_hand, FACTS, ABOUT_FACTS, *facts, "## Reports", ABOUT_REPORTS, *reports]) + "\n"


def section(table: Table) -> str:
    rows = "\n".join(["| column | type | meaning |", "| --- | --- | --- |", *map(_row, table.columns)])
    return "\n\n".join([f"#### `{table.name}`", f"{table.grain[0].upper()}{table.grain[1:]}.", rows])


def _row(column: Column) -> str:
    return f"| `{column.name}` | {', '.join(_type(column))} | {column.meaning} |"


def _type(column: Column) -> Iterator[str]:
    yield column.type
    if column.is_nullable:
        yield "may be null"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
