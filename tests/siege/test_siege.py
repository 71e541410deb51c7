"""Siege: a thousand hostile keys send 300 messages/s over Waku and hostile servers 20 stanzas/s over XMPP, beside
honest clients of both; and 100 000 messages come at once.

Honest clients must not notice. `make siege` runs the first for five minutes (SIEGE_SECONDS), with nothing else on this
machine, and prints the figures; ATTACK is a part of the names of the attacks to try, by default all. Everything is
real: processes as `manage.py up` starts them, PostgreSQL, Valkey, Prosody, the development node and gorush.
"""

import asyncio
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self

import psutil
import psycopg
import pytest

from embedded.load import LoadRequest, PushRecord, Result, WakuLoad, judge_when_recorded
from embedded.servers import prosody
from kit.http import Connections
from tests.interop.xmpp import peers
from tests.interop.xmpp.peers import DOUBLE_SECRET, DOUBLES, LOOPBACK
from tests.interop.xmpp.service import APP, BRIDGE, Neighbour, Service
from tests.rig.load import Pushes
from tests.rig.server import PUBSUB_TOPIC, SERVER, Fleet, NewFleet, served, wait_until
from tests.siege import intruders
from tests.siege.besiege import Besiegers
from tests.siege.payloads import TOMBSTONE, Payloads, Phone
from waku_bridge.client.registering import RegisteringClient
from waku_bridge.codec.wire import message_hash
from waku_bridge.inbox.inbox import INSERT, Envelope, Path, insert_values
from waku_bridge.node import WakuNode
from xmpp_bridge.client.user_server import Route

pytestmark = pytest.mark.chaos
SECONDS = int(os.environ.get("SIEGE_SECONDS") or 300)
ATTACK = os.environ.get("ATTACK") or ""
KEYS, HOSTILE_RATE, INTRUDERS_RATE, HONEST_RATE, XMPP_RATE = 1000, 300, 20, 50, 10
DEVICES = 50
WARM_UP_SECONDS, DRAIN_SECONDS = 3, 60
MAX_MB = 400
# Memory of a process a while after a siege, beyond that at its beginning.
MAX_LEFT_MB = 100
EVERY_SECONDS = 2.0
# An accepted registration leaves most rows: envelope and hash, registration, route, grant, event, query topic, reply.
# On a fast machine, which drops less of the siege, the mean comes near it.
MAX_ROWS_EACH = 8
# An honest request leaves an envelope, a request, the hash of each, a notification, an attempt and a reply.
ROWS_OF_A_REQUEST = 7
# Size of the flood. Its messages are the cheapest to decide. The few honest requests are about phones with an earlier
# push.
BACKLOG = int(os.environ.get("SIEGE_BACKLOG") or 100_000)
PROVEN_RATE, PROVEN_SECONDS = 20, 60
PAGE = 1000
TABLES = """
    SELECT coalesce(inhparent::regclass::text, relname), sum(pg_total_relation_size(oid))::bigint
    FROM pg_class LEFT JOIN pg_inherits ON inhrelid = oid
    WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND relname !~ '^(django|auth|tests)'
    GROUP BY 1
"""
# A flood is hardest when PostgreSQL's statistics have these tables as empty, until the next ANALYZE.
UNDER_WAY = [
    "waku_bridge_openenvelope",
    "notifications_opennotification",
    "notifications_openrequest",
    "waku_bridge_openreply",
]
NOTHING_UNDER_WAY = f"SELECT {' + '.join(f'(SELECT count(*) FROM {name})' for name in UNDER_WAY[:3])} = 0"
STATES = "SELECT state, reason, count(*) FROM waku_bridge_inboundenvelope GROUP BY 1, 2 ORDER BY 3 DESC"


