"""Tables of pages and mails, and CSV files of whole reports."""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Model
from django.http import StreamingHttpResponse

from pushserver.console.reports import formats as f
from spark_reports.jobs.tables import REPORT_TABLES, Unit

# The maximum of rows in a table. The CSV file has all rows.
MAX_ROWS = 200
# A table with more columns has a tighter layout.
WIDE = 12
# The first characters of a text that a spreadsheet treats as a formula.
_FORMULA = ("=", "+", "-", "@")


@dataclass(frozen=True, slots=True)
class Table:
    """A table of text. A header that ends in # marks a column of figures. The first column names the row."""

    caption: str
    headers: Sequence[str]
    rows: Sequence[Sequence[object]]
    note: str = ""

    @property
    def head(self) -> list[tuple[str, bool]]:
        return [(header.removesuffix("#"), header.endswith("#")) for header in self.headers]

    @property
    def is_wide(self) -> bool:
        return len(self.headers) > WIDE

    @property
    def body(self) -> list[list[tuple[object, bool]]]:
        kinds = [is_figure for _, is_figure in self.head]
        return [list(zip(row, kinds, strict=True)) for row in self.rows]

    @property
    def lines(self) -> list[str]:
        """The rows as lines of text, for mail without HTML."""
        names = [name for name, _ in self.head][1:]
        pairs = [zip(names, row[1:], strict=True) for row in self.rows]
        cells = [", ".join(f"{name} {cell}" for name, cell in row) for row in pairs]
        return [f"{row[0]}: {text}" if text else str(row[0]) for row, text in zip(self.rows, cells, strict=True)]


@dataclass(frozen=True, slots=True)
class Cell:
    """A column that a page computes from columns of the report. ``show`` returns the text of a row."""

    heading: str
    show: Callable[[Any], object]


# A column: its name in `jobs/tables.py`, a pair of that name and a heading, or a column that the page computes.
Shown = str | tuple[str, str] | Cell
FORMATS: dict[Unit | None, Callable[[Any], object]] = {
    None: lambda value: f.NOTHING if value in {None, ""} else value,
    Unit.COUNT: f.count,
    Unit.SHARE: f.percent,
    Unit.POINTS: f.points,
    Unit.MILLISECONDS: f.milliseconds,
    Unit.MICROSECONDS: lambda value: f.milliseconds(value / 1000),
    Unit.RATIO: f.ratio,
    Unit.SCORE: f.score,
}
_UNITS = {column.name: column.unit for table in REPORT_TABLES for column in table.columns}


def table_of(caption: str, columns: Sequence[Shown], rows: Iterable[Any], note: str = "") -> Table:
    """Return a table of ``rows``: rows of a report, or mappings with the names of its columns.

    The table has the first MAX_ROWS rows, and a note if there are more.
    """
    cells = [cell_of(column) for column in columns]
    shown = [[cell.show(row) for cell in cells] for row in rows]
    more = f"The first {MAX_ROWS} rows; the CSV file has all. " if len(shown) > MAX_ROWS else ""
    return Table(caption, [cell.heading for cell in cells], shown[:MAX_ROWS], more + note)


def interval(heading: str, low: str, high: str) -> Cell:
    """Return a column with both ends of an interval."""
    return Cell(f"{heading}#", lambda row: f.interval(_value(row, low), _value(row, high)))


def cell_of(column: Shown) -> Cell:
    """Return the heading of a column and the function that shows its values."""
    if isinstance(column, Cell):
        return column
    name, heading = column if isinstance(column, tuple) else (column, column.replace("_", " "))
    unit = _UNITS.get(name)
    return Cell(f"{heading}#" if unit else heading, lambda row: FORMATS[unit](_value(row, name)))


def _value(row: Any, name: str) -> Any:
    return row[name] if isinstance(row, Mapping) else getattr(row, name)


def columns_of(model: type[Model]) -> list[str]:
    """Return the columns of a report, as docs/figures.md documents them."""
    return [column.name for column in model._meta.concrete_fields if not column.primary_key]  # noqa: SLF001


class _Echo:
    """A file that returns what is written into it."""

    def write(self, line: str) -> str:
        return line


def csv_file(name: str, headers: Sequence[str], rows: Iterable[Sequence[object]]) -> StreamingHttpResponse:
    """Return a CSV file that is streamed row by row."""
    writer = csv.writer(_Echo())

    def lines() -> Iterator[str]:
        yield writer.writerow(headers)
        for row in rows:
            yield writer.writerow([_cell(value) for value in row])

    response = StreamingHttpResponse(lines(), content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{name}.csv"'
    return response


def _cell(value: object) -> object:
    """Prefix a text that a spreadsheet would treat as a formula. Clients and gateways choose some of the texts."""
    return f"'{value}" if isinstance(value, str) and value.lstrip().startswith(_FORMULA) else value
