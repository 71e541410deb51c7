"""Charts as SVG, drawn by the server without a script. A page repeats the figures of a chart in a table below it.

The style sheet sets the colours. A line also has a dash pattern and a name, so that nobody depends on colours.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from math import ceil, floor, log10
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

RIGHT, TOP, BOTTOM = 12, 12, 28
BAR_HEIGHT, BAR_GAP, NAME_WIDTH, VALUE_WIDTH = 18, 8, 300, 90
MAX_NAME = 46
COLOURS = 8
# The distance between two grid lines is one of these, times a power of ten.
ROUND = (1, 2, 2.5, 4, 5)
Show = Callable[[float], str]
_ids = count(1)


@dataclass(frozen=True, slots=True)
class Frame:
    """The size of a line chart, in units of the SVG. ``has_dots`` is false for charts with too many points to mark."""

    width: int = 760
    height: int = 240
    left: int = 64
    steps: int = 4
    max_labels: int = 8
    has_dots: bool = True


WIDE = Frame()


@dataclass(frozen=True, slots=True)
class Series:
    """A named line: one value per label of the chart, or None where the value is unknown."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawn chart. A screen reader reads its ``title`` and the description in the SVG. The legend lists ``names``."""

    title: str
    svg: SafeString
    names: Sequence[str] = ()

    @property
    def legend(self) -> list[tuple[int, str]]:
        return [(number % COLOURS, name) for number, name in enumerate(self.names)]


def line_chart(
    title: str, labels: Sequence[str], series: Sequence[Series], show: Show, frame: Frame = WIDE
) -> Chart | None:
    """Draw several lines over the same labels. Return None when there is no value to draw."""
    values = [value for line in series for value in line.values if value is not None]
    if not values:
        return None
    ticks = ticks_up_to(max(values), show, frame.steps)
    top = ticks[-1]
    x = _spread(len(labels), frame)
    parts = [
        _grid(ticks, show, frame),
        _labels(labels, x, frame),
        *[_line(number % COLOURS, line, labels, x, top, show, frame) for number, line in enumerate(series)],
    ]
    described = (
        f"{len(series)} lines over {labels[0]} to {labels[-1]}; from {show(min(values))} to {show(max(values))}."
    )
    return Chart(title, _svg(title, described, (frame.width, frame.height), parts), [line.name for line in series])


def bar_chart(title: str, bars: Sequence[tuple[str, float]], show: Show) -> Chart | None:
    """Draw one bar below the other, each with its name and figure. Return None when there are no bars."""
    if not bars:
        return None
    longest = max(value for _, value in bars) or 1
    height = len(bars) * (BAR_HEIGHT + BAR_GAP) + BAR_GAP
    parts = [_bar(number, name, value, longest, show) for number, (name, value) in enumerate(bars)]
    described = f"{len(bars)} bars; the longest is {bars[0][0]} with {show(bars[0][1])}."
    return Chart(title, _svg(title, described, (WIDE.width, height), parts))


def _svg(title: str, description: str, size: tuple[int, int], parts: Sequence[SafeString]) -> SafeString:
    number = next(_ids)
    width, height = size
    return format_html(
        '<svg class="plot" viewBox="0 0 {w} {h}" role="img" aria-labelledby="chart-{n} chart-{n}-about">'
        '<title id="chart-{n}">{title}</title><desc id="chart-{n}-about">{about}</desc>{parts}</svg>',
        w=width,
        h=height,
        n=number,
        title=title,
        about=description,
        parts=_joined(parts),
    )


def _joined(parts: Sequence[SafeString]) -> SafeString:
    return format_html_join("", "{}", ((part,) for part in parts))


