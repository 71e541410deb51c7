"""`manage.py load`: register devices, request notifications at a steady rate, and measure the results."""

import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from embedded.load.waku import (
    LoadRequests,
    ReplyReader,
    Result,
    build,
    evaluate,
    is_loopback,
    phones_for,
    publish_on_time,
    pushes_recorded,
    register_devices,
    unregister_devices,
)
from kit.figures import Distribution
from kit.http.connections import PlainClient, new_client
from waku_bridge.client import Session, SessionError
from waku_bridge.codec.errors import CodecError
from waku_bridge.codec.keys import parse_chat_key
from waku_bridge.identity import server_identity
from waku_bridge.node import NodeError, WakuNode

TIMEOUT_SECONDS = 30.0
MAX_RECORD_BYTES = 2**30
POLL_SECONDS = 0.5
BAR_WIDTH = 40
MIN_DEVICES = 50


@dataclass(frozen=True, slots=True)
class Job:
    """The options of the command line."""

    node_url: str
    gorush_url: str
    server: bytes
    pubsub_topic: str
    devices: int
    rate: float
    seconds: float
    drain_seconds: float


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
        job = _job(options)
        is_json_only = options["json"] == "-"
        console = Console(stderr=is_json_only)
        fault: str | None = None  # raised below: Python 3.11.2 wraps in a group what `except*` raises
        try:
            result = asyncio.run(_run(job, console))
        except* (NodeError, SessionError) as errors:
            fault = _first(errors)
        if fault is not None:
            raise CommandError(f"The load did not begin: {fault}")
        _write(job, result, options["json"], console, is_json_only=is_json_only)
        if not result.is_clean:
            sys.exit(1)


def _job(options: dict[str, Any]) -> Job:
    node_url = options["node"] or next(iter(settings.WAKU_NODES), "")
    gorush_url = options["gorush"] or next(iter(settings.GORUSH_URLS), "")
    if not node_url:
        raise CommandError("There is no node: give --node, or start `manage.py up`.")
    far = [url for url in (node_url, gorush_url) if url and not is_loopback(url)]
    if far and not options["i_own_this_server"]:
        raise CommandError(f"{', '.join(far)} is not on this machine. If it is yours, add --i-own-this-server.")
    if options["devices"] < 0 or options["rate"] <= 0 or options["seconds"] <= 0:
        raise CommandError("--devices, --rate and --seconds must be positive.")
    enough = max(MIN_DEVICES, phones_for(options["rate"], options["seconds"], settings.ROUTE_LIMITS))
    return Job(
        node_url,
        gorush_url,
        _server(options["server"]),
        settings.WAKU_PUBSUB_TOPICS[0],
        options["devices"] or enough,
        options["rate"],
        options["seconds"],
        options["drain"],
    )


def _server(text: str) -> bytes:
    if not text:
        return server_identity().pub33
    try:
        return parse_chat_key(text)
    except CodecError as error:
        raise CommandError("--server is no public key.") from error


def _first(errors: BaseException) -> str:
    while isinstance(errors, BaseExceptionGroup):
        errors = errors.exceptions[0]
    return str(errors)


