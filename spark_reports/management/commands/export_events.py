"""`manage.py export_events`: export closed days from PostgreSQL into the lake, with progress.

It is safe to stop the command and to run it again.
"""

from datetime import date
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kit.db.clock import database_now
from spark_reports.export.days import closed_days, export_day
from spark_reports.lake import Lake, Manifest
from spark_reports.management.days import add_options, chosen_days, faults_in_one_line
from spark_reports.running.runs import alone


class Command(BaseCommand):
    help = "Export the facts of closed days (UTC) into REPORTS_LAKE. Days that are in the lake already are skipped."

    def add_arguments(self, parser: CommandParser) -> None:
        add_options(parser)

    def handle(self, *_args: Any, **options: Any) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rows]:,} rows"),
        )
        with faults_in_one_line():
            days = closed_days(*chosen_days(options), now=database_now())
            lake = Lake(settings.REPORTS_LAKE)
            with alone(), Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bars:
                self._export(days, lake, bars, replace=options["replace"])

    def _export(self, days: list[date], lake: Lake, bars: Progress, *, replace: bool) -> None:
        task = bars.add_task("exporting", total=len(days), rows=0)
        exported = 0
        for day in days:

            def on_rows(table: str, number: int, day: date = day) -> None:
                nonlocal exported
                exported += number
                bars.update(task, description=f"{day} {table}", rows=exported)

            manifest = export_day(day, lake, now=database_now(), on_rows=on_rows, replace=replace)
            bars.advance(task)
            self._print(day, manifest)

    def _print(self, day: date, manifest: Manifest) -> None:
        rows = ", ".join(f"{number} {name}" for name, number in manifest.rows.items())
        self.stdout.write(f"{day}: {rows}; pseudonym key {manifest.key_id}")
        if not manifest.is_complete:
            self.stderr.write(f"{day} is incomplete: retention had removed a part of it before it was exported.")
