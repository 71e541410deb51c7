"""Figures of the last hour: four small charts, with what happened meanwhile."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.admin.models import LogEntry
from django.db.models import Q
from django.utils.text import Truncator

from pushserver.console.health.hour import Hour
from pushserver.console.health.traffic import MINUTE
from pushserver.console.reports.formats import NOTHING, count, milliseconds
from pushserver.console.toolkit.charts import Chart, Event
from pushserver.console.toolkit.labels import Family
from pushserver.models import Incident, ServerStart

# Starts, and staff actions, in one hour: the newest.
MAX_MARKS = 20
MAX_EVENT = 60  # characters
Column = Sequence[float | None]
Show = Callable[[float | None], str]


@dataclass(frozen=True, slots=True)
class Figure:
    """One chart. ``newest`` has the figures of the last minute in words."""

    newest: str
    chart: Chart


def figures(hour: Hour, bridges: Mapping[str, str], user: Any) -> list[Figure]:
    """Return the four charts. ``bridges`` has the labels of bridges by name. With several bridges, the first chart
    shows the requests of each.
    """
    shown = bridges if len(bridges) > 1 else {}
    charts: list[tuple[str, dict[str, Column], Show]] = [
        (
            "Requests and replies per minute",
            {
                "requests": hour.column("request_count"),
                **{f"of these by {label}": hour.requests_by(name) for name, label in shown.items()},
                "replies sent": hour.column("reply_count"),
            },
            count,
        ),
        (
            "Attempts per minute",
            {"delivered": hour.tried(delivered=True), "not delivered": hour.tried(delivered=False)},
            count,
        ),
        (
            "From a request to its first push",
            {"median": hour.column("dispatch_p50_ms"), "95th percentile": hour.column("dispatch_p95_ms")},
            milliseconds,
        ),
        (
            "From a request to its sent reply",
            {"median": hour.column("reply_p50_ms"), "95th percentile": hour.column("reply_p95_ms")},
            milliseconds,
        ),
    ]
    labels = [f"{begin_at:%H:%M}" for begin_at in hour.begins_at]
    meanwhile = list(_events(hour, user))
    return [
        Figure(_newest(hour, columns, show), Chart(title, labels, columns, show, events=meanwhile))
        for title, columns, show in charts
    ]


def _events(hour: Hour, user: Any) -> Iterator[Event]:
    """Yield the incidents that follow from no other, and as marks the starts of workers and what staff did."""
    begin, end = hour.span

    def event(text: str, family: Family, began: datetime, ended: datetime | None = None) -> Event:
        minutes = ((at - begin) // MINUTE for at in (began, ended or began))
        first, last = (min(max(minute, 0), len(hour.begins_at) - 1) for minute in minutes)
        return Event(f"{began:%H:%M} {Truncator(text).chars(MAX_EVENT)}", family, first, last)

    for incident in Incident.objects.filter(Q(ended_at=None) | Q(ended_at__gte=begin), cause="", began_at__lt=end):
        family = Family.BAD if incident.red_from else Family.CAUTION
        yield event(f"{incident.name}: {incident.worst}", family, incident.began_at, incident.ended_at or end)
    starts = ServerStart.objects.filter(started_at__range=hour.span).order_by("-pk")
    for start in starts[:MAX_MARKS]:
        yield event(f"a worker of version {start.version} started", Family.QUIET, start.started_at)
    # The newest are read by their key, because no index has the time.
    entries = LogEntry.objects.select_related("user").order_by("-pk")
    for entry in entries[:MAX_MARKS] if user.has_perm("admin.view_logentry") else ():
        if entry.action_time >= begin:
            yield event(f"{entry.user}: {entry.get_change_message()}", Family.WAITING, entry.action_time)


def brief(value: float | None) -> str:
    """Return a time in words. Less than a millisecond is not shown as zero."""
    return "less than 1 ms" if value is not None and value < 1 else milliseconds(value)


def _newest(hour: Hour, columns: Mapping[str, Column], show: Show) -> str:
    if not hour.counted:
        return "No minute of the last hour was counted."
    last = max(hour.counted)
    position = hour.begins_at.index(last)
    say = brief if show is milliseconds else show
    figures = [
        f"{name} {say(values[position])}" for name, values in columns.items() if say(values[position]) != NOTHING
    ]
    return f"{last:%H:%M} to {last + MINUTE:%H:%M} UTC: {', '.join(figures) or 'none'}"
