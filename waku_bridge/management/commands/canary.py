"""`manage.py canary`: make one round trip through the whole chain and show it.

The exit code says whether all links hold.
"""

import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from waku_bridge.canary import run
from waku_bridge.models import CanaryRun

BROKEN = 1
DRY_RUN_REMARK = "gorush was told to drop the push: nothing was tested of its credentials, of Apple or of Google."
LABELS = {
    "register": "a node takes the registration",
    "register_answer": "its answer is back",
    "query": "a node takes the query",
    "query_answer": "its answer is back",
    "request": "a node takes the request",
    "gorush": "gorush takes the push",
    "request_answer": "the answer to the request is back",
    "unregister": "a node takes the unregistering",
    "unregister_answer": "its answer is back",
}


class Command(BaseCommand):
    help = "Register, ask, notify and unregister through the whole chain, and tell which link is broken."

    def handle(self, *_args: Any, **_options: Any) -> None:
        if not settings.WAKU_NODES:
            raise CommandError("WAKU_NODES is not set, and no embedded node is running. Start `manage.py up`.")
        row = run()
        if row is None:
            raise CommandError("Another canary is under way. Try again in a moment.", returncode=2)
        show(row, Console())
        if row.state != CanaryRun.State.PASSED:
            sys.exit(BROKEN)


def show(row: CanaryRun, console: Console) -> None:
    """Print the links of a round trip with their times."""
    table = Table(title="Canary")
    table.add_column("link")
    table.add_column("milliseconds", justify="right")
    for link, milliseconds in row.timings().items():
        is_broken = link == row.broken_link
        told = "[red]broken[/red]" if is_broken else "-" if milliseconds is None else str(milliseconds)
        table.add_row(LABELS[link], told)
    console.print(table)
    if row.state == CanaryRun.State.PASSED:
        console.print(f"Every link holds. CPU time of the canary itself: {row.work_ms} ms.")
    else:
        console.print(f"[bold red]Broken: {row.get_cause_display()}.[/bold red] {escape(row.detail)}")
    if row.is_dry_run:
        console.print(DRY_RUN_REMARK)
