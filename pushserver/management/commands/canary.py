"""`manage.py canary`: make one round trip through the whole chain and show it. The exit code is 0 if all links hold."""

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pushserver.console.models import CanaryRun
from pushserver.console.parts import parts

BROKEN = 1
DRY_RUN_REMARK = "Dry run: the gateway dropped the push, so its credentials, Apple and Google were not tested."
CANARIES = {part.canary.network: part.canary for part in parts() if part.canary}


class Command(BaseCommand):
    help = "Register, notify and unregister through the whole chain of a network, and show which link is broken."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("network", nargs="?", choices=CANARIES, default=next(iter(CANARIES)))

    def handle(self, *_args: Any, network: str, **_options: Any) -> None:
        canary = CANARIES[network]
        if missing := canary.missing():
            raise CommandError(missing)
        run = canary.run()
        if run is None:
            raise CommandError("Another run of this canary is under way. Try again in a moment.", returncode=2)
        show(run, Console())
        if run.state != CanaryRun.State.PASSED:
            sys.exit(BROKEN)


def show(run: CanaryRun, console: Console) -> None:
    """Print the links of a round trip with their times."""
    table = Table(title=f"Canary of {run.get_network_display()}")
    table.add_column("link")
    table.add_column("milliseconds", justify="right")
    for link, milliseconds in run.timings().items():
        is_broken = link == run.broken_link
        shown = "[red]broken[/red]" if is_broken else "-" if milliseconds is None else str(milliseconds)
        table.add_row(run.LINKS[run.network](link).label, shown)
    console.print(table)
    if run.state == CanaryRun.State.PASSED:
        console.print(f"Every link holds. CPU time of the canary itself: {run.work_ms} ms.")
    else:
        console.print(f"[bold red]Broken: {run.cause_in_words()}.[/bold red] {escape(run.detail)}")
    if run.is_dry_run:
        console.print(DRY_RUN_REMARK)
