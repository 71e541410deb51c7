"""Charts of the first page: what became of pushes and their wait for the gateway, and figures of the last hour."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.contrib.admin.models import LogEntry
from django.db.models import Q
from django.utils.text import Truncator

from notifications.models import Notification
from pushserver.console.health.history import AROUND, DELIVERED, FAILED, Counts, Hour, period_of, read_counts
from pushserver.console.health.history import Figure as Counted
from pushserver.console.health.indicators import INCIDENTS_PAGE
from pushserver.console.health.traffic import DAY, MINUTE
from pushserver.console.health.verdicts import Group, Kind
from pushserver.console.models import Incident, ServerStart
from pushserver.console.reports.formats import NOTHING, count, milliseconds
from pushserver.console.toolkit.charts import Chart, Event
from pushserver.console.toolkit.labels import Family
from pushserver.console.toolkit.related import readable_by

State = Notification.State
# Incidents, starts and staff actions in a period: the newest of each.
MAX_MARKS = 20
MAX_EVENT = 60  # characters
Column = Sequence[float | None]
Show = Callable[[float | None], str]


class Figure(NamedTuple):
    """One chart. ``words`` has its figures for people who only glance at it."""

    words: str
    chart: Chart


def trend_figures(trend: Counts, user: Any) -> list[Figure]:
    """Return the charts of a period, with the incidents, starts and staff actions that this user may see."""
    name, meanwhile = trend.period.name, list(_events(trend, user))
    labels = [_clock(begin_at, trend) for begin_at in trend.begins_at]
    ended = {
        "delivered": trend.ended(State.DELIVERED),
        "failed": trend.ended(*FAILED),
        "merged": trend.ended(State.COALESCED),
    }
    waiting = {"waiting": trend.waiting()}
    sums = [f"{word} {count(_sum(column))}" for word, column in ended.items()]
    newest = next((number for number in reversed(waiting["waiting"]) if number is not None), None)
    waits = {word: trend.wait(share) for word, share in SHARES.items()}
    within = [f"{word} {milliseconds(trend.wait_of_all(share))}" for word, share in SHARES.items()]
    return [
        Figure(
            ", ".join([*sums, f"waiting {count(newest)}"]),
            Chart(f"Notifications in {name}", labels, ended | waiting, count, events=meanwhile),
        ),
        Figure(
            ", ".join(within),
            Chart(f"From a request to the gateway in {name}", labels, waits, milliseconds, events=meanwhile),
        ),
    ]


def incident_figure(incident: Incident, kind: Kind | None, now: datetime, user: Any) -> Figure:
    """Return the chart of an incident: the figure of its indicator before and meanwhile, and after a past one."""
    end = min(now, (incident.ended_at or now) + AROUND)
    period, is_of_waits = period_of(incident.began_at, end, now), kind is not None and kind.id in OF_WAITS
    figures = (Counted.WAITS,) if is_of_waits else (Counted.REQUESTS, Counted.ENDS, Counted.WAITING)
    trend = read_counts(period, min(now, end + period.step), *figures)  # with the step that has the end
    group = kind.group if kind else None
    own = {
        "requests": trend.requests(),
        "delivered": trend.ended(State.DELIVERED),
        "failed": trend.ended(*FAILED),
        "waiting": trend.waiting(),
    }
    title, show, columns = "Requests and notifications", count, own
    if is_of_waits:
        title, show = "From a request to the gateway", milliseconds
        columns = {word: trend.wait(share) for word, share in SHARES.items()}
    elif group in {Group.IN, Group.OUT}:
        left_out = "requests" if group == Group.OUT else "waiting"
        title = "Notifications" if group == Group.OUT else title
        columns = {name: column for name, column in own.items() if name != left_out}
    labels = [_clock(at, trend) for at in trend.begins_at]
    newest = {
        name: next((number for number in reversed(column) if number is not None), None)
        for name, column in columns.items()
    }
    words = ", ".join(f"{name} {show(number)}" for name, number in newest.items() if number is not None)
    return Figure(words, Chart(title, labels, columns, show, events=list(_events(trend, user))))


# Indicators of how long pushes wait.
OF_WAITS = {"delivery", "answers", "database-speed"}
SHARES = {"median": 0.5, "95th percentile": 0.95, "99th percentile": 0.99}


def _clock(at: datetime, trend: Counts) -> str:
    """Return a time within a period, with its day where there are several."""
    return f"{at:%H:%M}" if trend.period.length <= DAY else f"{at:%a %-d, %H:%M}"


def _sum(column: Column) -> float | None:
    known = [number for number in column if number is not None]
    return sum(known) if known else None


def _events(trend: Counts, user: Any) -> Iterator[Event]:
    """Yield the incidents that follow from no other, and as marks the starts of workers and what staff did."""
    begin, end = trend.span
    may_see = user.has_perm(INCIDENTS_PAGE.permission)

    def event(text: str, family: Family, began: datetime, ended: datetime | None = None) -> Event:
        steps = ((at - begin) // trend.period.step for at in (began, ended or began))
        first, last = (min(max(step, 0), len(trend.begins_at) - 1) for step in steps)
        return Event(f"{_clock(began, trend)} {Truncator(text).chars(MAX_EVENT)}", family, first, last)

    incidents = Incident.objects.filter(Q(ended_at=None) | Q(ended_at__gte=begin), cause="", began_at__lt=end)
    for incident in incidents.order_by("-began_at")[:MAX_MARKS] if may_see else ():
        family = Family.BAD if incident.red_from else Family.CAUTION
        yield event(f"{incident.name}: {incident.worst}", family, incident.began_at, incident.ended_at or end)
    starts = ServerStart.objects.filter(started_at__range=trend.span).order_by("-pk")
    for start in starts[:MAX_MARKS] if may_see else ():
        yield event(f"a worker of version {start.version} started", Family.QUIET, start.started_at)
    # The newest are read by their key, because no index has the time.
    entries = LogEntry.objects.filter(readable_by(user)).select_related("user").order_by("-pk")
    for entry in entries[:MAX_MARKS] if user.has_perm("admin.view_logentry") else ():
        if entry.action_time >= begin:
            yield event(f"{entry.user}: {entry.get_change_message()}", Family.WAITING, entry.action_time)


def hour_figures(hour: Hour, bridges: Mapping[str, str]) -> list[Figure]:
    """Return the charts of the last hour. ``bridges`` has the labels of bridges by name. With several bridges, the
    first chart shows the requests of each.
    """
    shown = bridges if len(bridges) > 1 else {}
    charts: list[tuple[str, dict[str, Column], Show]] = [
        (
            "Requests and replies per minute",
            {
                "requests": hour.column("request_count"),
                **{f"of these by {label}": hour.counts.requests(name) for name, label in shown.items()},
                "replies sent": hour.column("reply_count"),
            },
            count,
        ),
        (
            "Attempts per minute",
            {
                "delivered": hour.counts.column(Counted.ATTEMPTS, lambda key: key.outcome == DELIVERED),
                "not delivered": hour.counts.column(Counted.ATTEMPTS, lambda key: key.outcome != DELIVERED),
            },
            count,
        ),
        (
            "From a request to its sent reply",
            {"median": hour.column("reply_p50_ms"), "95th percentile": hour.column("reply_p95_ms")},
            milliseconds,
        ),
    ]
    labels = [f"{begin_at:%H:%M}" for begin_at in hour.counts.begins_at]
    return [
        Figure(_newest(hour, columns, show), Chart(title, labels, columns, show)) for title, columns, show in charts
    ]


def _newest(hour: Hour, columns: Mapping[str, Column], show: Show) -> str:
    if not hour.minutes:
        return "No minute of the last hour was counted."
    last = max(hour.minutes)
    position = hour.counts.begins_at.index(last)
    figures = [
        f"{name} {show(values[position])}" for name, values in columns.items() if show(values[position]) != NOTHING
    ]
    return f"{last:%H:%M} to {last + MINUTE:%H:%M} UTC: {', '.join(figures) or 'none'}"
