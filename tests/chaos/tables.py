"""Tables of figures that a fault run prints."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*map(str, row))
    Console(width=120).print(table)
