"""Tables of a night's summary, which are the same on the page and in the mail."""

from collections.abc import Iterable, Iterator

from pushserver.console.reports import formats as f
from pushserver.console.reports.panels import STAGE_COLUMNS, anomaly_table, churn_rate
from pushserver.console.reports.tables import Cell, Table, table_of
from spark_reports.models import PublishedDay
from spark_reports.nights.summary import FAILING_RATE, Finding, Summary
from spark_reports.running.lineage import SHOWN_DIGITS

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
    """Return the tables of a night that have rows."""
    return [table for table in _all(night) if table.rows]


def finding_words(finding: Finding) -> str:
    """Return one line about all failed checks of a kind: their meaning, and the figures of the newest."""
    newest, others = finding.newest, finding.count - 1
    meaning = CHECKS.get(newest.check_name, newest.check_name)
    figures = f"expected {newest.expected:,}, found {newest.found:,}"
    more = f", and {others:,} more like it" if others else ""
    return f"{newest.day} {newest.subject}: {meaning} ({figures}){more}"


def lineage(nights: Iterable[PublishedDay]) -> Table:
    """Return the table of lineage: the facts and the code of each night's figures."""
    columns = (
        *("day", Cell("facts", lambda row: f.text(row.facts_digest[:SHOWN_DIGITS]))),
        Cell("code", lambda row: f.text(row.code_version)),
        Cell("published (UTC)", lambda row: f"{row.published_at:%Y-%m-%d %H:%M}"),
    )
    note = "Facts: digest of the files that the day was computed from. Code: version of the server, digest of the jobs."
    return table_of("Where these figures come from", columns, nights, note)


def _all(night: Summary) -> Iterator[Table]:
    yield anomaly_table(night.anomalies)
    failing = f"More than {FAILING_RATE:.0%} failures, while nothing is known to be usual"
    yield table_of(failing, STAGE_COLUMNS, night.failing)
    yield Table("Doubts about the data", ("what",), [(finding_words(finding),) for finding in night.findings])
    yield table_of("Failures by stage", STAGE_COLUMNS, night.stages)
    yield _churn(night)
    yield _latencies(night)
    yield _signatures(night)
    yield _loads(night)


def _churn(night: Summary) -> Table:
    names = [name.replace("_", " ") for name in night.churn]
    figures = [f.count(number) for number in night.churn.values()]
    return Table(
        "Device tokens",
        ("all platforms", *[f"{name}#" for name in names], "churn rate#"),
        [("tokens", *figures, f.percent(churn_rate(night.churn)))] if any(night.churn.values()) else [],
    )


def _latencies(night: Summary) -> Table:
    columns = ("stage", "events", ("p50_ms", "median"), ("p95_ms", "p95"), ("p99_ms", "p99"), "within_deadline")
    return table_of("Latency", columns, night.latencies)


def _signatures(night: Summary) -> Table:
    trend = Cell("trend", lambda row: "new" if row.is_new else "rising")
    columns = ("signature", "platform", "events", ("usual_events", "usual"), trend)
    return table_of("New and rising failures", columns, night.signatures)


def _loads(night: Summary) -> Table:
    columns = (
        *("role", "actors", "notifications", ("top_share", "share of the heaviest 1 %")),
        ("retry_amplification", "attempts per notification"),
    )
    return table_of("Load", columns, night.loads)
