"""Figures of the last hour: four small charts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pushserver.console.health.history.traffic import MINUTE
from pushserver.console.health.hour import Hour
from pushserver.console.reports.formats import NOTHING, count, milliseconds
from pushserver.console.toolkit.charts import Chart, Frame, Series, line_chart

FRAME = Frame(width=440, height=150, left=56, steps=2, max_labels=5, has_dots=False)
Column = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Figure:
    """One chart.

    ``newest`` has the figures of the last minute in words. ``chart`` is None without figures.
    """

    title: str
    newest: str
    chart: Chart | None


def figures(hour: Hour, bridges: Mapping[str, str]) -> list[Figure]:
    """Return the four charts. ``bridges`` has the labels of bridges by name. With several bridges, the first chart
    shows the requests of each.
    """
    shown = bridges if len(bridges) > 1 else {}
    return [
        _figure(
            hour,
            "Requests and replies per minute",
            {
                "requests": hour.column("request_count"),
                **{f"of these by {label}": hour.requests_by(name) for name, label in shown.items()},
                "replies sent": hour.column("reply_count"),
            },
            count,
        ),
        _figure(
            hour,
            "Attempts per minute",
            {"delivered": hour.tried(delivered=True), "not delivered": hour.tried(delivered=False)},
            count,
        ),
        _figure(
            hour,
            "From a request to its first push",
            {"median": hour.column("dispatch_p50_ms"), "95th percentile": hour.column("dispatch_p95_ms")},
            milliseconds,
        ),
        _figure(
            hour,
            "From a request to its sent reply",
            {"median": hour.column("reply_p50_ms"), "95th percentile": hour.column("reply_p95_ms")},
            milliseconds,
        ),
    ]


def _figure(hour: Hour, title: str, columns: dict[str, Column], show: Callable[[float | None], str]) -> Figure:
    labels = [f"{begin_at:%H:%M}" for begin_at in hour.begins_at]
    lines = [Series(name, values) for name, values in columns.items()]
    return Figure(title, _newest(hour, columns, show), line_chart(title, labels, lines, show, FRAME))


def brief(value: float | None) -> str:
    """Return a time in words. Less than a millisecond is not shown as zero."""
    return "less than 1 ms" if value is not None and value < 1 else milliseconds(value)


def _newest(hour: Hour, columns: dict[str, Column], show: Callable[[float | None], str]) -> str:
    if not hour.counted:
        return "No minute of the last hour was counted."
    last = max(hour.counted)
    position = hour.begins_at.index(last)
    say = brief if show is milliseconds else show
    figures = [
        f"{name} {say(values[position])}" for name, values in columns.items() if say(values[position]) != NOTHING
    ]
    return f"{last:%H:%M} to {last + MINUTE:%H:%M} UTC: {', '.join(figures) or 'none'}"
