"""`manage.py run_reports`: export, compute and publish the reports of a day or a range, with progress."""

from datetime import date
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from rich.console import Console
from rich.progress import Progress as Bars
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from spark_reports.jobs.tables import REPORT_TABLES
from spark_reports.management.days import add_options, chosen_days, faults_in_one_line
from spark_reports.models import ReportRun
from spark_reports.running.runs import Progress, run_reports


class _Bars(Progress):
    """Progress with one line for each step: rows exported, reports computed."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._reports = 0
        self._task = bars.add_task("starting", total=None)

    def step(self, run: ReportRun) -> None:
        self._reports = 0
        self._bars.update(self._task, description=f"{run.from_day} to {run.to_day}: {run.step}")

    def rows(self, day: date, table: str, number: int) -> None:
        self._bars.update(self._task, description=f"{day}: export {table}", advance=number)

    def report(self, line: str) -> None:
        self._reports += 1
        self._bars.update(self._task, description=f"compute: {line} ({self._reports} of {len(REPORT_TABLES)})")


class Command(BaseCommand):
    help = (
        "Make the nightly reports of closed days (UTC). A second run of a day replaces its reports. Make the oldest "
        "day first, because reports are compared with those of the days before."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_options(parser)

    def handle(self, *_args: Any, **options: Any) -> None:
        first, last = chosen_days(options)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TextColumn("{task.completed:,.0f} rows exported"))
        bars = Bars(*columns, TimeElapsedColumn(), console=Console(stderr=True))
        with faults_in_one_line(), bars:
            runs = run_reports(first, last, progress=_Bars(bars), replace=options["replace"])
        for run in runs:
            self.stdout.write(
                f"{run.from_day} to {run.to_day}: {run.event_count} events, {run.result_count} rows of reports, "
                f"{run.finding_count} findings about data quality"
            )
