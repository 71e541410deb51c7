"""Summary of one night on one page, for the console, for printing and for mail."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from django.contrib.postgres.aggregates import BoolOr
from django.db.models import Aggregate, Count, Max, Min, Q, QuerySet, Sum, Window

from spark_reports.jobs.tables import FLOWS, MIN_TOTAL, MIN_USUAL_DAYS, PLACE, TOKEN_CHURN, Column, Kind, Type
from spark_reports.models import (
    Anomaly,
    DataQuality,
    ErrorRate,
    FailureSignature,
    Latency,
    LoadProfile,
    PublishedDay,
    Report,
    TokenChurn,
)
from spark_reports.nights.nights import published_days

MAX_SIGNATURES = 10
# While nothing is known to be usual, a stage that fails more than this is highlighted.
FAILING_RATE = 0.05
LOST = TOKEN_CHURN.of_kind(Kind.FLOW_OUT)
SUMS: Mapping[Kind | None, Callable[[str], Aggregate]] = {
    **dict.fromkeys((Kind.COUNT, *FLOWS), Sum),
    Kind.FIRST: Min,
    Kind.LAST: Max,
}
CHECKS = {
    "row_count": "rows were lost or doubled on the way",
    "timestamps": "rows were left out because their times are absurd",
    "reconciliation": "the flows of device tokens do not add up",
    "unknown_values": "rows have words that this version does not know, and count as unknown",
    "history": "it rests on fewer earlier days than there could be",
    "continuity": "the day does not begin where the day before ended",
    "retention": "parts of the day were removed before it was exported",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """All failed checks of one kind: how many there are, and the newest of them."""

    newest: DataQuality
    count: int

    def __str__(self) -> str:
        """Return one line: what the checks mean, and the figures of the newest."""
        newest, others = self.newest, self.count - 1
        figures = f"expected {newest.expected:,}, found {newest.found:,}"
        more = f", and {others:,} more like it" if others else ""
        return f"{newest.day} {newest.subject}: {CHECKS.get(newest.check_name, newest.check_name)} ({figures}){more}"


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one night.

    ``published`` is None while the day has no reports, and all other fields are empty then. ``churn`` sums all places.
    ``usual_days`` is the number of the seven days before with which the figures are compared. ``is_stale`` says that
    facts behind the reports were exported again after them.
    """

    day: date
    published: PublishedDay | None
    anomalies: Sequence[Anomaly]
    findings: Sequence[Finding]
    stages: Sequence[Mapping[str, Any]]
    churn: Sequence[Mapping[str, Any]]
    latencies: Sequence[Latency]
    signatures: Sequence[FailureSignature]
    loads: Sequence[LoadProfile]
    usual_days: int
    is_stale: bool

    @property
    def knows_usual(self) -> bool:
        """Whether enough earlier days are known to call a figure unusual."""
        return self.usual_days >= MIN_USUAL_DAYS

    @property
    def failing(self) -> list[Mapping[str, Any]]:
        """The stages that fail more than FAILING_RATE, while nothing is known to be usual."""
        if self.knows_usual:
            return []
        return [row for row in self.stages if row["total"] >= MIN_TOTAL and row["rate"] > FAILING_RATE]

    @property
    def event_count(self) -> str:
        return f"{self.published.event_count:,}" if self.published else ""


def summarise(day: date) -> Summary:
    """Read the summary of a day."""
    signatures = FailureSignature.objects.filter(Q(is_new=True) | Q(is_rising=True), day=day)
    return Summary(
        day=day,
        published=PublishedDay.objects.filter(day=day).select_related("run").first(),
        anomalies=list(Anomaly.objects.filter(day=day).order_by("figure", "stage", *PLACE)),
        findings=findings_of(day, day),
        stages=sums_by_stage(ErrorRate.objects.filter(day=day, hour=None)),
        churn=churn_by_day(TokenChurn.objects.filter(day=day)),
        latencies=list(Latency.objects.filter(day=day, platform="all", bridge="all").order_by("stage")),
        signatures=list(signatures.order_by("-events")[:MAX_SIGNATURES]),
        loads=list(LoadProfile.objects.filter(day=day).order_by("role")),
        usual_days=ErrorRate.objects.filter(day=day, hour=None).aggregate(days=Max("usual_days"))["days"] or 0,
        is_stale=published_days(day, day).filter(is_stale=True).exists(),
    )


def findings_of(first: date, last: date) -> list[Finding]:
    """Return the failed checks of these days, one finding for each kind of check."""
    failed = DataQuality.objects.filter(day__range=(first, last), is_ok=False)
    counted = failed.annotate(alike=Window(Count("pk"), partition_by="check_name"))
    newest = counted.order_by("check_name", "-day", "subject").distinct("check_name")
    return [Finding(check, check.alike) for check in newest]


def sums_by_stage(rates: QuerySet[Any], *moment: str) -> list[dict[str, Any]]:
    """Sum error rates by stage, and by the columns ``moment``: ``total`` and ``failures``, and their ``rate``."""
    failures = Sum("events", filter=Q(is_failure=True), default=0)
    sums = rates.values(*moment, "stage").annotate(total=Sum("events"), failures=failures).order_by(*moment, "stage")
    return [row | {"rate": row["failures"] / row["total"]} for row in sums]


def add_up(rows: QuerySet[Any], *keys: str) -> list[dict[str, Any]]:
    """Add up rows of a report by some of its columns. Its figures are added up as their kind says."""
    report: type[Report] = rows.model
    sums = {column.name: found for column in report.table.columns if (found := _sum_of(column)) is not None}
    # A sum cannot have the name of a column.
    found = rows.values(*keys).annotate(**{f"sum_of_{name}": each for name, each in sums.items() if name not in keys})
    return [{name.removeprefix("sum_of_"): value for name, value in row.items()} for row in found.order_by(*keys)]


def _sum_of(column: Column) -> Aggregate | None:
    added_up = BoolOr if column.type == Type.BOOLEAN else SUMS.get(column.kind)
    return added_up(column.name) if added_up else None


def churn_by_day(rows: QuerySet[TokenChurn]) -> list[dict[str, Any]]:
    """Add up the churn of all places by day, oldest first."""
    return [row | {"churn_rate": churn_rate([row])} for row in add_up(rows, "day")]


def churn_rate(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the share of device tokens that was lost, of those that could be pushed to at the start of each day."""
    active = sum(row["active_at_start"] for row in rows)
    return sum(row[name] for row in rows for name in LOST) / active if active else None
