"""Builder of nights of reports: rows as Spark would have written them."""

from collections.abc import Callable, Mapping
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
from tests.rig.rows import M, make

IOS = {"platform": "ios", "app_topic": "im.status.ethereum", "bridge": "waku"}
ANDROID = {"platform": "android", "app_topic": "", "bridge": "waku"}


def report(model: type[M], defaults: Mapping[str, Any]) -> Callable[..., M]:
    """Return a function that makes a row of a report for a day. A test names only the columns that matter."""
    return lambda day, **facts: make(model, **{"day": day, **defaults} | facts)


# Ten pushes of 200 to iPhones that found a dead token, with the interval of that rate.
make_rate = report(ErrorRate, IOS | {
    "hour": None, "stage": "dispatch", "outcome": "dead", "code": "unregistered", "is_failure": True, "events": 10,
    "total": 200, "rate": 0.05, "rate_low": 0.0274, "rate_high": 0.0895, "usual_rate": 0.04, "change": 0.01,
    "z_score": 0.5, "usual_days": 7,
})  # fmt: skip
make_churn = report(TokenChurn, IOS | {
    "active_at_start": 1000, "new": 30, "returned": 5, "moved_in": 0, "refreshed": 400, "token_changed": 7,
    "unregistered": 12, "died": 8, "expired": 0, "moved_out": 0, "active_at_end": 1015, "unexplained": 0,
    "churn_rate": 0.02, "net_growth": 15,
})  # fmt: skip
make_latency = report(Latency, {
    "stage": "answer", "platform": "all", "bridge": "all", "events": 321, "p50_ms": 87.0, "p90_ms": 140.0,
    "p95_ms": 180.0, "p99_ms": 1234.0, "max_us": 2_900_000, "within_deadline": 0.987,
})  # fmt: skip
make_load = report(LoadProfile, {
    "role": "recipient", "actors": 900, "notifications": 2500, "top_actors": 9, "top_share": 0.21, "tried": 2400,
    "attempts": 2640, "retry_amplification": 1.1,
})  # fmt: skip
make_actor = report(HeavyActor, {
    "role": "sender", "rank": 1, "actor": "0123456789abcdef", "notifications": 77, "attempts": 80, "refused": 2,
    "share": 0.03,
})  # fmt: skip
make_anomaly = report(Anomaly, IOS | {
    "figure": "error_rate", "stage": "dispatch", "events": 60, "total": 200, "value": 0.3, "usual": 0.05,
    "band_low": 0.0, "band_high": 0.12, "z_score": 12.5, "usual_days": 7,
})  # fmt: skip
make_check = report(
    DataQuality, {"check_name": "row_count", "subject": "attempts", "is_ok": False, "expected": 10, "found": 9}
)


def make_lifetime(day: date, **facts: Any) -> TokenLifetime:
    return TokenLifetime.objects.create(
        **{"day": day, "cohort": day - timedelta(days=28), "age_weeks": 1, "tokens": 500, "at_risk": 3500, "ended": 20,
           "survival": 0.96, "survival_low": 0.94, "survival_high": 0.98, "is_complete": True} | IOS | facts
    )  # fmt: skip


def make_signature(day: date, **facts: Any) -> FailureSignature:
    return FailureSignature.objects.create(
        **{"day": day, "source": "unknown", "platform": "ios", "signature": "=HYPERLINK(x)", "events": 42,
           "usual_events": 3.0, "is_new": True, "is_rising": True, "first_seen_on": day, "last_seen_on": day,
           "usual_days": 7, "known_days": 30} | facts
    )  # fmt: skip


def make_run(day: date, **facts: Any) -> ReportRun:
    over = {"state": "succeeded", "step": "done", "finished_at": timezone.now()}
    return make(ReportRun, from_day=day, to_day=day, **over | facts)


def publish(day: date, *, events: int = 1234, at: datetime | None = None, **facts: Any) -> PublishedDay:
    return make(PublishedDay, day=day, run=make_run(day), event_count=events, at=at, **facts)


def make_night(day: date, **facts: Any) -> None:
    """Make a row of every report."""
    publish(day, **facts)
    make_rate(day)
    make_rate(day, outcome="success", code="", is_failure=False, events=190, rate=0.95)
    make_rate(day, hour=7)
    for age in range(1, 5):
        make_lifetime(day, age_weeks=age, survival=1 - 0.04 * age)
    make_load(day, role="sender", actors=400, top_share=0.33)
    for make_one in (make_churn, make_latency, make_signature, make_load, make_actor, make_anomaly):
        make_one(day)


def make_busy_night(day: date, number: int) -> None:
    """Make the results of one night, with figures for charts that go up and down."""
    publish(day, events=1_200_000 + 7919 * number)
    for place, share in ((IOS, 1.0), (ANDROID, 1.7)):
        for stage, rate in (("dispatch", 0.03), ("query", 0.002), ("registration", 0.08), ("reply", 0.01)):
            total = int(90_000 * share) + 311 * number
            failed = int(total * rate * (1 + number % 5 / 4))
            facts = {"stage": stage, "total": total, **place}
            make_rate(day, events=failed, rate=failed / total, **facts)
            success = {"outcome": "success", "code": "", "is_failure": False}
            make_rate(day, events=total - failed, rate=1 - failed / total, **success, **facts)
        make_churn(day, new=30 + number % 7, died=8 + number % 4, **place)
        for weeks_ago in range(3):
            cohort = date(2026, 8, 31) + timedelta(weeks=3 * weeks_ago)
            for age in range(1, 12 - 3 * weeks_ago):
                alive = {"survival": 0.98**age, "survival_low": 0.97**age, "survival_high": 0.99**age}
                make_lifetime(day, cohort=cohort, age_weeks=age, tokens=900 - weeks_ago, **alive, **place)
    for stage, median in (("answer", 80), ("reply", 120), ("gateway", 45), ("deliver", 260), ("decide", 6)):
        deadline = 0.98 + number % 3 / 200 if stage in {"answer", "reply"} else None
        # Higher percentiles take longer, as in a latency tail.
        tail = {f"p{share}_ms": times * median + 9.0 * number for share, times in ((90, 2), (95, 3), (99, 6))}
        make_latency(day, stage=stage, p50_ms=median + number, within_deadline=deadline, **tail)
    for rank, signature in enumerate(("unregistered", "connect: connection refused", "BadDeviceToken", "<id> is gone")):
        make_signature(day, signature=signature, events=400 // (rank + 1), is_new=rank == 3)
    for role in ("sender", "recipient"):
        make_load(day, role=role, top_share=0.2 + number % 4 / 50, retry_amplification=1.05 + number % 6 / 50)
        for rank in range(1, 6):
            make_actor(day, role=role, rank=rank, actor=f"{rank:x}" * 16, notifications=500 // rank)
    make_anomaly(day)
