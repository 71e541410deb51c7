"""Rows of reports as Spark would have written them. A test names only the columns that matter."""

from datetime import date, datetime, timedelta
from typing import Any

from django.utils import timezone

from spark_reports.models import (
    Anomaly,
    DataQuality,
    ErrorRate,
    FailureSignature,
    HeavyActor,
    Latency,
    LoadProfile,
    PublishedDay,
    ReportRun,
    TokenChurn,
    TokenLifetime,
)

APP = "im.status.ethereum"
IOS = {"platform": "ios", "app_topic": APP, "bridge": "waku"}


def make_run(day: date, **facts: Any) -> ReportRun:
    now = timezone.now()
    return ReportRun.objects.create(
        **{"from_day": day, "to_day": day, "state": "succeeded", "step": "done", "started_at": now, "seen_at": now,
           "finished_at": now} | facts
    )  # fmt: skip


def publish(day: date, *, events: int = 1234, at: datetime | None = None, **facts: Any) -> PublishedDay:
    return PublishedDay.objects.create(
        day=day, run=make_run(day), event_count=events, published_at=at or timezone.now(), **facts
    )


def make_rate(day: date, **facts: Any) -> ErrorRate:
    """Make the error rate of 10 pushes of 200 to iPhones that found a dead token, with its interval."""
    return ErrorRate.objects.create(
        **{"day": day, "hour": None, "stage": "dispatch", "outcome": "dead", "code": "unregistered", "is_failure": True,
           "events": 10, "total": 200, "rate": 0.05, "rate_low": 0.0274, "rate_high": 0.0895, "usual_rate": 0.04,
           "change": 0.01, "z_score": 0.5, "usual_days": 7} | IOS | facts
    )  # fmt: skip


def make_churn(day: date, **facts: Any) -> TokenChurn:
    return TokenChurn.objects.create(
        **{"day": day, "active_at_start": 1000, "new": 30, "returned": 5, "moved_in": 0, "refreshed": 400,
           "token_changed": 7, "unregistered": 12, "died": 8, "expired": 0, "moved_out": 0, "active_at_end": 1015,
           "unexplained": 0, "churn_rate": 0.02, "net_growth": 15} | IOS | facts
    )  # fmt: skip


def make_lifetime(day: date, **facts: Any) -> TokenLifetime:
    return TokenLifetime.objects.create(
        **{"day": day, "cohort": day - timedelta(days=28), "age_weeks": 1, "tokens": 500, "at_risk": 3500, "ended": 20,
           "survival": 0.96, "survival_low": 0.94, "survival_high": 0.98, "is_complete": True} | IOS | facts
    )  # fmt: skip


def make_latency(day: date, **facts: Any) -> Latency:
    return Latency.objects.create(
        **{"day": day, "stage": "answer", "platform": "all", "bridge": "all", "events": 321, "p50_ms": 87.0,
           "p90_ms": 140.0, "p95_ms": 180.0, "p99_ms": 1234.0, "max_us": 2_900_000, "within_deadline": 0.987} | facts
    )  # fmt: skip


def make_signature(day: date, **facts: Any) -> FailureSignature:
    return FailureSignature.objects.create(
        **{"day": day, "source": "unknown", "platform": "ios", "signature": "=HYPERLINK(x)", "events": 42,
           "usual_events": 3.0, "is_new": True, "is_rising": True, "first_seen_on": day, "last_seen_on": day,
           "usual_days": 7, "known_days": 30} | facts
    )  # fmt: skip


def make_load(day: date, **facts: Any) -> LoadProfile:
    return LoadProfile.objects.create(
        **{"day": day, "role": "recipient", "actors": 900, "notifications": 2500, "top_actors": 9, "top_share": 0.21,
           "tried": 2400, "attempts": 2640, "retry_amplification": 1.1} | facts
    )  # fmt: skip


def make_actor(day: date, **facts: Any) -> HeavyActor:
    return HeavyActor.objects.create(
        **{"day": day, "role": "sender", "rank": 1, "actor": "0123456789abcdef", "notifications": 77, "attempts": 80,
           "refused": 2, "share": 0.03} | facts
    )  # fmt: skip


def make_anomaly(day: date, **facts: Any) -> Anomaly:
    return Anomaly.objects.create(
        **{"day": day, "figure": "error_rate", "stage": "dispatch", "events": 60, "total": 200, "value": 0.3,
           "usual": 0.05, "band_low": 0.0, "band_high": 0.12, "z_score": 12.5, "usual_days": 7} | IOS | facts
    )  # fmt: skip


def make_check(day: date, **facts: Any) -> DataQuality:
    return DataQuality.objects.create(
        **{"day": day, "check_name": "row_count", "subject": "attempts", "is_ok": False, "expected": 10, "found": 9}
        | facts
    )


def make_night(day: date, **facts: Any) -> None:
    """Make a row of every report."""
    publish(day, **facts)
    make_rate(day)
    make_rate(day, outcome="success", code="", is_failure=False, events=190, rate=0.95)
    make_rate(day, hour=7)
    make_churn(day)
    for age in range(1, 5):
        make_lifetime(day, age_weeks=age, survival=1 - 0.04 * age)
    make_latency(day)
    make_signature(day)
    make_load(day)
    make_load(day, role="sender", actors=400, top_share=0.33)
    make_actor(day)
    make_anomaly(day)
