"""Tables of pages and mails, made from the definitions of reports, and CSV files of whole reports."""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.http import StreamingHttpResponse

from pushserver.console.reports import formats as f
from spark_reports.jobs.tables import FLOWS, Column, Kind
from spark_reports.jobs.tables import Table as Definition

# The maximum of rows in a table. The CSV file has all rows.
MAX_ROWS = 200
# The first characters of a text that a spreadsheet treats as a formula.
_FORMULA = ("=", "+", "-", "@")
FORMATS: dict[Kind | None, Callable[[Any], object]] = {
    None: f.plain,
    **dict.fromkeys((Kind.COUNT, *FLOWS), f.count),
    Kind.RATE: f.percent,
    Kind.POINTS: f.points,
    Kind.MILLISECONDS: f.milliseconds,
    Kind.MICROSECONDS: lambda value: f.milliseconds(value / 1000),
    Kind.RATIO: f.ratio,
    Kind.FIRST: f.plain,
    Kind.LAST: f.plain,
}


@dataclass(frozen=True, slots=True)
class Cell:
    """A column of a page. ``show`` returns the text of a row."""

    heading: str
    show: Callable[[Any], object]
    is_figure: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """A table of text. The first column names the row."""

    caption: str
    head: Sequence[Cell]
    rows: Sequence[Sequence[object]]
    note: str = ""
    is_open: bool = False

    def __bool__(self) -> bool:
        return bool(self.rows)

    @property
    def body(self) -> list[list[tuple[object, bool]]]:
        return [[(text, cell.is_figure) for text, cell in zip(row, self.head, strict=True)] for row in self.rows]

    @property
    def lines(self) -> list[str]:
        """The rows as lines of text, for mail without HTML."""
        pairs = [list(zip(self.head, row, strict=True))[1:] for row in self.rows]
        cells = [", ".join(f"{cell.heading} {text}" for cell, text in row) for row in pairs]
        return [f"{row[0]}: {text}" if text else str(row[0]) for row, text in zip(self.rows, cells, strict=True)]


def table_of(
    caption: str, cells: Sequence[Cell], rows: Iterable[Any], note: str = "", *, is_open: bool = False
) -> Table:
    """Return a table of the first MAX_ROWS rows, with a note if there are more."""
    shown = [[cell.show(row) for cell in cells] for row in rows]
    more = f"The first {MAX_ROWS} rows; the CSV file has all. " if len(shown) > MAX_ROWS else ""
    return Table(caption, cells, shown[:MAX_ROWS], more + note, is_open)


def columns(table: Definition, *first: str, without: Iterable[str] = ()) -> list[Cell]:
    """Return the columns of a report as pages show them: those named first, such as the day, and then all others.

    The rows are rows of the report, or mappings with the names of its columns.
    """
    by_name = {column.name: column for column in table.columns if _is_shown(column)}
    names = dict.fromkeys([*first, *by_name])
    return [_cell(name, by_name.get(name)) for name in names if name not in without]


def _is_shown(column: Column) -> bool:
    return column.kind in FORMATS and not column.name.endswith("_high")


def _cell(name: str, column: Column | None) -> Cell:
    """Return a column of a report. One that ends in _low has both ends of an interval."""
    if column is None:
        return Cell(name, lambda row: _value(row, name), is_figure=False)
    if name.endswith("_low"):
        high = f"{name.removesuffix('_low')}_high"
        return Cell(column.title, lambda row: f.interval(_value(row, name), _value(row, high)))
    is_figure = column.kind not in {None, Kind.FIRST, Kind.LAST}
    return Cell(column.title, lambda row: FORMATS[column.kind](_value(row, name)), is_figure)


def _value(row: Any, name: str) -> Any:
    return row[name] if isinstance(row, Mapping) else getattr(row, name)


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
            yield writer.writerow([_harmless(value) for value in row])

    response = StreamingHttpResponse(lines(), content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{name}.csv"'
    return response


def _harmless(value: object) -> object:
    """Prefix a text that a spreadsheet would treat as a formula. Clients and gateways choose some of the texts."""
    return f"'{value}" if isinstance(value, str) and value.lstrip().startswith(_FORMULA) else value
