"""Panels of each report: its charts and tables. One function for each report computes them from the stored rows."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any

from django.contrib.postgres.aggregates import BoolOr
from django.db.models import Max, Min, QuerySet, Sum

from pushserver.console.reports import formats as f
from pushserver.console.reports.choice import Choice
from pushserver.console.reports.tables import MAX_ROWS, Cell, Shown, Table, cell_of, interval, table_of
from pushserver.console.toolkit.charts import Chart, Kind
from spark_reports.jobs.tables import PLACE, TOKEN_CHURN, USUAL_DAYS, Unit
from spark_reports.models import (
    Anomaly,
    ErrorRate,
    FailureSignature,
    HeavyActor,
    Latency,
    LoadProfile,
    Report,
    TokenChurn,
    TokenLifetime,
)
from spark_reports.nights.summary import sums_by_stage

MAX_LINES = 8
MAX_BARS = 10
AGES = (1, 2, 4, 8, 13, 26)
PERCENTILES = tuple((f"p{number}_ms", f"p{number}") for number in (50, 90, 95, 99))
STAGE_COLUMNS: Sequence[Shown] = (
    *("stage", ("total", "events"), Cell("failures#", lambda row: f.count(row["failures"]))),
    Cell("rate#", lambda row: f.percent(row["failures"] / row["total"])),
    Cell("95 % interval#", lambda row: f.interval(*f.wilson(row["failures"], row["total"]))),
)
FLOWS = tuple(column.name for column in TOKEN_CHURN.columns if column.unit is Unit.COUNT)
TOGETHER = ("platform", "bridge")  # latency also has rows for all platforms and for all bridges
IN, OUT = ("new", "returned"), ("unregistered", "died", "expired")


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart with a table of figures. Many a panel has only the table."""

    chart: Chart | None
    table: Table


Build = Callable[[Choice], Sequence[Panel]]
Point = tuple[str, date | int, float | None]  # the name of a line, a day or an hour, and a value


@dataclass(frozen=True, slots=True)
class ReportPage:
    """The page of one report. ``question`` is its subtitle, and ``filters`` are columns of its model.

    ``beside`` has the rows of other reports that the page also shows, by the names of their CSV files.
    """

    slug: str
    title: str
    question: str
    model: type[Report]
    filters: Sequence[str]
    build: Build
    beside: Mapping[str, Callable[[Choice], QuerySet[Any]]] = field(default_factory=dict)


def _newest_first(rows: Iterable[Any], moment: Callable[[Any], Any]) -> list[Any]:
    """Return the rows, newest moment first. Rows of one moment keep their order, which is that of the legend."""
    return sorted(rows, key=moment, reverse=True)  # the sort is stable, also in reverse


def _chart(
    title: str, moments: Sequence[date | int], points: Iterable[Point], show: Callable[..., str]
) -> Chart | None:
    """Return a chart with a line for each name, or None for a single moment, whose figures stand in the table."""
    values: dict[str, dict[date | int, float | None]] = defaultdict(dict)
    for name, moment, value in points:
        values[name][moment] = value
    lines = {name: [known.get(moment) for moment in moments] for name, known in values.items()}
    return Chart(title, [_label(moment) for moment in moments], lines, show) if len(moments) > 1 else None


def _label(moment: date | int) -> str:
    return f"{moment:%m-%d}" if isinstance(moment, date) else f"{moment:02}:00"


# Error rates ----------------------------------------------------------------------------------------------------------
def error_rates(choice: Choice) -> Sequence[Panel]:
    """Show the share of failures by stage as chart and table, and the outcomes of the last day."""
    moment = "hour" if choice.first == choice.last else "day"
    rows = choice.rows(ErrorRate).filter(hour__isnull=moment == "day")
    sums = list(sums_by_stage(rows, moment))
    rates = [(row["stage"], row[moment], row["failures"] / row["total"]) for row in sums]
    title = f"Share of failures by {moment} and stage"
    chart = _chart(title, range(24) if moment == "hour" else choice.days, rates, f.percent)
    return [_flags(choice, "error_rate"), Panel(chart, _rates_table(title, moment, sums)), _outcomes(choice)]


def _rates_table(title: str, moment: str, sums: Sequence[Mapping[str, Any]]) -> Table:
    at = Cell(f"{moment} (UTC)", lambda row: _label(row["hour"]) if moment == "hour" else row["day"])
    return table_of(title, (at, *STAGE_COLUMNS), _newest_first(sums, itemgetter(moment)))