class Memory:
    """Memory of each process of a fleet with its children, in MB, every few seconds while this context is open."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.seen: defaultdict[str, list[float]] = defaultdict(list)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(EVERY_SECONDS):
            for name, process in self._fleet.running.items():
                with suppress(psutil.NoSuchProcess):  # a child has ended
                    root = psutil.Process(process.pid)
                    sizes = [each.memory_full_info().pss for each in (root, *root.children(recursive=True))]
                    self.seen[name].append(sum(sizes) / 2**20)


def stored(fleet: Fleet) -> dict[str, tuple[int, int]]:
    """Return rows and bytes of each table."""
    return {name: (fleet.rows(f"SELECT count(*) FROM {name}")[0][0], size) for name, size in fleet.rows(TABLES)}


@dataclass(frozen=True, slots=True)
class Honest:
    """Honest clients of both networks, which notify all phones but the first. The first is the victim: because of its
    many hostile notifications it would get fewer honest ones.
    """

    fleet: Fleet
    waku: WakuLoad
    phones: Sequence[RegisteringClient]
    client: Connections

    def record(self) -> PushRecord:
        return PushRecord(self.fleet.environment["GORUSH_URL"], self.client)

    def requests(self, *, seconds: float, rate: float = HONEST_RATE) -> list[LoadRequest]:
        return self.waku.build(self.phones[1:], rate=rate, seconds=seconds)

    async def ask(self, requests: Sequence[LoadRequest]) -> Result:
        return await self.waku.run(requests, self.record(), drain_seconds=DRAIN_SECONDS)

    async def begin(self, besiegers: Besiegers, requests: Sequence[LoadRequest]) -> None:
        """Let the besiegers begin when the first request is due."""
        await asyncio.sleep((requests[0].due_ns - time.time_ns()) / 1e9)
        besiegers.begin()


@asynccontextmanager
async def honest_clients(fleet: Fleet) -> AsyncIterator[tuple[Honest, list[LoadRequest]]]:
    """Register phones and push to each once, as a phone is proven then. Wait until nothing is under way."""
    async with Connections(silent_seconds=30, max_answer_bytes=2**30) as client:
        waku = WakuLoad(WakuNode(fleet.environment["WAKU_NODES"], client), SERVER.pub33, PUBSUB_TOPIC)
        honest = Honest(fleet, waku, await waku.register(DEVICES), client)
        warm_up = honest.requests(seconds=WARM_UP_SECONDS)
        await honest.ask(warm_up)
        await asyncio.to_thread(analyze_nothing, fleet)
        yield honest, warm_up


def analyze_nothing(fleet: Fleet) -> None:
    """Wait until nothing is under way, and let PostgreSQL collect its statistics then."""
    wait_until(lambda: fleet.rows(NOTHING_UNDER_WAY) == [(True,)], what="nothing is under way")
    fleet.rows(f"ANALYZE {', '.join(UNDER_WAY)}")


@dataclass(frozen=True, slots=True)
class Siege:
    """Figures of a siege."""

    waku: Result
    xmpp: Result
    sent: Counter[str]
    sent_bytes: int
    memory: Memory
    before: dict[str, tuple[int, int]]
    after: dict[str, tuple[int, int]]

    def grown(self, index: int) -> int:
        """Return by how many rows (0) or bytes (1) all tables grew."""
        return sum(each[index] for each in self.after.values()) - sum(each[index] for each in self.before.values())

    @property
    def rows_each(self) -> float:
        """Return the rows that a hostile message left, without those of honest messages."""
        honest = self.waku.requests + self.xmpp.requests
        return (self.grown(0) - ROWS_OF_A_REQUEST * honest) / self.sent.total()

    @property
    def bytes_per_byte(self) -> float:
        """Return the bytes on disk for each byte on the wire, for the messages of all senders."""
        return self.grown(1) / (self.sent_bytes + 700 * (self.waku.requests + self.xmpp.requests))


@pytest.fixture
def service(require_or_skip: Callable[[bool, str], None], new_fleet: NewFleet) -> Iterator[Service]:
    """The whole server with both bridges, and Prosody between the service and the servers of users."""
    require_or_skip(prosody.is_installed(), "there is no Prosody: `make siege` as root installs it")
    fleet = new_fleet("siege", GORUSH_TIMEOUT_SECONDS="3")
    peer = peers.prosody(fleet)
    fleet.environment.update(peers.component_of(peer))
    with served(fleet):
        service = Service(peer, fleet)
        service.add_app(APP)
        service.start_bridge()
        asyncio.run(service.wait_until_connected())
        yield service


async def hold_out(service: Service) -> Siege:
    """Register the honest clients, start the besiegers and the intruders, and measure."""
    fleet = service.fleet
    async with honest_clients(fleet) as (honest, warm_up), service.user_server() as server:
        routes = await server.routes(DEVICES)
        victims = [Phone(each.identity.key_hash, each.installation_id, each.access_token) for each in honest.phones]
        captured = [each.message for each in warm_up]
        rates = {"rate": HOSTILE_RATE, "seconds": SECONDS, "keys": KEYS, "kind": ATTACK}
        besiegers = Besiegers(fleet.environment["WAKU_NODES"], SERVER.pub33, victims, captured, **rates)
        before = stored(fleet)
        with Memory(fleet) as memory:
            requests = honest.requests(seconds=SECONDS)
            at_waku, at_xmpp, intruded, _ = await asyncio.gather(
                honest.ask(requests),
                push_honestly(server, routes, honest.record()),
                intrude(service),
                honest.begin(besiegers, requests),
            )
            sent, size_bytes = besiegers.report()
            await asyncio.sleep(2 * EVERY_SECONDS)
    hostile = sent + Counter({kind: len(stanzas) for kind, stanzas in intruded.items()})
    size_bytes += sum(map(intruders.bytes_of, intruded.values()))
    return Siege(at_waku, at_xmpp, hostile, size_bytes, memory, before, stored(fleet))


async def push_honestly(server: Neighbour, routes: Sequence[Route], record: PushRecord) -> Result:
    """Push along the routes in turn, and wait for what is missing."""
    await record.skip()
    sent = Pushes()
    await sent.send(server, routes, per_second=XMPP_RATE, is_enough=lambda number: number >= XMPP_RATE * SECONDS)
    return await judge_when_recorded(record, sent.result, deadline=time.monotonic() + DRAIN_SECONDS)


async def intrude(service: Service) -> dict[str, list[str]]:
    """Send stanzas of one kind after the other, each from a hostile server of its own. Return what was sent."""
    sent: dict[str, list[str]] = {}
    kinds = [kind for kind in intruders.KINDS if ATTACK in kind]
    for kind, domain in zip(kinds, DOUBLES, strict=False):
        async with Neighbour(domain, DOUBLE_SECRET, LOOPBACK, service.peer.component_port) as intruder:
            sent[kind] = await intruders.stanzas(kind, intruder, round(INTRUDERS_RATE * SECONDS / len(kinds)))
            began = time.monotonic()
            for number, stanza in enumerate(sent[kind]):
                await asyncio.sleep(max(0.0, began + number / INTRUDERS_RATE - time.monotonic()))
                intruder.component.send(stanza)
    return sent


def show(siege: Siege, states: Sequence[tuple[Any, ...]]) -> None:
    """Print the figures."""
    print(f"\nSiege of {SECONDS} s: {siege.sent.total():,} hostile messages, {siege.sent_bytes:,} bytes")
    for kind, count in siege.sent.most_common():
        print(f"  {count:>8,}  {kind}")
    for name, honest in (("Waku", siege.waku), ("XMPP", siege.xmpp)):
        print(f"Honest at {name}: {honest.requests:,}, refused {honest.refused}")
        print(f"  gorush: {honest.pushes}\n  replies: {honest.replies}\n  generator: {honest.generator}")
    for name, seen in sorted(siege.memory.seen.items()):
        print(f"  {name}: {seen[0]:.0f} MB, at most {max(seen):.0f} MB, {seen[-1]:.0f} MB at the end")
    for table, (count, size) in sorted(siege.after.items()):
        rows, size_before = siege.before.get(table, (0, 0))
        if count - rows > 100:
            print(f"  {count - rows:>10,} rows, {(size - size_before) / 2**20:>8.1f} MB  {table}")
    print(f"  in the inbox, of all senders: {states}")
    print(f"  {siege.rows_each:.2f} rows per hostile message, {siege.bytes_per_byte:.2f} bytes on disk per byte sent")


def test_honest_clients_do_not_notice_a_siege(service: Service) -> None:
    siege = asyncio.run(hold_out(service))
    show(siege, service.fleet.rows(STATES))
    for honest in (siege.waku, siege.xmpp):
        assert (honest.refused, honest.is_clean) == ({}, True)
        assert honest.pushes.latency_ms.p99 <= 2000
        assert honest.replies.latency_ms.p99 <= 3000
    ours = {name: seen for name, seen in siege.memory.seen.items() if name not in {"node", "gorush", "prosody"}}
    assert BRIDGE in ours
    assert {name: max(seen) for name, seen in ours.items() if max(seen) > MAX_MB} == {}
    assert {name: seen for name, seen in ours.items() if seen[-1] - seen[0] > MAX_LEFT_MB} == {}
    assert siege.rows_each <= MAX_ROWS_EACH
    assert siege.bytes_per_byte <= 3


def tombstones(count: int) -> list[Envelope]:
    """Seal valid messages that cost one unit, by many keys."""
    payloads = Payloads(SERVER.pub33, [], [], keys=count // 10, seed=1)
    sealed = (payloads.next(TOMBSTONE)[1] for _ in range(count))
    dated = (replace(message, timestamp_ns=time.time_ns()) for message in sealed)
    return [Envelope(message_hash(PUBSUB_TOPIC, message), PUBSUB_TOPIC, message) for message in dated]


def put(envelopes: Sequence[Envelope], database_url: str) -> None:
    """Write envelopes into the inbox faster than a bridge does."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        for first in range(0, len(envelopes), PAGE):
            page = envelopes[first : first + PAGE]
            values = insert_values(page, source="siege", path=Path.LIVE, received_at=datetime.now(UTC))
            connection.execute(INSERT, values)


async def hold_out_behind_a_backlog(fleet: Fleet) -> Result:
    async with honest_clients(fleet) as (honest, _):
        await asyncio.to_thread(put, tombstones(BACKLOG), fleet.environment["DATABASE_URL"])
        return await honest.ask(honest.requests(seconds=PROVEN_SECONDS, rate=PROVEN_RATE))


def test_a_hundred_thousand_messages_of_one_unit_keep_no_proven_phone_waiting(new_fleet: NewFleet) -> None:
    with served(new_fleet("backlog", GORUSH_TIMEOUT_SECONDS="3")) as fleet:
        honest = asyncio.run(hold_out_behind_a_backlog(fleet))
        states = fleet.rows(STATES)
    print(f"\n{BACKLOG:,} messages of one unit beside {PROVEN_RATE} proven requests/s for {PROVEN_SECONDS} s:")
    print(f"  gorush: {honest.pushes}\n  replies: {honest.replies}\n  in the inbox, of all senders: {states}")
    assert (honest.refused, honest.pushes.lost, honest.pushes.doubled) == ({}, 0, 0)
    assert honest.pushes.latency_ms.p99 <= 3000
    assert not [state for state, reason, _ in states if state == "failed" or reason == "overload"]