def ticks_up_to(highest: float, show: Show, steps: int) -> list[float]:
    """Return the values of the grid lines, from 0 up: at most ``steps`` equal steps, each of a round size.

    A fractional size that ``show`` would round to a whole number is skipped, so that no two lines have the same text.
    """
    highest = highest if highest > 0 else 1.0
    least = highest / steps * 0.999999
    exponent = floor(log10(least))
    sizes = (step * 10.0**power for power in count(exponent) for step in ROUND)
    size = next(size for size in sizes if size >= least and (size == round(size) or show(size) != show(round(size))))
    return [size * number for number in range(ceil(highest / size - 0.000001) + 1)]


def _spread(number: int, frame: Frame) -> list[float]:
    width = frame.width - frame.left - RIGHT
    return [frame.left + width * (n / (number - 1) if number > 1 else 0.5) for n in range(number)]


def _y(value: float, top: float, frame: Frame) -> float:
    return TOP + (frame.height - TOP - BOTTOM) * (1 - value / top)


def _grid(ticks: Sequence[float], show: Show, frame: Frame) -> SafeString:
    left, right = frame.left, frame.width - RIGHT
    line = (
        '<line class="grid" x1="{l}" x2="{r}" y1="{y}" y2="{y}"/><text class="tick" x="{t}" y="{y}" dy="4">{s}</text>'
    )
    return _joined(
        [format_html(line, l=left, r=right, t=left - 8, y=f"{_y(v, ticks[-1], frame):.1f}", s=show(v)) for v in ticks]
    )


def _labels(labels: Sequence[str], x: Sequence[float], frame: Frame) -> SafeString:
    every = -(-len(labels) // frame.max_labels)
    shown = [(f"{x[n]:.1f}", frame.height - 8, label) for n, label in enumerate(labels) if n % every == 0]
    return format_html_join("", '<text class="label" x="{}" y="{}">{}</text>', shown)


def _line(
    number: int, line: Series, labels: Sequence[str], x: Sequence[float], top: float, show: Show, frame: Frame
) -> SafeString:
    known = [(n, value) for n, value in enumerate(line.values) if value is not None and frame.has_dots]
    dots = format_html_join(
        "",
        '<circle cx="{}" cy="{}" r="3"><title>{}, {}: {}</title></circle>',
        ((f"{x[n]:.1f}", f"{_y(value, top, frame):.1f}", line.name, labels[n], show(value)) for n, value in known),
    )
    return format_html('<g class="series s{}"><path d="{}"/>{}</g>', number, _path(line.values, x, top, frame), dots)


def _path(values: Sequence[float | None], x: Sequence[float], top: float, frame: Frame) -> str:
    """Return the drawing commands of a line, which has a gap where a value is missing."""
    parts: list[str] = []
    is_drawing = False
    for n, value in enumerate(values):
        if value is not None:
            point = f"{x[n]:.1f} {_y(value, top, frame):.1f}"
            # A value between two missing ones is drawn as a dot.
            parts.append(f"L{point}" if is_drawing else f"M{point}h3")
        is_drawing = value is not None
    return " ".join(parts)


def _bar(number: int, name: str, value: float, longest: float, show: Show) -> SafeString:
    y = BAR_GAP + number * (BAR_HEIGHT + BAR_GAP)
    capacity = WIDE.width - NAME_WIDTH - VALUE_WIDTH
    figures: dict[str, Any] = {
        "name": name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…",
        "whole": name,
        "value": show(value),
        "y": y,
        "middle": y + BAR_HEIGHT - 5,
        "width": f"{max(1.0, capacity * value / longest):.1f}",
        "after": f"{NAME_WIDTH + max(1.0, capacity * value / longest) + 6:.1f}",
    }
    return format_html(
        '<g class="bar"><title>{whole}: {value}</title><text class="name" x="{left}" y="{middle}">{name}</text>'
        '<rect x="{start}" y="{y}" width="{width}" height="{height}" rx="2"/>'
        '<text class="value" x="{after}" y="{middle}">{value}</text></g>',
        left=NAME_WIDTH - 8,
        start=NAME_WIDTH,
        height=BAR_HEIGHT,
        **figures,
    )
