"""Nights of reports with figures for charts."""

from datetime import date, timedelta

from spark_reports.tests import rows


def make_busy_night(day: date, number: int) -> None:
    """Make the results of one night, with figures that go up and down."""
    rows.publish(day, events=1_200_000 + 7919 * number)
    for place, share in ((rows.IOS, 1.0), ({"platform": "android", "app_topic": ""}, 1.7)):
        for stage, rate in (("dispatch", 0.03), ("query", 0.002), ("registration", 0.08), ("reply", 0.01)):
            total = int(90_000 * share) + 311 * number
            failed = int(total * rate * (1 + number % 5 / 4))
            facts = {"stage": stage, "total": total, **place}
            rows.make_rate(day, events=failed, rate=failed / total, **facts)
            rows.make_rate(
                day,
                events=total - failed,
                rate=1 - failed / total,
                outcome="success",
                code="",
                is_failure=False,
                **facts,
            )
        rows.make_churn(day, new=30 + number % 7, died=8 + number % 4, **place)
        for weeks_ago in range(3):
            for age in range(1, 12 - 3 * weeks_ago):
                alive = {"survival": 0.98**age, "survival_low": 0.97**age, "survival_high": 0.99**age}
                cohort = date(2026, 8, 31) + timedelta(weeks=3 * weeks_ago)
                rows.make_lifetime(day, cohort=cohort, age_weeks=age, tokens=900 - weeks_ago, **alive, **place)
    for stage, median in (("answer", 80), ("reply", 120), ("gateway", 45), ("deliver", 260), ("decide", 6)):
        deadline = 0.98 + number % 3 / 200 if stage in {"answer", "reply"} else None
        # Higher percentiles take longer, as in a latency tail.
        tail = {f"p{share}_ms": times * median + 9.0 * number for share, times in ((90, 2), (95, 3), (99, 6))}
        rows.make_latency(day, stage=stage, p50_ms=median + number, within_deadline=deadline, **tail)
    for rank, signature in enumerate(("unregistered", "connect: connection refused", "BadDeviceToken", "<id> is gone")):
        rows.make_signature(day, signature=signature, events=400 // (rank + 1), is_new=rank == 3)
    for role in ("sender", "recipient"):
        rows.make_load(day, role=role, top_share=0.2 + number % 4 / 50, retry_amplification=1.05 + number % 6 / 50)
        for rank in range(1, 6):
            rows.make_actor(day, role=role, rank=rank, actor=f"{rank:x}" * 16, notifications=500 // rank)
    rows.make_anomaly(day)
