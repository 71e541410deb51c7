"""The plan of one run: its days, and what the server knows of them. Plain Python.

The plan is a JSON file in the folder of the run on the driver's machine. The folder also has the earlier reports, which
the server reads from PostgreSQL, and takes the results.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any

from spark_reports.jobs import tables

# Prefix of the lines of progress, which the program of the jobs prints and the server reads.
PROGRESS = "report "
PLAN, EARLIER, RESULTS = "plan.json", "earlier", "results"  # in the folder of a run
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

    ``days`` are the days to compute. ``snapshots`` are those and the earlier days whose counters are read. ``rows`` has
    the row counts of the days by table and day. ``history`` has by report and day the number of earlier days that are
    expected, and of those that are there. ``history_from`` has by day the first day with complete registration events.
    ``incomplete_days`` were exported after retention had begun to remove their rows.
    """

    days: Sequence[str]
    snapshots: Sequence[str]
    rows: Mapping[str, Mapping[str, int]]
    history: Mapping[str, Mapping[str, Sequence[int]]]
    history_from: Mapping[str, str]
    incomplete_days: Sequence[str]

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


def path_of(table: str, day: date | str) -> str:
    """Return the path below the lake of the file of a table and day."""
    return f"facts/{table}/day={day}/part-0.parquet"
