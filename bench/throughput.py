"""What the whole server takes when it is full, and how long a message takes when it is not.

Every process is real and by itself, as `manage.py up` starts it; messages come through a development node, pushes go to
a development gorush, replies back to the node. Full means that a backlog waits in the node before the bridge may read
it, so nothing is measured but the work on it. The development servers run on the same cores: their CPU time is told
apart. Run alone with ``python -m bench throughput``; it takes minutes.
"""

import asyncio
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import quantiles
from urllib.parse import quote
from uuid import uuid4

import aiohttp
from coincurve import PrivateKey
from rich.console import Console
from rich.table import Table

from bench.fleet import TOPIC, Fleet, fleet
from bench.reading import SERVER_KEY
from bench.servers import wait_until
from notifications.messages import NotificationType, PushNotification, PushRequest
from registrations.messages import RegistrationMessage, TokenType
from waku_bridge.codec.envelope import encode_registration, encode_request
from waku_bridge.codec.grants import sign_grant
from waku_bridge.codec.keys import Identity
from waku_bridge.messages import WakuMessage
from waku_bridge.node import to_json

CLIENTS = 1500
REQUESTS = 6000
RATE = 100
PACED_SECONDS = 15  # each client is notified once at most in it
PATIENCE_SECONDS = 180.0
CORES = 2
TARGETS = {
    "requests_per_second": "≥ 1600",
    "registrations_per_second": "≥ 1000",
    "growth": "≥ 1.8",
    "p50_ms": "≤ 100",
    "p99_ms": "≤ 300",
}
PUBLISHED = "SELECT count(*) FROM waku_bridge_outboundreply WHERE published_at IS NOT NULL"
OPEN = "SELECT count(*) FROM notifications_notification WHERE finished_at IS NULL"


@dataclass(frozen=True, slots=True)
class Run:
    """A backlog that was worked off: messages per second, and CPU milliseconds per message by process."""

    count: int
    seconds: float
    cpu_ms: Mapping[str, float]
    ours_ms: float

    @property
    def per_second(self) -> float:
        return self.count / self.seconds

    @property
    def per_second_alone(self) -> float:
        """What the cores would do if no development server ran on them."""
        return CORES * 1000 / self.ours_ms


class Clients:
    """Those that register and are notified, and one that asks for it. Everything is sealed before a clock starts."""

    def __init__(self, count: int) -> None:
        self._server = PrivateKey(bytes.fromhex(SERVER_KEY)).public_key.format()
        self._sender = Identity(PrivateKey(os.urandom(32)))
        self._registered: list[PushNotification] = []
        self.tokens: list[str] = []
        self.registrations = [self._register() for _ in range(count)]

    def _register(self) -> WakuMessage:
        client, installation_id, access_token = Identity(PrivateKey(os.urandom(32))), str(uuid4()), str(uuid4())
        self.tokens.append(installation_id.ljust(163, "t"))
        self._registered.append(
            PushNotification(client.key_hash, installation_id, access_token, NotificationType.MESSAGE)
        )
        registration = RegistrationMessage(
            installation_id,
            1,
            TokenType.FIREBASE,
            self.tokens[-1],
            access_token=access_token,
            grant=sign_grant(client.private_key, self._server, access_token),
            enabled=True,
        )
        return encode_registration(
            registration, identity=client, server=self._server, timestamp_ns=time.time_ns(), random_bytes=os.urandom
        ).message

    def requests(self, count: int) -> list[WakuMessage]:
        return [self.request(number) for number in range(count)]

    def request(self, number: int) -> WakuMessage:
        return encode_request(
            PushRequest(os.urandom(32), (self._registered[number % len(self._registered)],)),
            signer=self._sender,
            server=self._server,
            timestamp_ns=time.time_ns(),
            random_bytes=os.urandom,
        ).message


