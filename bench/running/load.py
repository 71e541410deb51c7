"""Messages for a whole server: a backlog that it processes as fast as it can, or an even rate with delays.

Everything is seen from outside. Messages are published to the node, pushes arrive at gorush, and replies at the node.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import quantiles
from typing import Any, NamedTuple

import aiohttp
import httpx

from bench.running.fleet import Fleet
from bench.running.phones import Phones
from bench.running.servers import PUBLISH_PATH, wait_until
from embedded.load import send_on_time
from waku_bridge.dialect import to_json
from waku_bridge.messages import WakuMessage

TIMEOUT_SECONDS = 240.0
PUBLISHED = "SELECT count(*) FROM waku_bridge_outboundreply WHERE published_at IS NOT NULL"
OPEN = """
    SELECT (SELECT count(*) FROM notifications_opennotification)
         + (SELECT count(*) FROM waku_bridge_openenvelope WHERE state IN ('received', 'postponed'))
         + (SELECT count(*) FROM waku_bridge_openreply WHERE state = 'pending')
"""
# A check reads whole tables, at the cost of the server's PostgreSQL: at 50 checks a second it took a third of that.
CHECK_EVERY_SECONDS = 0.5
AT_ONCE = 1e6
WARM_UP_REQUESTS, WARM_UP_RATE = 40, 20
MAX_PUSHES = 1_000_000  # of a run, those of others included


class Run(NamedTuple):
    """Messages that went through: their number, the time, and their CPU time by kind of process.

    At an even rate there are also the milliseconds from the due moment of each to its push, and what was written.
    """

    messages: int
    seconds: float
    cpu_seconds: Mapping[str, float]
    delays_ms: Sequence[float] = ()
    written: Mapping[str, int] = {}

    @property
    def per_second(self) -> float:
        """Return the number of messages in a second, whatever else ran on the cores."""
        return self.messages / self.seconds

    @property
    def cpu_ms(self) -> float:
        """Return the CPU time of one message over all processes of the server."""
        return sum(self.cpu_seconds.values()) * 1000 / self.messages

    def by_process(self) -> dict[str, float]:
        """Return the CPU milliseconds of one message by kind of process."""
        return {name: seconds * 1000 / self.messages for name, seconds in self.cpu_seconds.items()}

    def figures(self) -> dict[str, float]:
        """Return the median delay, the delay that one message of a hundred exceeds, and the costs of a message."""
        percentiles = quantiles(self.delays_ms, n=100, method="inclusive")
        written = {name: number / self.messages for name, number in self.written.items()}
        return {"p50_ms": percentiles[49], "p99_ms": percentiles[98], "cpu_ms": self.cpu_ms, **written}


@dataclass(frozen=True, slots=True)
class Load:
    """Phones and a sender at a server. The statements count its published replies, and what is open in it."""

    running: Fleet
    phones: Phones
    published: str = PUBLISHED
    open: str = OPEN

    def prepare(self) -> None:
        """Register all phones, and notify each of them once, as nearly all phones of a real server have been."""
        self.warm_up()
        self.process_backlog(self.phones.registrations[1:])
        self.process_backlog(self.phones.requests(len(self.phones.registrations)))
        self.forget_missing_keys()

    def warm_up(self) -> None:
        """Send a registration and some requests all the way. Every process has its connections afterwards."""
        self.publish_evenly(self.phones.registrations[:1], rate=WARM_UP_RATE)
        self.publish_evenly([self.phones.request(0) for _ in range(WARM_UP_REQUESTS)], rate=WARM_UP_RATE)

    def forget_missing_keys(self) -> None:
        """Leave no key to be derived. With a tenth of a core that would take minutes, and no phone is looked up."""
        self.running.database.execute("DELETE FROM registrations_topickey WHERE key_encrypted IS NULL")
        self.running.database.execute("ANALYZE")

    def process_backlog(self, messages: Sequence[WakuMessage]) -> Run:
        """Measure from the moment the bridge may read until every reply is published and nothing is open."""
        replies = self._replies_after(messages)
        bridge = self.running.bridge()
        bridge.suspend()  # so that the messages pile up in the node
        try:
            asyncio.run(_publish(self.running.node_url, messages))
            before, started = self.running.cpu_seconds(), time.monotonic()
        finally:
            bridge.resume()
        self._wait_for(replies)
        return Run(len(messages), time.monotonic() - started, self._spent(before))

    def paced(self, *, rate: float, seconds: float) -> Run:
        """Publish requests at an even rate, with any number in flight, and measure until all are answered."""
        messages = self.phones.requests(int(rate * seconds))
        pushes_url = f"{self.running.gorush_url}/dev/pushes"
        earlier = len(_pushes(pushes_url, 0))
        replies = self._replies_after(messages)
        written = self.running.written()
        before, started = self.running.cpu_seconds(), time.monotonic()
        due_ms = asyncio.run(_publish(self.running.node_url, messages, rate=rate))
        self._wait_for(replies)
        arrived: dict[str, list[float]] = {}
        for push in sorted(_pushes(pushes_url, earlier + len(messages))[earlier:], key=lambda p: p["received_ms"]):
            arrived.setdefault(push["token"], []).append(push["received_ms"])
        # A phone that is notified more than once gets its pushes in the order of the requests.
        delays_ms = [arrived[self.phones.token(number)].pop(0) - due for number, due in enumerate(due_ms)]
        written = {name: number - written[name] for name, number in self.running.written().items()}
        return Run(len(messages), time.monotonic() - started, self._spent(before), delays_ms, written)

    def publish_evenly(self, messages: Sequence[WakuMessage], *, rate: float) -> None:
        """Publish messages at an even rate, and wait until all are answered."""
        replies = self._replies_after(messages)
        asyncio.run(_publish(self.running.node_url, messages, rate=rate))
        wait_until(lambda: self.running.number(self.published) >= replies, TIMEOUT_SECONDS)

    def _replies_after(self, messages: Sequence[WakuMessage]) -> int:
        return self.running.number(self.published) + len(messages)

    def _spent(self, before: Mapping[str, float]) -> dict[str, float]:
        return {name: after - before.get(name, 0.0) for name, after in self.running.cpu_seconds().items()}

    def _wait_for(self, replies: int) -> None:
        """Wait until ``replies`` replies are published and nothing is open."""

        def is_done() -> bool:
            return not self.running.number(self.open) and self.running.number(self.published) >= replies

        wait_until(is_done, TIMEOUT_SECONDS, every=CHECK_EVERY_SECONDS)


async def _publish(node_url: str, messages: Sequence[WakuMessage], *, rate: float = AT_ONCE) -> list[float]:
    """Publish at an even rate, and return when each message was due, in milliseconds since the epoch."""
    first_due_ns = time.time_ns() + 10**9
    due_ns = [first_due_ns + round(number * 1e9 / rate) for number in range(len(messages))]
    # Phones date a message when they send it, and the store is searched by that date.
    dated = [replace(message, timestamp_ns=at_ns) for at_ns, message in zip(due_ns, messages, strict=True)]
    async with aiohttp.ClientSession() as session:

        async def post(message: WakuMessage) -> None:
            async with session.post(node_url + PUBLISH_PATH, json=to_json(message)) as response:
                response.raise_for_status()

        await send_on_time(dated, due_ns, post)
    return [at_ns / 1e6 for at_ns in due_ns]


def _pushes(url: str, number: int) -> list[dict[str, Any]]:
    """Return all pushes once there are ``number`` of them. A late push arrives after its reply is published.

    Raises TimeoutError when they do not arrive.
    """
    pushes: list[dict[str, Any]] = []

    def have_arrived() -> bool:
        pushes[:] = httpx.get(url, params={"limit": str(MAX_PUSHES)}, timeout=60, trust_env=False).json()["pushes"]
        return len(pushes) >= number

    wait_until(have_arrived, TIMEOUT_SECONDS, every=CHECK_EVERY_SECONDS)
    return pushes
