"""`manage.py load`: register devices, request notifications at a steady rate, and measure the results."""

import asyncio
import json
from dataclasses import asdict
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.console import Console
from rich.table import Table

from embedded.figures import Distribution
from embedded.load import PushRecord, Result, WakuLoad, phones_for
from kit.http import Connections
from waku_bridge.client.session import SessionError
from waku_bridge.codec.errors import BadPublicKey
from waku_bridge.codec.keys import parse_chat_key
from waku_bridge.dialect import NodeError
from waku_bridge.node import WakuNode
from waku_bridge.query_topics import server_identity

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
        node, gorush = (next(iter(urls), "") for urls in (settings.WAKU_NODES, settings.GORUSH_URLS))
        add("--node", default=node, help="REST URL of the Waku node (the first of WAKU_NODES)")
        add("--gorush", default=gorush, help="URL of a gorush that records pushes (the first of GORUSH_URL)")
        add("--server", default="", help="public key of the server (this one's)")
        add("--json", default="", metavar="FILE", help="also write the result to this file")
        add("--i-own-this-server", action="store_true", help="for targets that are not on this machine")

    def handle(self, *_args: Any, **options: Any) -> None:
        _complete(options)
        console = Console()
        try:
            result = asyncio.run(_run(options, console))
        except (BadPublicKey, NodeError, SessionError) as error:
            raise CommandError(f"The load did not begin: {error}") from error
        title = f"{result.requests} requests, {options['rate']:g} per second, to {options['devices']} devices"
        _show(title, result, console)
        if file := options["json"]:
            figures = {name: options[name] for name in ("node", "devices", "rate", "seconds")} | asdict(result)
            Path(file).write_text(json.dumps(figures, indent=2), encoding="utf-8")
        if not result.is_clean:
            raise CommandError("Some were lost or doubled.")


def _complete(options: dict[str, Any]) -> None:
    """Replace options that were not given. Raises CommandError for what cannot be loaded."""
    if not options["node"]:
        raise CommandError("There is no node: give --node, or start `manage.py up`.")
    far = [url for url in (options["node"], options["gorush"]) if url and not is_loopback(url)]
    if far and not options["i_own_this_server"]:
        raise CommandError(f"{', '.join(far)} is not on this machine. If it is yours, add --i-own-this-server.")
    if options["devices"] < 0 or options["rate"] <= 0 or options["seconds"] <= 0:
        raise CommandError("--devices, --rate and --seconds must be positive.")
    enough = max(MIN_DEVICES, phones_for(options["rate"], options["seconds"], settings.ROUTE_LIMITS))
    options["devices"] = options["devices"] or enough


def is_loopback(url: str) -> bool:
    """Return whether a URL can only mean this machine. Names are not resolved, because their addresses may change."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


async def _run(options: dict[str, Any], console: Console) -> Result:
    async with Connections(silent_seconds=TIMEOUT_SECONDS, max_answer_bytes=MAX_RECORD_BYTES) as client:
        record, topic = PushRecord(options["gorush"], client), settings.WAKU_PUBSUB_TOPICS[0]
        server = parse_chat_key(options["server"]) if options["server"] else server_identity().pub33
        load = WakuLoad(WakuNode(options["node"], client), server, topic)
        console.print(f"Registering {options['devices']} devices.")
        phones = await load.register(options["devices"])
        requests = load.build(phones, rate=options["rate"], seconds=options["seconds"])
        console.print(f"Sending {len(requests)} requests, and waiting for answers.")
        result = await load.run(requests, record, drain_seconds=options["drain"])
        await load.unregister(phones)
        return result


def _show(title: str, result: Result, console: Console) -> None:
    table = Table(title=title)
    for column in ("", "arrived", "lost", "doubled", "p50 ms", "p90 ms", "p99 ms", "max ms"):
        table.add_column(column, justify="left" if not column else "right")
    for name, found in (("gorush", result.pushes), ("reply", result.replies)):
        counts = [str(found.arrived), str(found.lost), str(found.doubled)] if found else ["no record", "", ""]
        table.add_row(f"request → {name}", *counts, *_cells(found.latency_ms if found else None))
    table.add_section()
    for name, figures in (("delay of sending", "lag_ms"), ("publishing", "publish_ms")):
        table.add_row(f"generator: {name}", "", "", "", *_cells(result.generator[figures]))
    console.print(table)
    if result.merged or result.refused:
        reasons = ", ".join(f"{count} ({reason})" for reason, count in result.refused.items()) or "0"
        console.print(f"Merged beyond a limit: {result.merged}. Refused: {reasons}.")


def _cells(figures: Distribution | None) -> tuple[str, ...]:
    if figures is None:
        return ("-",) * 4
    return tuple(f"{value:.1f}" for value in (figures.p50, figures.p90, figures.p99, figures.max))
