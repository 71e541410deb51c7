"""The second half of docs/figures.md, made from the definitions of tables. `make reference` writes it again."""

from collections import Counter
from pathlib import Path

from spark_reports.jobs.tables import DAYS, EVENT_TABLES, REPORT_TABLES, Column, Table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "figures.md"
FACTS = "## Facts in the lake"
ABOUT_FACTS = "Every table also has `day`, which is part of the path. Times are in UTC, `_us` are whole microseconds."
ABOUT_REPORTS = 'Every report also has `day`. "How figures are made" has the formulas.'
ABOUT_SHARED = "These mean the same in several tables. A type with a question mark may be null."


def page() -> str:
    """Return the page with its part about tables made again."""
    by_hand = PAGE.read_text(encoding="utf-8").partition(FACTS)[0].rstrip()
    facts, reports = map(section, (DAYS, *EVENT_TABLES)), map(section, REPORT_TABLES)
    shared = "\n".join(map(_line, SHARED))
    parts = [by_hand, FACTS, ABOUT_FACTS, ABOUT_SHARED, shared, *facts, "## Reports", ABOUT_REPORTS, *reports]
    return "\n\n".join(parts) + "\n"


def section(table: Table) -> str:
    """Return the part about a table: its own columns, and the names of those that other tables have, too."""
    shared = ", ".join(f"`{column.name}`" for column in table.columns if _said(column) in map(_said, SHARED))
    grain = f"{table.grain[0].upper()}{table.grain[1:]}.{f' Also {shared}.' if shared else ''}"
    own = [_line(column) for column in table.columns if _said(column) not in map(_said, SHARED)]
    return "\n\n".join([f"#### `{table.name}`", grain, "\n".join(own)])


def _said(column: Column) -> tuple[str, str, bool, str]:
    return column.name, column.type, column.is_nullable, column.meaning


def _line(column: Column) -> str:
    return f"* `{column.name}` {column.type}{'?' * column.is_nullable}: {column.meaning}"


_COUNT = Counter(_said(column) for table in (*EVENT_TABLES, *REPORT_TABLES) for column in table.columns)
SHARED = list(
    {
        _said(column): column
        for table in (*EVENT_TABLES, *REPORT_TABLES)
        for column in table.columns
        if _COUNT[_said(column)] > 1
    }.values()
)

if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