def run() -> dict[str, object]:
    with fleet(envelope_processes=2) as running:
        clients = Clients(CLIENTS)
        _warm_up(running, clients)
        registrations = _work_off(running, clients.registrations[1:])
        requests = _work_off(running, clients.requests(REQUESTS))
        delays_ms = asyncio.run(_paced(running, clients))
    with fleet(envelope_processes=1) as running:
        clients = Clients(CLIENTS // 4)
        _warm_up(running, clients)
        _work_off(running, clients.registrations[1:])
        by_one = _work_off(running, clients.requests(REQUESTS // 2))
    percentiles = quantiles(delays_ms, n=100, method="inclusive")
    result: dict[str, object] = {
        "requests_per_second": requests.per_second,
        "requests_per_second_without_peers": requests.per_second_alone,
        "registrations_per_second": registrations.per_second,
        "registrations_per_second_without_peers": registrations.per_second_alone,
        "request_cpu_ms": dict(requests.cpu_ms),
        "registration_cpu_ms": dict(registrations.cpu_ms),
        "growth": requests.per_second / by_one.per_second,
        "paced_rate": RATE,
        "p50_ms": percentiles[49],
        "p99_ms": percentiles[98],
    }
    _print(result, requests, registrations)
    return result


def _warm_up(running: Fleet, clients: Clients) -> None:
    """Every process has its connections once a registration and a request went all the way."""
    asyncio.run(_publish(running.node_url, clients.registrations[:1]))
    wait_until(lambda: running.count(PUBLISHED) == 1, PATIENCE_SECONDS)
    asyncio.run(_publish(running.node_url, [clients.request(0)]))
    wait_until(lambda: running.count(PUBLISHED) == 2, PATIENCE_SECONDS)


def _work_off(running: Fleet, messages: Sequence[WakuMessage]) -> Run:
    """From the moment the bridge may read until every reply is published and nothing is open."""
    replies = running.count(PUBLISHED) + len(messages)
    with _held_back(running):
        asyncio.run(_publish(running.node_url, messages))
        before, started = running.cpu_seconds(), time.monotonic()
    wait_until(lambda: running.count(PUBLISHED) >= replies and not running.count(OPEN), PATIENCE_SECONDS)
    seconds, after = time.monotonic() - started, running.cpu_seconds()
    cpu_ms = {name: (after[name] - before[name]) * 1000 / len(messages) for name in before}
    return Run(len(messages), seconds, cpu_ms, sum(cpu_ms[name] for name in running.ours))


@contextmanager
def _held_back(running: Fleet) -> Iterator[None]:
    """The bridge stands still, so that messages pile up in the node."""
    running.ours["bridge"].suspend()
    try:
        yield
    finally:
        running.ours["bridge"].resume()


async def _publish(node_url: str, messages: Sequence[WakuMessage]) -> None:
    free = asyncio.Semaphore(32)
    async with aiohttp.ClientSession() as session:

        async def publish(message: WakuMessage) -> None:
            async with free:
                await _post(session, node_url, message)

        await asyncio.gather(*map(publish, messages))


async def _post(session: aiohttp.ClientSession, node_url: str, message: WakuMessage) -> None:
    url = f"{node_url}/relay/v1/messages/{quote(TOPIC, safe='')}"
    async with session.post(url, json=to_json(message)) as response:
        response.raise_for_status()


async def _paced(running: Fleet, clients: Clients) -> list[float]:
    """Milliseconds from a request's due time to gorush having its push, at an even rate whatever is under way."""
    messages = clients.requests(RATE * PACED_SECONDS)
    replies, pushes_url = running.count(PUBLISHED) + len(messages), f"{running.gorush_url}/dev/pushes"
    async with aiohttp.ClientSession() as session:
        async with session.delete(pushes_url) as response:
            response.raise_for_status()
        due_ms = await _publish_evenly(session, running.node_url, messages)
        await asyncio.to_thread(wait_until, lambda: running.count(PUBLISHED) >= replies, PATIENCE_SECONDS)
        async with session.get(pushes_url, params={"limit": str(2 * len(messages))}) as response:
            pushes = (await response.json())["pushes"]
    arrived_ms = {push["token"]: push["received_ms"] for push in pushes}
    return [arrived_ms[clients.tokens[number]] - due for number, due in enumerate(due_ms)]


async def _publish_evenly(
    session: aiohttp.ClientSession, node_url: str, messages: Sequence[WakuMessage]
) -> list[float]:
    """When each was due, in milliseconds since the epoch."""
    due_ms, posts, first_due = [], [], time.time() + 1
    for number, message in enumerate(messages):
        due = first_due + number / RATE
        await asyncio.sleep(max(due - time.time(), 0))
        posts.append(asyncio.create_task(_post(session, node_url, message)))
        due_ms.append(due * 1000)
    await asyncio.gather(*posts)
    return due_ms


def _print(result: Mapping[str, object], requests: Run, registrations: Run) -> None:
    table = Table(title=f"The whole server on {os.cpu_count()} cores")
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_column("target", justify="right")
    for name, value in result.items():
        if isinstance(value, float):
            table.add_row(name.replace("_", " "), f"{value:,.1f}", TARGETS.get(name, ""))
    Console().print(table)
    shares = Table(title="CPU time of one message, milliseconds")
    for column in ("process", "request", "registration"):
        shares.add_column(column, justify="left" if column == "process" else "right")
    for name in requests.cpu_ms:
        shares.add_row(name, f"{requests.cpu_ms[name]:.2f}", f"{registrations.cpu_ms[name]:.2f}")
    shares.add_row("ours, PostgreSQL and Valkey", f"{requests.ours_ms:.2f}", f"{registrations.ours_ms:.2f}")
    Console().print(shares)
