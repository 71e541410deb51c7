"""The tables in which benchmarks print their figures."""

from collections.abc import Container, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

Cell = str | float


def show(
    title: str, columns: Sequence[str], rows: Mapping[str, Sequence[Cell]], digits: int = 2, missed: Container[str] = ()
) -> None:
    """Print a table. Rows have names, and those in ``missed`` have missed their goals."""
    table = Table(title=title)
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left", no_wrap=not place)
    for name, cells in rows.items():
        texts = [Text(_text(cell, digits)) for cell in (name, *cells)]
        table.add_row(*texts, style="red" if name in missed else "")
    Console(width=140).print(table)


def show_figures(title: str, figures: Mapping[str, float], goals: Mapping[str, str], *, digits: int = 2) -> None:
    """Print figures, and the goals of some of them, such as "≤ 3 ms"."""
    missed = {name for name, goal in goals.items() if not _is_met(figures[name], *goal.split())}
    rows = {name: (value, goals.get(name, ""), "missed" if name in missed else "") for name, value in figures.items()}
    show(title, ("figure", "value", "goal", ""), rows, digits=digits, missed=missed)


def _is_met(value: float, sign: str, limit: str, *_unit: str) -> bool:
    return value <= float(limit) if sign == "≤" else value >= float(limit)


def _text(cell: Cell, digits: int) -> str:
    return f"{cell:,.{digits}f}" if isinstance(cell, float) else f"{cell:,}" if isinstance(cell, int) else cell