def _outcomes(choice: Choice) -> Panel:
    rows = choice.rows_of_last_day(ErrorRate).filter(hour=None).order_by("-is_failure", "-events")[: MAX_ROWS + 1]
    columns = (
        *("stage", *PLACE, "outcome", "code", "events", "rate", interval("95 % interval", "rate_low", "rate_high")),
        *(("usual_rate", "usual"), "change", ("z_score", "z")),
    )
    note = (
        "Failures first. Usual: median of the seven days before; change in percentage points; z: beyond 3.5 is unusual."
    )
    return Panel(None, table_of(f"Outcomes of {choice.last_day}", columns, rows, f"{note} {_band_words(rows)}"))


def _band_words(rows: Iterable[ErrorRate]) -> str:
    """Return a sentence about the days that rates are compared with, or an empty text if no day is missing."""
    days = max((row.usual_days for row in rows), default=0)
    return f"Compared with {days} of {USUAL_DAYS} days." if days < USUAL_DAYS else ""


# Tokens ---------------------------------------------------------------------------------------------------------------
def token_churn(choice: Choice) -> Sequence[Panel]:
    """Show the churn rate, the tokens that came and went, and the churn of the last day by place."""
    sums = _flows_by_day(choice)
    rates = [("churn rate", row["day"], churn_rate(row)) for row in sums]
    moves = [(name, row["day"], _sum(row, flows)) for row in sums for name, flows in (("came", IN), ("went", OUT))]
    rate = _chart("Churn rate by day", choice.days, rates, f.percent)
    flows = _chart("Device tokens that came and went, by day", choice.days, moves, f.count)
    places = list(choice.rows_of_last_day(TokenChurn).values(*PLACE, *FLOWS).order_by(*PLACE))
    note = (
        "Start + new + returned + moved in - unregistered - died - expired - moved out = end; the rest is unexplained."
    )
    by_day = _churn_table("Churn by day", ("day",), reversed(sums), note)
    by_place = _churn_table(f"Churn of {choice.last_day} by platform, app and bridge", PLACE, places)
    return [_flags(choice, "churn_rate"), Panel(rate, by_day), Panel(flows, by_place)]


def _flows_by_day(choice: Choice) -> list[dict[str, Any]]:
    summed = choice.rows(TokenChurn).values("day").annotate(**{f"{name}_sum": Sum(name) for name in FLOWS})
    return [{"day": row["day"], **{name: row[f"{name}_sum"] for name in FLOWS}} for row in summed.order_by("day")]


def _sum(row: Mapping[str, Any], flows: Iterable[str]) -> int:
    return sum(row[name] for name in flows)


def churn_rate(row: Mapping[str, Any]) -> float | None:
    return _sum(row, OUT) / row["active_at_start"] if row["active_at_start"] else None


def _churn_table(caption: str, keys: Sequence[str], rows: Iterable[Mapping[str, Any]], note: str = "") -> Table:
    flows = [(name, name.removeprefix("active_").replace("_", " ")) for name in FLOWS[:-1]]
    return table_of(caption, (*keys, *flows, Cell("churn rate#", lambda row: f.percent(churn_rate(row)))), rows, note)


def token_lifetime(choice: Choice) -> Sequence[Panel]:
    """Show the survival of the largest cohorts, and a table of all of them."""
    rows = list(choice.rows_of_last_day(TokenLifetime).order_by(*PLACE, "cohort", "age_weeks"))
    cohorts: dict[Hashable, list[TokenLifetime]] = defaultdict(list)
    for row in rows:
        cohorts[row.platform, row.app_topic, row.bridge, row.cohort].append(row)
    largest = sorted(cohorts.values(), key=lambda found: -found[0].tokens)[:MAX_LINES]
    weeks = range(max((row.age_weeks for found in largest for row in found), default=0) + 1)
    curves = {_cohort(found[0]): _curve(found, weeks) for found in largest}
    title = "Survival of device tokens by age"
    chart = Chart(f"{title}, largest cohorts", [f"{week} w" for week in weeks], curves, f.percent)
    columns = (
        *(_of_first(name) for name in PLACE),
        *(_of_first(("cohort", "first registered in week of")), _of_first("tokens")),
        Cell("weeks seen#", lambda rows: rows[-1].age_weeks),
        *(_survival_at(age) for age in AGES),
        Cell(
            "95 % interval of the last#", lambda cohort: f.interval(cohort[-1].survival_low, cohort[-1].survival_high)
        ),
    )
    note = "Kaplan-Meier: the share of tokens that are neither dead, expired nor replaced at this age."
    caption = f"{title}, as known at the end of {choice.last_day}"
    return [Panel(chart, table_of(caption, columns, cohorts.values(), note))]


