"""`manage.py load`: register devices, request notifications at a steady rate, and measure the results."""

import asyncio
import json
import sys
from dataclasses import asdict
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.console import Console
from rich.table import Table

from embedded.load import Arrivals, PushRecord, Result, WakuLoad, phones_for
from kit.errors import first_of
from kit.figures import Distribution
from kit.http.connections import new_client
from waku_bridge.client.session import SessionError
from waku_bridge.codec.errors import CodecError
from waku_bridge.codec.keys import parse_chat_key
from waku_bridge.identity import server_identity
from waku_bridge.node import NodeError, WakuNode

TIMEOUT_SECONDS = 30.0
MAX_RECORD_BYTES = 2**30
MIN_DEVICES = 50


class Command(BaseCommand):
    help = "Put a server under load through a Waku node, and measure the result of every request."

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("--devices", type=int, default=0, help="phones to register (50, or as many as ROUTE_LIMITS need)")
        add("--rate", type=float, default=100.0, help="requests per second (100)")
        add("--seconds", type=float, default=10.0, help="duration in seconds (10)")
        add("--drain", type=float, default=30.0, help="seconds to wait for missing answers afterwards (30)")
        add("--node", default="", help="REST URL of the Waku node (the first of WAKU_NODES)")
        add("--gorush", default="", help="URL of a development gorush that records pushes (the first of GORUSH_URL)")
        add("--server", default="", help="public key of the server (this one's)")
        add("--json", default="", metavar="FILE", help="also write the result to this file; -: print JSON only")
        add("--i-own-this-server", action="store_true", help="for targets that are not on this machine")

    def handle(self, *_args: Any, **options: Any) -> None:
        _complete(options)
        file = options["json"]
        console = Console(stderr=file == "-")
        fault: str | None = None  # raised below: Python 3.11.2 wraps in a group what `except*` raises
        try:
            result = asyncio.run(_run(options, console))
        except* (NodeError, SessionError) as errors:
            fault = str(first_of(errors))
        if fault is not None:
            raise CommandError(f"The load did not begin: {fault}")
        figures = {name: options[name] for name in ("node", "devices", "rate", "seconds")} | asdict(result)
        if file == "-":
            self.stdout.write(json.dumps(figures, indent=2))
        else:
            title = f"{result.requests} requests, {options['rate']:g} per second, to {options['devices']} devices"
            _show(title, result, console)
        if file not in ("", "-"):
            Path(file).write_text(json.dumps(figures, indent=2), encoding="utf-8")
            console.print(f"Written to {file}")
        if not result.is_clean:
            sys.exit(1)


def _complete(options: dict[str, Any]) -> None:
    """Replace options that were not given. Raises CommandError for what cannot be loaded."""
    options["node"] = options["node"] or next(iter(settings.WAKU_NODES), "")
    options["gorush"] = options["gorush"] or next(iter(settings.GORUSH_URLS), "")
    if not options["node"]:
        raise CommandError("There is no node: give --node, or start `manage.py up`.")
    far = [url for url in (options["node"], options["gorush"]) if url and not is_loopback(url)]
    if far and not options["i_own_this_server"]:
        raise CommandError(f"{', '.join(far)} is not on this machine. If it is yours, add --i-own-this-server.")
    if options["devices"] < 0 or options["rate"] <= 0 or options["seconds"] <= 0:
        raise CommandError("--devices, --rate and --seconds must be positive.")
    enough = max(MIN_DEVICES, phones_for(options["rate"], options["seconds"], settings.ROUTE_LIMITS))
    options["devices"] = options["devices"] or enough
    try:
        options["server"] = parse_chat_key(options["server"]) if options["server"] else server_identity().pub33
    except CodecError as error:
        raise CommandError("--server is no public key.") from error


def is_loopback(url: str) -> bool:
    """Return whether a URL can only mean this machine. Names are not resolved, because their addresses may change."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


async def _run(options: dict[str, Any], console: Console) -> Result:
    async with new_client(timeout_seconds=TIMEOUT_SECONDS, max_answer_bytes=MAX_RECORD_BYTES) as client:
        record, topic = PushRecord(options["gorush"], client), settings.WAKU_PUBSUB_TOPICS[0]
        load = WakuLoad(WakuNode(options["node"], client), options["server"], topic, console.print)
        phones = await load.register(options["devices"])
        requests = load.build(phones, rate=options["rate"], seconds=options["seconds"])
        result = await load.run(requests, record, drain_seconds=options["drain"])
        await load.unregister(phones)
        return result


def _show(title: str, result: Result, console: Console) -> None:
    table = Table(title=title)
    for column in ("", "arrived", "lost", "doubled", "p50 ms", "p90 ms", "p99 ms", "max ms"):
        table.add_column(column, justify="left" if not column else "right")
    table.add_row("request → gorush", *_counts(result.pushes))
    table.add_row("request → reply", *_counts(result.replies))
    table.add_section()
    table.add_row("generator: delay of sending", "", "", "", *_cells(result.generator.lag_ms))
    table.add_row("generator: publishing", "", "", "", *_cells(result.generator.publish_ms))
    console.print(table)
    if result.merged or result.refused:
        reasons = ", ".join(f"{count} ({reason})" for reason, count in result.refused.items()) or "0"
        console.print(f"Merged beyond a limit: {result.merged}. Refused: {reasons}.")
    if not result.is_clean:
        console.print("[red]Some were lost or doubled.[/red]")


def _counts(arrivals: Arrivals | None) -> tuple[str, ...]:
    if arrivals is None:
        return ("this gorush keeps no record",)
    return (*map(str, (arrivals.arrived, arrivals.lost, arrivals.doubled)), *_cells(arrivals.latency_ms))


def _cells(figures: Distribution | None) -> tuple[str, ...]:
    if figures is None:
        return ("-",) * 4
    return tuple(f"{value:.1f}" for value in (figures.p50, figures.p90, figures.p99, figures.max))
