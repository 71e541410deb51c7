"""Charts and tables of each report. One function for each report computes them from the stored rows."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any

from django.db.models import QuerySet

from pushserver.console.reports import formats as f
from pushserver.console.reports import sentences as say
from pushserver.console.reports.choice import Choice, choose
from pushserver.console.reports.sentences import TOGETHER, anomalies, of_all
from pushserver.console.reports.tables import MAX_ROWS, Cell, Table, columns, table_of
from pushserver.console.toolkit.charts import Chart, Event, Kind
from pushserver.console.toolkit.labels import Family
from spark_reports.jobs import tables
from spark_reports.jobs.tables import PLACE, TOKEN_CHURN, USUAL_DAYS
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
from spark_reports.nights.summary import FAILING_RATE, Summary, add_up, churn_by_day, summarise, sums_by_stage

MAX_LINES = 8
MAX_BARS = 10
NIGHTS = 14
AGES = (1, 2, 4, 8, 13, 26)
OF_STAGES = (
    Cell("stage", itemgetter("stage"), is_figure=False),
    Cell("events", lambda row: f.count(row["total"])),
    Cell("failures", lambda row: f.count(row["failures"])),
    Cell("rate", lambda row: f.percent(row["rate"])),
    Cell("95 % interval", lambda row: f.interval(*f.wilson(row["failures"], row["total"]))),
)
Show = Callable[..., str]
Parts = Iterator[Chart | Table]
Point = tuple[str, date | int, float | None]  # the name of a line, a day or an hour, and a value


@dataclass(frozen=True, slots=True)
class ReportPage:
    """The page of one report. ``filters`` are columns of its model, and ``say`` returns the sentence it begins with.

    ``beside`` has the rows of other reports that the page also shows, by the names of their CSV files.
    """

    model: type[Report]
    filters: Sequence[str]
    build: Callable[[Choice], Parts]
    say: Callable[[Choice], str]
    beside: Mapping[str, Callable[[Choice], QuerySet[Any]]]

    @property
    def slug(self) -> str:
        return self.model.table.name.replace("_", "-")

    @property
    def title(self) -> str:
        return self.slug.replace("-", " ").capitalize()

    def sentence(self, choice: Choice) -> str:
        """Return what a person would say about the newest of the days."""
        return self.say(choice) or f"There is no data for {self.title.lower()} of {choice.last_day}."


def _chart(
    title: str, moments: Sequence[date | int], points: Iterable[Point], show: Show, events: Iterable[Event] = ()
) -> Chart:
    """Return a chart with a line for each name. For a single moment it is empty: its figures stand in the table."""
    values: dict[str, dict[date | int, float | None]] = defaultdict(dict)
    for name, moment, value in points if len(moments) > 1 else ():
        values[name][moment] = value
    lines = {name: [known.get(moment) for moment in moments] for name, known in values.items()}
    return Chart(title, [_label(moment) for moment in moments], lines, show, events=list(events))


def _label(moment: date | int) -> str:
    return f"{moment:%m-%d}" if isinstance(moment, date) else f"{moment:02}:00"


# Error rates ----------------------------------------------------------------------------------------------------------
def error_rates(choice: Choice) -> Parts:
    """Show the share of failures by stage as chart and table, and the outcomes of the last day."""
    flagged = anomalies("error_rate", choice)
    yield unusual(flagged)
    moment = "hour" if choice.first == choice.last else "day"
    sums = sums_by_stage(choice.rows(ErrorRate).filter(hour__isnull=moment == "day"), moment)
    yield failures(choice, moment, sums, flagged)
    at = Cell(f"{moment} (UTC)", lambda row: _label(row["hour"]) if moment == "hour" else row["day"], is_figure=False)
    newest_first = sorted(sums, key=itemgetter(moment), reverse=True)
    yield table_of(f"Share of failures by {moment} and stage", (at, *OF_STAGES), newest_first)
    rows = choice.rows_of_last_day(ErrorRate).filter(hour=None).order_by("-is_failure", "-events")[: MAX_ROWS + 1]
    days = max((row.usual_days for row in rows), default=USUAL_DAYS)
    note = "Failures first. Usual: median of the seven days before; change in percentage points."
    note += f" Compared with {days} of {USUAL_DAYS} days." if days < USUAL_DAYS else ""
    cells = columns(tables.ERROR_RATES, "stage", without=("hour", "is_failure"))
    yield table_of(f"Outcomes of {choice.last_day}", cells, rows, note)


def failures(choice: Choice, moment: str, sums: Iterable[Mapping[str, Any]], flagged: Iterable[Anomaly]) -> Chart:
    """Return the chart of the share of failures by stage. By day, it marks what was unusual."""
    rates = [(row["stage"], row[moment], row["rate"]) for row in sums]
    moments, flagged = (choice.days, flagged) if moment == "day" else (range(24), ())
    marks = _marks(choice, flagged, attrgetter("stage"))
    return _chart(f"Share of failures by {moment} and stage", moments, rates, f.percent, marks)


def _marks(choice: Choice, flagged: Iterable[Anomaly], line: Callable[[Anomaly], str]) -> Iterator[Event]:
    """Yield a mark on a line of a chart for each anomaly."""
    for row in flagged:
        at = choice.days.index(row.day)
        place = " ".join(filter(None, (row.stage, row.platform, row.app_topic, row.bridge)))
        words = f"{place}: {f.percent(row.value)}, usually {f.interval(row.band_low, row.band_high)}"
        yield Event(f"{_label(row.day)} {words}", Family.BAD, at, at, line(row))


def unusual(rows: Iterable[Anomaly]) -> Table:
    """Return the table of anomalies. A page omits a table without rows."""
    return table_of("Unusual", columns(tables.ANOMALIES, "day", without=("figure",)), rows, is_open=True)


# Tokens ---------------------------------------------------------------------------------------------------------------
def token_churn(choice: Choice) -> Parts:
    """Show the churn rate, the tokens that came and went, and the churn of the last day by place."""
    flagged = anomalies("churn_rate", choice)
    yield unusual(flagged)
    days = churn_by_day(choice.rows(TokenChurn))
    rates = [("churn rate", row["day"], row["churn_rate"]) for row in days]
    marks = _marks(choice, flagged, lambda _row: "churn rate")
    note = (
        "Start + new + returned + moved in - unregistered - died - expired - moved out = end; the rest is unexplained."
    )
    yield _chart("Churn rate by day", choice.days, rates, f.percent, marks)
    yield table_of("Churn by day", columns(TOKEN_CHURN, "day", without=PLACE), reversed(days), note)
    directions = {"came": TOKEN_CHURN.of_kind(tables.Kind.FLOW_IN), "went": TOKEN_CHURN.of_kind(tables.Kind.FLOW_OUT)}
    moves = [(name, row["day"], sum(row[flow] for flow in flows)) for row in days for name, flows in directions.items()]
    yield _chart("Device tokens that came and went, by day", choice.days, moves, f.count)
    places = choice.rows_of_last_day(TokenChurn).order_by(*PLACE)
    yield table_of(f"Churn of {choice.last_day} by platform, app and bridge", columns(TOKEN_CHURN), places)


def token_lifetime(choice: Choice) -> Parts:
    """Show the survival of the largest cohorts, and a table of all of them."""
    key = (*PLACE, "cohort")
    rows = choice.rows_of_last_day(TokenLifetime).order_by(*key, "age_weeks")
    cohorts = [list(found) for _, found in groupby(rows, attrgetter(*key))]
    largest = sorted(cohorts, key=lambda found: -found[0].tokens)[:MAX_LINES]
    weeks = range(max((row.age_weeks for found in largest for row in found), default=0) + 1)
    curves = {_cohort(found[0]): _curve(found, weeks) for found in largest}
    title = "Survival of device tokens by age"
    cells = (
        *(_of_first(cell) for cell in columns(tables.TOKEN_LIFETIME, without=OF_AN_AGE)),
        Cell("weeks seen", lambda rows: rows[-1].age_weeks),
        *(Cell(f"{age}\u00a0w", partial(_survival_at, age)) for age in AGES),
        Cell("95 % interval of the last", lambda rows: f.interval(rows[-1].survival_low, rows[-1].survival_high)),
    )
    note = "The share of tokens that are neither dead, expired nor replaced at this age (Kaplan-Meier)."
    yield Chart(f"{title}, largest cohorts", [f"{week} w" for week in weeks], curves, f.percent)
    yield table_of(f"{title}, as known at the end of {choice.last_day}", cells, cohorts, note)


OF_AN_AGE = ("age_weeks", "at_risk", "ended", "survival", "survival_low")


def _cohort(row: TokenLifetime) -> str:
    return f"{row.platform} {row.app_topic} {row.bridge} {row.cohort:%d %b %Y}".replace("  ", " ")


def _curve(cohort: Sequence[TokenLifetime], weeks: Iterable[int]) -> list[float | None]:
    known: dict[int, float | None] = {0: 1.0} | {row.age_weeks: row.survival for row in cohort}
    return [known.get(week) for week in weeks]


def _of_first(cell: Cell) -> Cell:
    return Cell(cell.heading, lambda rows: cell.show(rows[0]), cell.is_figure)


def _survival_at(age: int, cohort: Sequence[TokenLifetime]) -> str:
    return f.percent(next((row.survival for row in cohort if row.age_weeks == age), None))


# Latency --------------------------------------------------------------------------------------------------------------
def latency(choice: Choice) -> Parts:
    """Show the latency of each stage: the 99th percentile, the median, and the share within the deadline."""
    rows = list(of_all(choice, choice.rows(Latency)).order_by("-day", "stage"))

    def drawn(title: str, column: str, show: Show) -> Chart:
        values = [(row.stage, row.day, getattr(row, column)) for row in rows]
        return _chart(title, choice.days, [point for point in values if point[2] is not None], show)

    yield drawn("99th percentile by day and stage", "p99_ms", f.milliseconds)
    note = "The stages are explained in docs/figures.md. Only answer and reply have a deadline."
    yield table_of("Latency by day and stage", columns(tables.LATENCY, "day"), rows, note)
    yield drawn("Median by day and stage", "p50_ms", f.milliseconds)
    yield drawn("Share within the reply deadline", "within_deadline", f.percent)


# Failures and load ----------------------------------------------------------------------------------------------------
def failure_signatures(choice: Choice) -> Parts:
    """Show the most frequent failures, and whether they are new or rising."""
    found = add_up(choice.rows(FailureSignature), "source", "platform", "signature")
    rows = sorted(found, key=lambda row: -row["events"])
    names = [f"{row['platform']} {f.plain(row['signature'])}" for row in rows[:MAX_BARS]]
    bars = {"failures": [row["events"] for row in rows[:MAX_BARS]]}
    note = (
        "Signatures hold nothing of one device. Source unknown: texts that no error rule knows. "
        "New: not seen in the thirty days before; rising: twice as often as usual, and at least 10 times."
    )
    yield Chart("Most frequent failures", names, bars, f.count, Kind.BAR)
    yield table_of("Failures in these days", columns(tables.FAILURE_SIGNATURES, "signature"), rows, note)


def load_profile(choice: Choice) -> Parts:
    """Show the share of the heaviest 1 %, and the retries."""
    rows = list(choice.rows(LoadProfile).order_by("-day", "role"))
    shares = [(f"{row.role}s", row.day, row.top_share) for row in rows]
    yield _chart("Share of notifications of the heaviest 1 %", choice.days, shares, f.percent)
    yield table_of("Load by day and role", columns(tables.LOAD_PROFILE, "day"), rows)
    tries = [("attempts per notification", row.day, row.retry_amplification) for row in rows if row.role == "recipient"]
    yield _chart("Retries", choice.days, tries, f.ratio)
    actors = choice.rows_of_last_day(HeavyActor).order_by("role", "rank")
    note = (
        "Share: of all notifications of the role. Pseudonyms lead to nobody, and change with their key "
        "(REPORTS_PSEUDONYM_PERIOD). Five ranks share theirs, in no order: which of the five has which is not known."
    )
    yield table_of(f"Heaviest senders and recipients of {choice.last_day}", columns(tables.HEAVY_ACTORS), actors, note)


# A night --------------------------------------------------------------------------------------------------------------
def night_of(day: date) -> dict[str, Any]:
    """Return what the page and the mail of a night show: its sentences, and its tables."""
    night, choice = summarise(day), choose(day, day)
    says = [(page, page.sentence(choice)) for page in PAGES.values()] if night.published else []
    return {"night": night, "headline": say.headline(night, choice), "says": says, "tables": _tables(night)}


def night_chart(day: date) -> Chart:
    """Return the one chart of a night: the failures of two weeks, with what was unusual."""
    choice = choose(date.fromordinal(max(1, day.toordinal() - NIGHTS + 1)), day)
    sums = sums_by_stage(choice.rows(ErrorRate).filter(hour=None), "day")
    return failures(choice, "day", sums, anomalies("error_rate", choice))


def _tables(night: Summary) -> list[Table]:
    """Return the tables of a night that have rows, which are the same on the page and in the mail."""
    failing = f"More than {FAILING_RATE:.0%} failures, while nothing is known to be usual"
    churn = columns(TOKEN_CHURN, "day", without=PLACE)
    latency = columns(tables.LATENCY, "stage", without=TOGETHER)
    what = [Cell("what", str, is_figure=False)]
    found = (
        unusual(night.anomalies),
        table_of(failing, OF_STAGES, night.failing, is_open=True),
        table_of("Doubts about the data", what, night.findings, is_open=True),
        table_of("Failures by stage", OF_STAGES, night.stages),
        table_of("Device tokens", churn, night.churn),
        table_of("Latency", latency, night.latencies),
        table_of("New and rising failures", columns(tables.FAILURE_SIGNATURES, "signature"), night.signatures),
        table_of("Load", columns(tables.LOAD_PROFILE), night.loads),
    )
    return [table for table in found if table.rows]


_PAGES = (
    ReportPage(
        ErrorRate, ("stage", *PLACE), error_rates, say.error_rates, {"anomalies": partial(anomalies, "error_rate")}
    ),
    ReportPage(TokenChurn, PLACE, token_churn, say.token_churn, {"anomalies": partial(anomalies, "churn_rate")}),
    ReportPage(TokenLifetime, PLACE, token_lifetime, say.token_lifetime, {}),
    ReportPage(Latency, ("stage", *TOGETHER), latency, say.latency, {}),
    ReportPage(FailureSignature, ("platform",), failure_signatures, say.failure_signatures, {}),
    ReportPage(
        LoadProfile, (), load_profile, say.load_profile, {"heavy-actors": lambda choice: choice.rows(HeavyActor)}
    ),
)
PAGES = {page.slug: page for page in _PAGES}