def _cohort(row: TokenLifetime) -> str:
    return f"{row.platform} {row.app_topic} {row.bridge} {row.cohort:%d %b %Y}".replace("  ", " ")


def _curve(cohort: Sequence[TokenLifetime], weeks: Iterable[int]) -> list[float | None]:
    known: dict[int, float | None] = {row.age_weeks: row.survival for row in cohort}
    return [known.get(week, 1.0 if week == 0 else None) for week in weeks]


def _of_first(column: Shown) -> Cell:
    cell = cell_of(column)
    return Cell(cell.heading, lambda rows: cell.show(rows[0]))


def _survival_at(age: int) -> Cell:
    def show(cohort: Sequence[TokenLifetime]) -> str:
        return f.percent(next((row.survival for row in cohort if row.age_weeks == age), None))

    return Cell(f"{age}\u00a0w#", show)


# Latency --------------------------------------------------------------------------------------------------------------
def latency(choice: Choice) -> Sequence[Panel]:
    """Show the latency of each stage: the 99th percentile, the median, and the share within the deadline.

    Without a filter, the figures are those of all platforms and bridges together.
    """
    together = {name: "all" for name in TOGETHER if name not in choice.filters}
    rows = list(choice.rows(Latency).filter(**together).order_by("day", "stage"))
    p99 = _by_stage("99th percentile by day and stage", choice, rows, "p99_ms", f.milliseconds)
    return [
        Panel(p99.chart, _latency_table(rows)),
        _by_stage("Median by day and stage", choice, rows, "p50_ms", f.milliseconds),
        _by_stage("Share within the reply deadline", choice, rows, "within_deadline", f.percent),
    ]


def _latency_table(rows: Sequence[Latency]) -> Table:
    figures: Sequence[Shown] = ("events", *PERCENTILES, ("max_us", "longest"), "within_deadline")
    columns = ("day", "stage", *TOGETHER, *figures)
    note = "The stages are explained in docs/figures.md. Only answer and reply have a deadline."
    return table_of("Latency by day and stage", columns, _newest_first(rows, attrgetter("day")), note)


def _by_stage(title: str, choice: Choice, rows: Sequence[Latency], column: str, show: Callable[..., str]) -> Panel:
    """Return a chart with a line for each stage, and a table with a row for each day and a column for each stage."""
    known = {(row.stage, row.day): getattr(row, column) for row in rows}
    stages = sorted({stage for (stage, _), value in known.items() if value is not None})
    points = [(stage, day, value) for (stage, day), value in known.items() if stage in stages]
    days = [day for day in reversed(choice.days) if any((stage, day) in known for stage in stages)]

    def of_stage(stage: str) -> Cell:
        return Cell(f"{stage}#", lambda day: show(known.get((stage, day))))

    table = table_of(title, (Cell("day", str), *[of_stage(stage) for stage in stages]), days)
    return Panel(_chart(title, choice.days, points, show), table)


# Failures and load ----------------------------------------------------------------------------------------------------
def failure_signatures(choice: Choice) -> Sequence[Panel]:
    """Show the most frequent failures, and whether they are new or rising."""
    found = (
        choice.rows(FailureSignature)
        .values("source", "platform", "signature")
        .annotate(
            total=Sum("events"),
            fresh=BoolOr("is_new"),
            rising=BoolOr("is_rising"),
            first=Min("first_seen_on"),
            last=Max("last_seen_on"),
        )
        .order_by("-total", "source", "platform", "signature")[: MAX_ROWS + 1]
    )
    rows = list(found)
    names = [f"{row['platform']} {f.text(row['signature'])}" for row in rows[:MAX_BARS]]
    bars = {"failures": [row["total"] for row in rows[:MAX_BARS]]}
    trend = Cell("trend", lambda row: "new" if row["fresh"] else "rising" if row["rising"] else f.NOTHING)
    columns = (
        *("signature", "source", "platform", ("total", "events")),
        *(trend, ("first", "first seen"), ("last", "last seen")),
    )
    note = (
        "Signatures hold nothing of one device. Source unknown: texts that no error rule knows. "
        "New: not seen in the thirty days before; rising: twice as often as usual, and at least 10 times."
    )
    chart = Chart("Most frequent failures", names, bars, f.count, Kind.BAR)
    return [Panel(chart, table_of("Failures in these days", columns, rows, note))]


