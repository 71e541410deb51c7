"""The plan of one run: the files that it reads, verified by the server before Spark starts, and its output folder.

A plan is a JSON file on the driver's machine. Jobs read only the files that it lists. So they never count the files of
a broken export, or of a second export of the same day. Plain Python.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any

from spark_reports.jobs import tables

# Prefix of the lines of progress, which the program of the jobs prints and the server reads.
PROGRESS = "report "
Files = Mapping[str, Sequence[str]]  # by day (ISO): paths below the lake

# The number of days before its own that a run reads of each report, and of snapshots of counters.
LOOK_BACK_DAYS = {
    tables.ERROR_RATES.name: tables.USUAL_DAYS,
    tables.TOKEN_CHURN.name: tables.USUAL_DAYS,
    tables.FAILURE_SIGNATURES.name: tables.NEW_AFTER_DAYS,
}
LOOK_BACK_SNAPSHOTS = {tables.UNKNOWN_ERRORS.name: tables.USUAL_DAYS + 1}


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one run.

    ``days`` are the days to compute. ``facts`` and ``reports`` list files by table and day. The facts are of those days
    (snapshots of counters also of earlier ones), the reports of earlier days, for comparison. ``rows`` has the row
    counts of the manifests by table and day. ``history`` has by report and day the number of earlier days that are
    expected, and of those that are there. ``history_from`` has by day the first day with complete registration events.
    ``incomplete_days`` were exported after retention had begun to remove their rows. ``output`` is the folder below the
    lake for the results.
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
        """Return by day the number of earlier days that a report is compared with."""
        return {date.fromisoformat(day): found for day, (_, found) in self.history[report].items()}

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        values: dict[str, Any] = json.loads(text)
        return cls(**values)
