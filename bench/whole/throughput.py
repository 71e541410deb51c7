"""Benchmark of the saturated server, and of the delay of a message when it is not saturated, seen from outside.

It drives exactly what users start, `manage.py up`. Messages are published to a development node, pushes arrive at a
development gorush, and replies at the node. Both run beside the server on the same cores and are not counted. The
floors (cryptography in a bare loop, two POSTs) are measured in the same run, so that the ratios hold on a busy machine,
too. One floor is measured alone, and the goals refer to it. The other is measured on all cores at once, as in a
saturated server. Run alone with ``python -m bench throughput``; it takes some minutes.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import quantiles
from typing import Any, NamedTuple

import aiohttp
from rich.console import Console
from rich.table import Table

from bench.running import floors
from bench.running.fleet import Fleet, fleet
from bench.running.phones import Phones
from bench.running.servers import PUBLISH_PATH, wait_until
from waku_bridge.messages import WakuMessage
from waku_bridge.node import to_json

PHONES = 1500
BACKLOG = 6000
SECONDS = 15
TIMEOUT_SECONDS = 240.0
CORES = 2
# Explanations for missed goals. The flame graphs are in docs/decisions/0023.
SATURATED = (
    "Saturated: half of a worker's time is cryptography and codec, a fifth its statements, an eighth the POSTs; and"
    " PostgreSQL takes a third of everything (docs/decisions/0023/saturated.svg). Where two cores are threads of one,"
    " all of it costs more while both are busy, as the crowded floor shows."
)
STEADY = (
    "Steady: batches have one or two messages, so some seventeen statements take two thirds of a worker's time."
    " Each costs eight times as much after a pause of 10 ms as in a loop (docs/decisions/0023/steady.svg)."
)
WHY_MISSED = {
    "request_cpu_ms": SATURATED,
    "efficiency_crowded": SATURATED,
    "requests_per_second_alone": SATURATED,
    "registrations_per_second": "Registrations: the node, gorush and the sender of the run use the same cores.",
    "growth": "Growth: two worker processes share two cores with everything else, so wall-clock time says little.",
    "steady_100_cpu_ms": STEADY,
    "steady_20_cpu_ms": STEADY,
    "steady_20_p50_ms": "Steady: two messages gather for a batch, for up to 100 ms at 20 a second.",
}
PUBLISHED = "SELECT count(*) FROM waku_bridge_outboundreply WHERE published_at IS NOT NULL"
OPEN = """
    SELECT (SELECT count(*) FROM notifications_notification_under_way)
         + (SELECT count(*) FROM waku_bridge_inboundenvelope_under_way WHERE state IN ('received', 'postponed'))
         + (SELECT count(*) FROM waku_bridge_outboundreply_under_way WHERE state = 'pending')