def load_profile(choice: Choice) -> Sequence[Panel]:
    """Show the share of the heaviest 1 %, and the retries."""
    rows = list(choice.rows(LoadProfile).order_by("day", "role"))
    shares = [(f"{row.role}s", row.day, row.top_share) for row in rows]
    retries = [
        ("attempts per notification", row.day, row.retry_amplification) for row in rows if row.role == "recipient"
    ]
    title = "Share of notifications of the heaviest 1 %"
    columns = (
        *("day", "role", "actors", "notifications", ("top_actors", "heaviest 1 %"), ("top_share", "their share")),
        *("tried", "attempts", ("retry_amplification", "attempts per notification")),
    )
    table = table_of("Load by day and role", columns, _newest_first(rows, attrgetter("day")))
    return [
        Panel(_chart(title, choice.days, shares, f.percent), table),
        Panel(_chart("Retries", choice.days, retries, f.ratio), _heaviest(choice)),
    ]


def _heaviest(choice: Choice) -> Table:
    rows = choice.rows_of_last_day(HeavyActor).order_by("role", "rank")
    columns = ("role", "rank", ("actor", "pseudonym"), "notifications", "attempts", "refused", "share")
    note = (
        "Share: of all notifications of the role. Pseudonyms lead to nobody, and change with their key "
        "(REPORTS_PSEUDONYM_PERIOD). Five ranks share theirs, in no order: which of the five has which is not known."
    )
    return table_of(f"Heaviest senders and recipients of {choice.last_day}", columns, rows, note)


def _flags(choice: Choice, figure: str) -> Panel:
    """Return the panel of a figure's anomalies. The page omits a panel without rows."""
    return Panel(None, anomaly_table(_anomalies(figure, choice).order_by("-day", "stage", *PLACE)))


def _anomalies(figure: str, choice: Choice) -> QuerySet[Any]:
    return choice.rows(Anomaly).filter(figure=figure)


def anomaly_table(rows: Iterable[Anomaly]) -> Table:
    """Return the table of anomalies with the figures behind them."""
    columns = (
        *("day", Cell("figure", lambda row: row.figure.replace("_", " ")), "stage", *PLACE),
        *("events", ("total", "of"), ("value", "rate"), "usual"),
        *(interval("usual band", "band_low", "band_high"), ("z_score", "z")),
    )
    return table_of("Outside of the usual band", columns, rows)


PAGES = {
    page.slug: page
    for page in (
        ReportPage(
            "error-rates",
            "Error rates",
            "Which share of messages fails at each step, and is that unusual?",
            ErrorRate,
            ("stage", *PLACE),
            error_rates,
            {"anomalies": partial(_anomalies, "error_rate")},
        ),
        ReportPage(
            "token-churn",
            "Token churn",
            "How many device tokens come and go, and why?",
            TokenChurn,
            PLACE,
            token_churn,
            {"anomalies": partial(_anomalies, "churn_rate")},
        ),
        ReportPage(
            "token-lifetime",
            "Token lifetime",
            "How long can a device be reached?",
            TokenLifetime,
            PLACE,
            token_lifetime,
        ),
        ReportPage(
            "latency",
            "Latency",
            "How long does each step take?",
            Latency,
            ("stage", *TOGETHER),
            latency,
        ),
        ReportPage(
            "failure-signatures",
            "Failure signatures",
            "Which errors are frequent, new or rising?",
            FailureSignature,
            ("platform",),
            failure_signatures,
        ),
        ReportPage(
            "load-profile",
            "Load profile",
            "How unevenly is the load spread, and how much of it is retries?",
            LoadProfile,
            (),
            load_profile,
            {"heavy-actors": lambda choice: choice.rows(HeavyActor)},
        ),
    )
}
