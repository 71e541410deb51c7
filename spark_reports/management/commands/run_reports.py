"""`manage.py run_reports`: export, compute and publish the reports of a day or a range, with progress."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from spark_reports.management.days import add_options, chosen_days, with_progress
from spark_reports.running.runs import run_reports


class Command(BaseCommand):
    help = (
        "Make the nightly reports of closed days (UTC). A second run of a day replaces its reports. Make the oldest "
        "day first, because reports are compared with those of the days before."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_options(parser)

    def handle(self, *_args: Any, **options: Any) -> None:
        first, last = chosen_days(options)
        with with_progress() as progress:
            runs = run_reports(first, last, progress=progress, replace=options["replace"])
        for run in runs:
            self.stdout.write(
                f"{run.from_day} to {run.to_day}: {run.event_count} events, {run.result_count} rows of reports, "
                f"{run.finding_count} findings about data quality"
            )
