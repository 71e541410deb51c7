"""Tables of figures that a fault run prints."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*map(str, row))
    Console(width=120).print(table)


def at_share(ascending: Sequence[float], share: float) -> float:
    """Return the value that this share of all does not exceed, or 0 of none."""
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))] if ascending else 0.0
