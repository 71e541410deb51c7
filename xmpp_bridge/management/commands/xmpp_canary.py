"""`manage.py xmpp_canary`: make one round trip through the XMPP server and the whole chain, and show it.

The exit code says whether all links hold.
"""

import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from xmpp_bridge.canary.runs import run
from xmpp_bridge.models import CanaryRun

BROKEN = 1
DRY_RUN_REMARK = "gorush was told to drop the push: nothing was tested of its credentials, of Apple or of Google."
LABELS = {
    "register": "a device is registered",
    "push": "a push is accepted",
    "gorush": "gorush takes the push",
    "unregister": "the device is unregistered",
}


class Command(BaseCommand):
    help = "Register, push and unregister through the XMPP server, and tell which link of the chain is broken."

    def handle(self, *_args: Any, **_options: Any) -> None:
        if not settings.XMPP_COMPONENT_JID:
            raise CommandError("XMPP_COMPONENT_JID and XMPP_COMPONENT_SECRET are not set: docs/xmpp.md says how.")
        row = run()
        if row is None:
            raise CommandError("Another canary is under way. Try again in a moment.", returncode=2)
        show(row, Console())
        if row.state != CanaryRun.State.PASSED:
            sys.exit(BROKEN)


def show(row: CanaryRun, console: Console) -> None:
    """Print the links of a round trip with their times."""
    table = Table(title="XMPP canary")
    table.add_column("link")
    table.add_column("milliseconds", justify="right")
    for link, milliseconds in row.timings().items():
        is_broken = link == row.broken_link
        told = "[red]broken[/red]" if is_broken else "-" if milliseconds is None else str(milliseconds)
        table.add_row(LABELS[link], told)
    console.print(table)
    if row.state == CanaryRun.State.PASSED:
        console.print("Every link holds.")
    else:
        console.print(f"[bold red]Broken: {row.get_cause_display()}.[/bold red] {escape(row.detail)}")
    console.print(DRY_RUN_REMARK)