async def _run(job: Job, console: Console) -> Result:
    columns = (TextColumn("{task.description:<22}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    async with new_client(timeout_seconds=TIMEOUT_SECONDS, max_answer_bytes=MAX_RECORD_BYTES) as client:
        with Progress(*columns, console=console) as progress:
            return await _Load(job, client, progress).run()


class _Load:
    """One load run."""

    def __init__(self, job: Job, client: PlainClient, progress: Progress) -> None:
        self._job = job
        self._client = client
        self._progress = progress
        self._node = WakuNode(job.node_url, client)
        self._session = Session(self._node, pubsub_topic=job.pubsub_topic)

    async def run(self) -> Result:
        """Register the devices, measure, and unregister them."""
        job = self._job
        phones = await register_devices(
            self._session, job.server, job.devices, self._bar("registering devices", job.devices)
        )
        count = round(job.rate * job.seconds)
        load_requests = build(
            phones, job.server, rate=job.rate, seconds=job.seconds, on_progress=self._bar("building requests", count)
        )
        result = await self._measure(load_requests)
        await unregister_devices(self._session, phones, self._bar("unregistering devices", job.devices))
        return result

    async def _measure(self, load_requests: LoadRequests) -> Result:
        before = await self._pushes(0)
        reader = ReplyReader(self._node, self._job.pubsub_topic, load_requests.senders)
        following = asyncio.create_task(reader.follow())
        count = len(load_requests.messages)
        sent = await publish_on_time(
            load_requests.messages, load_requests.due_ns, self._session.publish, self._bar("sending requests", count)
        )
        deadline = monotonic() + self._job.drain_seconds
        await self._drain(reader, load_requests.message_ids, deadline)
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
        await reader.read_again()
        while True:
            found = await self._pushes(before[1]) if before else None
            result = evaluate(load_requests, sent, reader.replies(), found[0] if found else None)
            # A wake-up for what is beyond a limit goes out when the limit allows it.
            if not (result.pushes and result.pushes.lost) or monotonic() > deadline:
                return result
            await asyncio.sleep(POLL_SECONDS)

    async def _drain(self, reader: ReplyReader, message_ids: Sequence[bytes], deadline: float) -> None:
        """Wait until every request is answered, and a moment longer: the second answer to a request comes later."""
        count = len(message_ids)
        task = self._progress.add_task("waiting for answers", total=count)
        while (unanswered := reader.unanswered(message_ids)) and monotonic() < deadline:
            self._progress.update(task, completed=count - unanswered)
            await asyncio.sleep(POLL_SECONDS)
        self._progress.update(task, completed=count - unanswered)
        await asyncio.sleep(POLL_SECONDS)

    async def _pushes(self, since: int) -> tuple[list[tuple[bytes, int]], int] | None:
        if not self._job.gorush_url:
            return None
        return await pushes_recorded(self._job.gorush_url, self._client, since=since)

    def _bar(self, title: str, total: int) -> Any:
        task = self._progress.add_task(title, total=total)
        return lambda: self._progress.advance(task)


def _write(job: Job, result: Result, file: str, console: Console, *, is_json_only: bool) -> None:
    text = json.dumps(
        {"node": job.node_url, "devices": job.devices, "rate": job.rate, "seconds": job.seconds, **asdict(result)},
        indent=2,
    )
    if is_json_only:
        sys.stdout.write(text + "\n")
        return
    _show(job, result, console)
    if file:
        Path(file).write_text(text, encoding="utf-8")
        console.print(f"Written to {file}")


def _show(job: Job, result: Result, console: Console) -> None:
    table = Table(title=f"{result.requests} requests, {job.rate:g} per second, to {job.devices} devices")
    for column in ("", "arrived", "lost", "doubled", "p50 ms", "p90 ms", "p99 ms", "max ms"):
        table.add_column(column, justify="left" if not column else "right")
    for name, arrivals in (("request → gorush", result.pushes), ("request → reply", result.replies)):
        if arrivals is None:
            table.add_row(name, "this gorush keeps no record")
        else:
            counts = (arrivals.arrived, arrivals.lost, arrivals.doubled)
            table.add_row(name, *map(str, counts), *_cells(arrivals.latency_ms))
    generator = result.generator
    table.add_section()
    table.add_row("generator: delay of sending", "", "", "", *_cells(generator.lag_ms))
    table.add_row("generator: publishing", "", "", "", *_cells(generator.publish_ms))
    console.print(table)
    for name, arrivals in (("request → gorush", result.pushes), ("request → reply", result.replies)):
        if arrivals and arrivals.latency_ms:
            _show_histogram(name, arrivals.latency_ms, console)
    console.print(
        f"The generator sent {generator.sent_per_second:g} requests per second with {generator.share_of_core:.0%} of a "
        f"core, at most {generator.max_in_flight} at once. Sending a request and noting its answer cost "
        f"{generator.cpu_ms_per_request:g} ms of CPU time, and building it {generator.build_cpu_ms_per_request:g} ms."
    )
    if result.merged or result.refused:
        by_node = f", by the node: {generator.refused_by_node}" if generator.refused_by_node else ""
        console.print(f"Merged beyond a limit: {result.merged}. Refused: {result.refused}{by_node}.")
    if not result.is_clean:
        console.print("[red]Some were lost or doubled.[/red]")


def _cells(figures: Distribution | None) -> tuple[str, ...]:
    if figures is None:
        return ("-",) * 4
    return tuple(f"{value:.1f}" for value in (figures.p50, figures.p90, figures.p99, figures.max))


def _show_histogram(name: str, figures: Distribution, console: Console) -> None:
    highest = max(count for _, count in figures.histogram)
    console.print(f"\n{name}")
    for bound, count in figures.histogram:
        label = f"≤ {bound}" if bound else "more"
        console.print(f"{label:>8} ms {'█' * max(1, round(count / highest * BAR_WIDTH))} {count}")
