"""What one run reads and writes, decided and verified by the server before Spark starts.

A JSON file beside the driver. Jobs read the files it names and no others, so that what a broken export left behind, or
a second export of the same day, is never counted. Plain Python.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any

from spark_reports.jobs import tables

Files = Mapping[str, Sequence[str]]  # by day (ISO): paths below the lake

# How many days before its own a run looks back to in each report, and in snapshots of counters.
LOOK_BACK_DAYS = {
    tables.ERROR_RATES.name: 7,
    tables.TOKEN_CHURN.name: 7,
    tables.FAILURE_SIGNATURES.name: 30,
}
LOOK_BACK_SNAPSHOTS = {tables.UNKNOWN_ERRORS.name: 8}


@dataclass(frozen=True, slots=True)
class Plan:
    """``days`` are computed. ``facts`` and ``reports`` name files by table and day: facts of those days (snapshots of
    counters also of earlier ones), reports only of earlier days, for comparison. ``rows`` counts facts by table and
    day, as their manifests say. ``history`` tells by report and day on how many earlier days it could rest and on how
    many it does; ``history_from`` since when the registration events of a day are whole. ``incomplete_days`` were
    exported after retention had begun to remove them. ``output`` is the folder below the lake that takes the results.
    """

    days: Sequence[str]
    facts: Mapping[str, Files]
    reports: Mapping[str, Files]
    rows: Mapping[str, Mapping[str, int]]
    history: Mapping[str, Mapping[str, Sequence[int]]]
    history_from: Mapping[str, str]
    incomplete_days: Sequence[str]
    output: str

    @property
    def dates(self) -> list[date]:
        return [date.fromisoformat(day) for day in self.days]

    def found_days(self, report: str) -> dict[date, int]:
        """Return on how many earlier days a report rests, by day."""
        return {date.fromisoformat(day): found for day, (_, found) in self.history[report].items()}

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        values: dict[str, Any] = json.loads(text)
        return cls(**values)
