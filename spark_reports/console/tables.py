"""The table below a chart, and the CSV file of a whole report."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from django.db.models import Model
from django.http import StreamingHttpResponse

# The most rows of a table; the CSV file has all of them.
MAX_ROWS = 200
# A table of more columns is set more tightly.
WIDE = 12
# The first characters of what a spreadsheet takes for a formula.
_FORMULA = ("=", "+", "-", "@")


@dataclass(frozen=True, slots=True)
class Table:
    """A table of text. ``headers`` that end in # are columns of figures. The first column says what a row is about."""

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
        """Return the rows as lines of text, for readers without HTML."""
        names = [name for name, _ in self.head][1:]
        pairs = [zip(names, row[1:], strict=True) for row in self.rows]
        cells = [", ".join(f"{name} {cell}" for name, cell in row) for row in pairs]
        return [f"{row[0]}: {text}" if text else str(row[0]) for row, text in zip(self.rows, cells, strict=True)]


def columns_of(model: type[Model]) -> list[str]:
    """Return the columns of a report, as docs/reports.md documents them."""
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
    """Prefix a text that a spreadsheet would take for a formula. Clients and gateways choose some of the texts."""
    return f"'{value}" if isinstance(value, str) and value.lstrip().startswith(_FORMULA) else value
