"""The tables of a night's summary, which are the same on the page and in the mail."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spark_reports.console import formats as f
from spark_reports.console.panels import anomaly_table
from spark_reports.console.tables import Table
from spark_reports.models import DataQuality
from spark_reports.nights.summary import FAILING_RATE, Summary

CHECKS = {
    "row_count": "rows were lost or doubled on the way",
    "timestamps": "rows were left out because their times are absurd",
    "reconciliation": "the flows of device tokens do not add up",
    "unknown_values": "rows have words that this version does not know, and count as unknown",
    "history": "it rests on fewer earlier days than there could be",
    "continuity": "the day does not begin where the day before ended",
    "retention": "parts of the day were removed before it was exported",
}


def sections(night: Summary) -> list[Table]:
    """Return those tables of a night that have rows."""
    return [table for table in _all(night) if table.rows]


def finding_words(finding: DataQuality) -> str:
    """Return a finding about data quality in words."""
    meaning = CHECKS.get(finding.check_name, finding.check_name)
    figures = f"expected {finding.expected:,}, found {finding.found:,}"
    return f"{finding.day} {finding.subject}: {meaning} ({figures})"


def _all(night: Summary) -> Iterator[Table]:
    yield anomaly_table(night.anomalies)
    yield _failing(night)
    yield Table("Doubts about the data", ("what",), [(finding_words(finding),) for finding in night.findings])
    yield _stages(night)
    yield _churn(night)
    yield _latencies(night)
    yield _signatures(night)
    yield _loads(night)


def _failing(night: Summary) -> Table:
    return _stage_table(f"More than {FAILING_RATE:.0%} failures, while nothing is known to be usual", night.failing)


def _stages(night: Summary) -> Table:
    return _stage_table("Failures by stage", night.stages)


def _stage_table(caption: str, stages: Sequence[Mapping[str, Any]]) -> Table:
    return Table(
        caption,
        ("stage", "events#", "failures#", "rate#", "95 % interval#"),
        [
            (
                row["stage"],
                *(f.count(row["total"]), f.count(row["failures"]), f.percent(row["rate"])),
                f.interval(*f.wilson(row["failures"], row["total"])),
            )
            for row in stages
        ],
    )


def _churn(night: Summary) -> Table:
    names = [name.replace("_", " ") for name in night.churn]
    figures = [f.count(number) for number in night.churn.values()]
    return Table(
        "Device tokens",
        ("all platforms", *[f"{name}#" for name in names], "churn rate#"),
        [("tokens", *figures, f.percent(night.churn_rate))] if any(night.churn.values()) else [],
    )


def _latencies(night: Summary) -> Table:
    return Table(
        "Latency",
        ("stage", "events#", "median#", "p95#", "p99#", "within deadline#"),
        [
            (
                *(row.stage, f.count(row.events)),
                *(f.milliseconds(value) for value in (row.p50_ms, row.p95_ms, row.p99_ms)),
                f.percent(row.within_deadline),
            )
            for row in night.latencies
        ],
    )


def _signatures(night: Summary) -> Table:
    return Table(
        "New and rising failures",
        ("signature", "platform", "events#", "usual#", "trend"),
        [
            (
                *(row.signature or f.NOTHING, row.platform, f.count(row.events), f.count(row.usual_events)),
                "new" if row.is_new else "rising",
            )
            for row in night.signatures
        ],
    )


def _loads(night: Summary) -> Table:
    return Table(
        "Load",
        ("role", "actors#", "notifications#", "share of the heaviest 1 %#", "attempts per notification#"),
        [
            (
                *(row.role, f.count(row.actors), f.count(row.notifications)),
                *(f.percent(row.top_share), f.ratio(row.retry_amplification)),
            )
            for row in night.loads
        ],
    )