"""
# A check reads whole tables, at the cost of the server's PostgreSQL: at 50 checks a second it took a third of that.
CHECK_EVERY_SECONDS = 0.5
MAX_PUSHES = 1_000_000  # of a run, those of others included


@dataclass(frozen=True, slots=True)
class Run:
    """Messages that went through: their number, the time, and their CPU time by kind of process."""

    count: int
    seconds: float
    cpu_seconds: Mapping[str, float]

    @property
    def per_second(self) -> float:
        """Return the number of messages in a second, whatever else ran on the cores."""
        return self.count / self.seconds

    @property
    def cpu_ms(self) -> float:
        """Return the CPU time of one message over all processes of the server."""
        return sum(self.cpu_seconds.values()) * 1000 / self.count

    @property
    def per_second_alone(self) -> float:
        """Return the rate that the cores would reach if only the server ran on them."""
        return CORES * 1000 / self.cpu_ms

    def by_process(self) -> dict[str, float]:
        """Return the CPU milliseconds of one message by kind of process."""
        return {name: seconds * 1000 / self.count for name, seconds in self.cpu_seconds.items()}


@dataclass(frozen=True, slots=True)
class Paced:
    """Messages at an even rate: milliseconds from the due moment of each to its push, and their CPU time."""

    delays_ms: Sequence[float]
    run: Run

    @property
    def p50_ms(self) -> float:
        """Return the median delay."""
        return quantiles(self.delays_ms, n=100, method="inclusive")[49]

    @property
    def p99_ms(self) -> float:
        """Return the delay that one message of a hundred exceeds."""
        return quantiles(self.delays_ms, n=100, method="inclusive")[98]


class Whole(NamedTuple):
    """The figures of the server with a process for each core."""

    registrations: Run
    requests: Run
    steady: Mapping[str, Paced]


def run() -> dict[str, object]:
    """Measure everything, print it, and return the figures."""
    floor, crowded_ms = floors.measure(), floors.crowded_ms()
    whole, by_one, burst = _with_all_cores(), with_processes(1), _through_a_ring()
    requests, registrations = whole.requests, whole.registrations
    result: dict[str, object] = {
        "crypto_floor_ms": floor.crypto_ms,
        "http_floor_ms": floor.http_ms,
        "request_cpu_ms": requests.cpu_ms,
        "crowded_floor_ms": crowded_ms,
        "efficiency": floor.total_ms / requests.cpu_ms,
        "efficiency_crowded": crowded_ms / requests.cpu_ms,
        "requests_per_second": requests.per_second,
        "requests_per_second_alone": requests.per_second_alone,
        "registration_cpu_ms": registrations.cpu_ms,
        "registrations_per_second": registrations.per_second,
        "growth_by_cpu": 2 * by_one.cpu_ms / requests.cpu_ms,
        "growth": requests.per_second / by_one.per_second,
    }
    for name, found in {**whole.steady, "ring_50_at_250": burst}.items():
        result |= _figures(name, found)
    result |= {
        "request_by_process_ms": requests.by_process(),
        "registration_by_process_ms": registrations.by_process(),
        "steady_100_by_process_ms": whole.steady["steady_100"].run.by_process(),
        "steady_20_by_process_ms": whole.steady["steady_20"].run.by_process(),
    }
    _print(result, floor)
    return result


def _with_all_cores() -> Whole:
    with fleet() as running:
        phones = Phones(PHONES)
        _warm_up(running, phones)
        registrations = process_backlog(running, phones.registrations[1:])
        process_backlog(
            running, phones.requests(PHONES)
        )  # nearly all phones of a real server have been notified before
        with_keys = paced(running, phones, rate=100, seconds=SECONDS)
        _forget_missing_keys(running)
        requests = process_backlog(running, phones.requests(BACKLOG))
        steady = {
            "steady_100": paced(running, phones, rate=100, seconds=SECONDS),
            "steady_100_with_keys": with_keys,
            "steady_20": paced(running, phones, rate=20, seconds=2 * SECONDS),
        }
    return Whole(registrations, requests, steady)


def with_processes(number: int) -> Run:
    """Return the costs of requests at saturation with ``number`` processes."""
    with fleet("--processes", str(number)) as running:
        phones = Phones(PHONES // 4)
        prepare(running, phones)
        return process_backlog(running, phones.requests(BACKLOG // 2))


def _through_a_ring() -> Paced:
    with fleet(ring_capacity=50) as running:
        phones = Phones(PHONES // 4)
        _warm_up(running, phones)
        _publish_evenly_all(running, phones.registrations[1:], rate=100)
        _publish_evenly_all(running, phones.requests(PHONES // 4), rate=100)
        return paced(running, phones, rate=250, seconds=8)


def is_met(value: object, goal: str) -> bool:
    """Return whether a figure meets a goal such as "≤ 3 ms"."""
    sign, limit, *_ = goal.split()
    assert isinstance(value, float)
    return value <= float(limit) if sign == "≤" else value >= float(limit)


def _figures(name: str, paced_run: Paced) -> dict[str, object]:
    return {
        f"{name}_p50_ms": paced_run.p50_ms,
        f"{name}_p99_ms": paced_run.p99_ms,
        f"{name}_cpu_ms": paced_run.run.cpu_ms,
    }


def _goals(floor: floors.Floor) -> dict[str, str]:
    return {
        "request_cpu_ms": f"≤ {2 * floor.total_ms:.2f}",
        "efficiency_crowded": "≥ 0.5",
        "requests_per_second_alone": f"≥ {CORES * 1000 / (2 * floor.total_ms):.0f}",
        "registrations_per_second": "≥ 2000",
        "growth_by_cpu": "≥ 1.8",
        "growth": "≥ 1.8 with a core for each",
        "steady_100_p50_ms": "≤ 50",
        "steady_100_p99_ms": "≤ 150",
        "steady_100_cpu_ms": "≤ 3",
        "steady_100_with_keys_p50_ms": "≤ 100",
        "steady_100_with_keys_p99_ms": "≤ 300",
        "steady_20_p50_ms": "≤ 60",
        "steady_20_p99_ms": "≤ 150",
        "steady_20_cpu_ms": f"≤ {8 * floor.total_ms:.2f}",
        "ring_50_at_250_p99_ms": "≤ 2000",
    }


def _warm_up(running: Fleet, phones: Phones) -> None:
    """Send some registrations and requests all the way. Every process has its connections afterwards."""
    asyncio.run(_publish(running.node_url, phones.registrations[:1]))
    wait_until(lambda: running.count(PUBLISHED) == 1, TIMEOUT_SECONDS)
    for number in range(10):
        asyncio.run(_publish(running.node_url, [phones.request(0) for _ in range(4)]))
        wait_until(lambda wanted=5 + 4 * number: running.count(PUBLISHED) >= wanted, TIMEOUT_SECONDS)  # type: ignore[misc]


def prepare(running: Fleet, phones: Phones) -> None:
    """Register all phones, and notify each of them once, as nearly all phones of a real server have been."""
    _warm_up(running, phones)
    process_backlog(running, phones.registrations[1:])
    process_backlog(running, phones.requests(len(phones.registrations)))
    _forget_missing_keys(running)


def _forget_missing_keys(running: Fleet) -> None:
    """Leave no key to be derived. With a tenth of a core that would take minutes, and no phone is looked up."""
    running.database.execute("DELETE FROM registrations_topickey WHERE key_encrypted IS NULL")
    running.database.execute("ANALYZE")


def process_backlog(running: Fleet, messages: Sequence[WakuMessage]) -> Run:
    """Measure from the moment the bridge may read until every reply is published and nothing is open."""
    replies = running.count(PUBLISHED) + len(messages)
    with _held_back(running):
        asyncio.run(_publish(running.node_url, messages))
        before, started = running.cpu_seconds(), time.monotonic()
    _wait_for(running, replies)
    return Run(len(messages), time.monotonic() - started, _spent(running, before))


def _wait_for(running: Fleet, replies: int) -> None:
    """Wait until ``replies`` replies are published and nothing is open."""

    def is_done() -> bool:
        return not running.count(OPEN) and running.count(PUBLISHED) >= replies

    wait_until(is_done, TIMEOUT_SECONDS, every=CHECK_EVERY_SECONDS)


def _spent(running: Fleet, before: Mapping[str, float]) -> dict[str, float]:
    after = running.cpu_seconds()
    return {name: after[name] - before.get(name, 0.0) for name in after}


@contextmanager
def _held_back(running: Fleet) -> Iterator[None]:
    """Stop the bridge for the block, so that messages pile up in the node."""
    bridge = running.bridge()
    bridge.suspend()
    try:
        yield
    finally:
        bridge.resume()


async def _publish(node_url: str, messages: Sequence[WakuMessage]) -> None:
    free = asyncio.Semaphore(32)
    async with aiohttp.ClientSession() as session:

        async def publish(message: WakuMessage) -> None:
            async with free:
                await _post(session, node_url, message)

        await asyncio.gather(*map(publish, messages))


async def _post(session: aiohttp.ClientSession, node_url: str, message: WakuMessage) -> None:
    async with session.post(node_url + PUBLISH_PATH, json=to_json(message)) as response:
        response.raise_for_status()


def paced(running: Fleet, phones: Phones, *, rate: float, seconds: float) -> Paced:
    """Publish requests at an even rate, with any number in flight, and wait until all are answered."""
    messages = phones.requests(int(rate * seconds))
    replies = running.count(PUBLISHED) + len(messages)
    before, started = running.cpu_seconds(), time.monotonic()
    delays_ms = asyncio.run(_delays(running, phones, messages, rate=rate, replies=replies))
    return Paced(delays_ms, Run(len(messages), time.monotonic() - started, _spent(running, before)))


async def _delays(
    running: Fleet, phones: Phones, messages: Sequence[WakuMessage], *, rate: float, replies: int
) -> list[float]:
    pushes_url = f"{running.gorush_url}/dev/pushes"
    async with aiohttp.ClientSession() as session:
        async with session.delete(pushes_url) as response:
            response.raise_for_status()
        due_ms = await _publish_evenly(session, running.node_url, messages, rate=rate)
        await asyncio.to_thread(_wait_for, running, replies)
        pushes = await _pushes(session, pushes_url, len(messages))
    arrived: dict[str, list[float]] = {}
    for push in sorted(pushes, key=lambda push: push["received_ms"]):
        arrived.setdefault(push["token"], []).append(push["received_ms"])
    # A phone that is notified more than once gets its pushes in the order of the requests.
    return [arrived[phones.token(number)].pop(0) - due for number, due in enumerate(due_ms)]


async def _pushes(session: aiohttp.ClientSession, url: str, number: int) -> list[dict[str, Any]]:
    """Return all pushes once there are ``number`` of them. A late push arrives after its reply is published.

    Raises TimeoutError when they do not arrive.
    """
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while len(pushes := await _read_pushes(session, url)) < number:  # noqa: ASYNC110 - gorush announces nothing
            await asyncio.sleep(CHECK_EVERY_SECONDS)
    return pushes


async def _read_pushes(session: aiohttp.ClientSession, url: str) -> list[dict[str, Any]]:
    async with session.get(url, params={"limit": str(MAX_PUSHES)}) as response:
        pushes: list[dict[str, Any]] = (await response.json())["pushes"]
    return pushes


async def _publish_evenly(
    session: aiohttp.ClientSession, node_url: str, messages: Sequence[WakuMessage], *, rate: float
) -> list[float]:
    """Publish at an even rate, and return when each message was due, in milliseconds since the epoch."""
    due_ms: list[float] = []
    posts: list[asyncio.Task[None]] = []
    first_due = time.time() + 1
    for number, message in enumerate(messages):
        due = first_due + number / rate
        await asyncio.sleep(max(due - time.time(), 0))
        # Phones date a message when they send it, and the store is searched by that date.
        dated = replace(message, timestamp_ns=round(due * 1e9))
        posts.append(asyncio.create_task(_post(session, node_url, dated)))
        due_ms.append(due * 1000)
    await asyncio.gather(*posts)
    return due_ms


def _publish_evenly_all(running: Fleet, messages: Sequence[WakuMessage], *, rate: float) -> None:
    async def publish() -> None:
        async with aiohttp.ClientSession() as session:
            await _publish_evenly(session, running.node_url, messages, rate=rate)

    replies = running.count(PUBLISHED) + len(messages)
    asyncio.run(publish())
    wait_until(lambda: running.count(PUBLISHED) >= replies, TIMEOUT_SECONDS)


def _print(result: Mapping[str, object], floor: floors.Floor) -> None:
    goals = _goals(floor)
    table = Table(title="The whole server, as `manage.py up` starts it")
    for column in ("figure", "value", "goal", ""):
        table.add_column(column, justify="left" if column == "figure" else "right")
    missed = [name for name, goal in goals.items() if not is_met(result[name], goal)]
    for name, value in result.items():
        if isinstance(value, float):
            is_missed = "missed" if name in missed else ""
            table.add_row(name.replace("_", " "), f"{value:,.2f}", goals.get(name, ""), is_missed)
    Console().print(table)
    for why in dict.fromkeys(WHY_MISSED[name] for name in missed if name in WHY_MISSED):
        Console().print(why)
    shares = {name.removesuffix("_by_process_ms"): value for name, value in result.items() if isinstance(value, dict)}
    by_process = Table(title="CPU time of one message by process, milliseconds")
    for column in ("process", *shares):
        by_process.add_column(column.replace("_", " "), justify="left" if column == "process" else "right")
    for process in sorted({process for share in shares.values() for process in share}):
        by_process.add_row(process, *(f"{share.get(process, 0.0):.2f}" for share in shares.values()))
    Console().print(by_process)
