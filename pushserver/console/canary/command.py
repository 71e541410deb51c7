"""Canary runs on demand: a command makes one round trip and prints it. The exit code is 0 when all links hold."""

import sys
from collections.abc import Mapping
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandError
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pushserver.console.canary.engine import Canary
from pushserver.console.canary.runs import BaseRun, RunState

BROKEN = 1
DRY_RUN_REMARK = "Dry run: the gateway dropped the push, so its credentials, Apple and Google were not tested."


class CanaryCommand(BaseCommand):
    """The command of one canary. ``labels`` has a text for each link."""

    canary: ClassVar[Canary[Any]]
    labels: ClassVar[Mapping[str, str]]
    title: ClassVar[str]

    def lacks(self) -> str:
        """Return a sentence about a setting that the canary needs and that is missing, or an empty text."""
        raise NotImplementedError

    def handle(self, *_args: Any, **_options: Any) -> None:
        if lacks := self.lacks():
            raise CommandError(lacks)
        row = self.canary.run()
        if row is None:
            raise CommandError("Another run of this canary is under way. Try again in a moment.", returncode=2)
        self.show(row, Console())
        if row.state != RunState.PASSED:
            sys.exit(BROKEN)

    def show(self, row: BaseRun, console: Console) -> None:
        """Print the links of a round trip with their times."""
        table = Table(title=self.title)
        table.add_column("link")
        table.add_column("milliseconds", justify="right")
        for link, milliseconds in row.timings().items():
            is_broken = link == row.broken_link
            shown = "[red]broken[/red]" if is_broken else "-" if milliseconds is None else str(milliseconds)
            table.add_row(self.labels[link], shown)
        console.print(table)
        if row.state == RunState.PASSED:
            console.print(f"Every link holds. CPU time of the canary itself: {row.work_ms} ms.")
        else:
            console.print(f"[bold red]Broken: {row.Cause(row.cause).label}.[/bold red] {escape(row.detail)}")
        if row.is_dry_run:
            console.print(DRY_RUN_REMARK)
