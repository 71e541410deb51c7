"""Indicators of the nightly reports, and of the anomalies and findings of the newest night. The module is pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from kit.display import counted
from pushserver.console.health import pages
from pushserver.console.health.indicators import Group, Indicator, Kind, State

REPORTS = Kind("reports", Group.WATCH, "Reports", "PushServerReportsMissing", pages.REPORTS)
ANOMALIES = Kind("anomalies", Group.WATCH, "Anomalies", "IndicatorAnomalies", pages.REPORTS)
KINDS = (REPORTS, ANOMALIES)


@dataclass(frozen=True, slots=True)
class ReportsFacts:
    """The state of the nightly reports, with the anomalies and findings of the newest night."""

    is_off: bool = True
    is_missing: bool = False
    sentence: str = ""
    anomalies: Sequence[str] = ()
    findings: int = 0


def reports(facts: ReportsFacts) -> Indicator:
    """Judge whether the reports of the last night exist."""
    if facts.is_missing:
        first_step = (
            "Repair the fault that the run names. The night is then repeated by itself, or on demand from Last night."
        )
        return Indicator(REPORTS, State.YELLOW, facts.sentence, first_step, own_page=pages.RUNS)
    return Indicator(REPORTS, State.OFF if facts.is_off else State.GREEN, facts.sentence)


def anomalies(facts: ReportsFacts) -> Indicator:
    """Judge the newest night by its anomalies, then by findings about the data."""
    if facts.anomalies:
        more = f" (and {len(facts.anomalies) - 1} more)" if len(facts.anomalies) > 1 else ""
        sentence = f"outside of its usual band: {facts.anomalies[0]}{more}"
        first_step = "Check whether a release, an outage or a wrong set-up explains it."
        return Indicator(ANOMALIES, State.YELLOW, sentence, first_step)
    if facts.findings:
        sentence = f"{counted(facts.findings, 'finding')} about the data of the newest night"
        first_step = "The page of the night names each finding."
        return Indicator(ANOMALIES, State.YELLOW, sentence, first_step)
    state = State.OFF if facts.is_off else State.GREEN
    return Indicator(ANOMALIES, state, "none in the newest night")
