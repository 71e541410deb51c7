"""Charts: tables of figures, which `kit/charts.js` draws with the Chart.js of the theme.

The table stands beside the canvas. Screen readers read it, browsers without scripts show it, and the script takes its
figures from it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from pushserver.console.toolkit.labels import Family


class Kind(StrEnum):
    LINE = "line"
    BAR = "bar"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened meanwhile, from the ``first`` to the ``last`` label, counted from 0.

    It is drawn in the colour of its family: behind the lines, or on the line that it names.
    """

    text: str
    family: Family
    first: int
    last: int
    line: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over the same labels, or one column of bars. A value is None where it is unknown.

    ``show`` writes a value. The script knows the functions of `reports.formats` by their names, for its axis.
    """

    title: str
    labels: Sequence[str]
    columns: Mapping[str, Sequence[float | None]]
    show: Callable[[float | None], str]
    kind: Kind = Kind.LINE
    events: Sequence[Event] = ()

    def __bool__(self) -> bool:
        """Return whether there is anything to draw."""
        return any(value is not None for values in self.columns.values() for value in values)

    @property
    def unit(self) -> str:
        return self.show.__name__

    @property
    def rows(self) -> SafeString:
        """Return the rows of the table. A cell has its value as a number, too."""
        by_label = zip(*self.columns.values(), strict=True)
        rows = ((label, self._cells(values)) for label, values in zip(self.labels, by_label, strict=True))
        return format_html_join("", '<tr><th scope="row">{}</th>{}</tr>', rows)

    def _cells(self, values: Sequence[float | None]) -> SafeString:
        cells = (("" if value is None else value, self.show(value)) for value in values)
        return format_html_join("", '<td data-value="{}">{}</td>', cells)
