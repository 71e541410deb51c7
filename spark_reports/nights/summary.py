"""Summary of one night on one page, for the console, for printing and for mail."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from django.db.models import Count, Max, Q, QuerySet, Sum, Window

from spark_reports.jobs.tables import MIN_TOTAL, MIN_USUAL_DAYS, PLACE, USUAL_DAYS
from spark_reports.models import (
    Anomaly,
    DataQuality,
    ErrorRate,
    FailureSignature,
    Latency,
    LoadProfile,
    PublishedDay,
    TokenChurn,
)
from spark_reports.nights.nights import published_days

MAX_SIGNATURES = 10
# While there is no band, a stage that fails more than this is highlighted.
FAILING_RATE = 0.05
CHURN = ("active_at_start", "new", "returned", "unregistered", "died", "expired", "active_at_end")


@dataclass(frozen=True, slots=True)
class Finding:
    """All failed checks of one kind: how many there are, and the newest of them."""

    newest: DataQuality
    count: int


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one night.

    ``published`` is None while the day has no reports, and all other fields are empty then. ``churn`` sums all places.
    ``band_days`` is the number of the seven days before with which the figures are compared. ``is_stale`` says that
    facts behind the reports were exported again after them.
    """

    day: date
    published: PublishedDay | None
    anomalies: Sequence[Anomaly]
    findings: Sequence[Finding]
    stages: Sequence[Mapping[str, Any]]
    churn: Mapping[str, int]
    latencies: Sequence[Latency]
    signatures: Sequence[FailureSignature]
    loads: Sequence[LoadProfile]
    band_days: int
    is_stale: bool

    @property
    def verdict(self) -> str:
        """The night in one line."""
        if self.published is None:
            return "no reports"
        flags = _number(len(self.anomalies), "figure outside of its usual band", "figures outside of their usual band")
        if not self.has_band:
            failing = _number(len(self.failing), "stage fails", "stages fail")
            flags = f"no band yet: {self.band_days} of {USUAL_DAYS} days; {failing} more than {FAILING_RATE:.0%}"
        ambiguities = _number(len(self.findings), "finding about the data", "findings about the data")
        return f"{flags}, {ambiguities}"

    @property
    def has_band(self) -> bool:
        """Whether enough earlier days are known for a usual band."""
        return self.band_days >= MIN_USUAL_DAYS

    @property
    def failing(self) -> list[Mapping[str, Any]]:
        """The stages that fail more than FAILING_RATE, while there is no usual band."""
        if self.has_band:
            return []
        enough = [row for row in self.stages if row["total"] >= MIN_TOTAL]
        return [row for row in enough if row["failures"] / row["total"] > FAILING_RATE]

    @property
    def event_count(self) -> str:
        return f"{self.published.event_count:,}" if self.published else ""


def summarise(day: date) -> Summary:
    """Read the summary of a day."""
    churn = TokenChurn.objects.filter(day=day).aggregate(**{f"{name}_sum": Sum(name, default=0) for name in CHURN})
    signatures = FailureSignature.objects.filter(Q(is_new=True) | Q(is_rising=True), day=day)
    return Summary(
        day=day,
        published=PublishedDay.objects.filter(day=day).select_related("run").first(),
        anomalies=list(Anomaly.objects.filter(day=day).order_by("figure", "stage", *PLACE)),
        findings=findings_of(day, day),
        stages=list(sums_by_stage(ErrorRate.objects.filter(day=day, hour=None))),
        churn={name: churn[f"{name}_sum"] for name in CHURN},
        latencies=list(Latency.objects.filter(day=day, platform="all", bridge="all").order_by("stage")),
        signatures=list(signatures.order_by("-events")[:MAX_SIGNATURES]),
        loads=list(LoadProfile.objects.filter(day=day).order_by("role")),
        band_days=ErrorRate.objects.filter(day=day, hour=None).aggregate(days=Max("usual_days"))["days"] or 0,
        is_stale=published_days(day, day).filter(is_stale=True).exists(),
    )


def findings_of(first: date, last: date) -> list[Finding]:
    """Return the failed checks of these days, one finding for each kind of check."""
    failed = DataQuality.objects.filter(day__range=(first, last), is_ok=False)
    counted = failed.annotate(alike=Window(Count("pk"), partition_by="check_name"))
    newest = counted.order_by("check_name", "-day", "subject").distinct("check_name")
    return [Finding(check, check.alike) for check in newest]


def sums_by_stage(rates: QuerySet[Any], *moment: str) -> QuerySet[Any, dict[str, Any]]:
    """Sum error rates by stage, and by the columns ``moment``: all events (``total``), and ``failures``."""
    failures = Sum("events", filter=Q(is_failure=True), default=0)
    sums: QuerySet[Any, dict[str, Any]] = rates.values(*moment, "stage").annotate(
        total=Sum("events"), failures=failures
    )
    return sums.order_by(*moment, "stage")


def _number(count: int, one: str, several: str) -> str:
    return f"{count or 'no'} {one if count == 1 else several}"
