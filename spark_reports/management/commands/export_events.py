"""`manage.py export_events`: export closed days from PostgreSQL into the lake, with progress.

It is safe to stop the command and to run it again.
"""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from kit.db.clock import database_now
from spark_reports.export.days import closed_days, export_day
from spark_reports.lake import Day, Lake
from spark_reports.management.days import add_options, chosen_days, with_progress
from spark_reports.running.runs import alone


class Command(BaseCommand):
    help = "Export the facts of closed days (UTC) into REPORTS_LAKE. Days that are in the lake already are skipped."

    def add_arguments(self, parser: CommandParser) -> None:
        add_options(parser)

    def handle(self, *_args: Any, **options: Any) -> None:
        with with_progress() as progress:
            days = closed_days(*chosen_days(options), now=database_now())
            lake = Lake(settings.REPORTS_LAKE)
            with alone():
                for day in days:
                    self._print(
                        export_day(day, lake, now=database_now(), progress=progress, replace=options["replace"])
                    )

    def _print(self, exported: Day) -> None:
        rows = ", ".join(f"{number} {name}" for name, number in exported.rows.items())
        self.stdout.write(f"{exported.day}: {rows}; pseudonym key {exported.key_id}")
        if not exported.is_complete:
            self.stderr.write(f"{exported.day} is incomplete: retention had removed a part of it before its export.")
