"""Cost of each attack to its sender and to the server, one after the other, beside honest traffic of both bridges.

`make siege` prints the table. ATTACK_SECONDS is the duration of each attack, and ATTACK a part of the names of the
attacks to try, by default all. Everything is real but the node and gorush, which are the development ones. Prosody is
between the push service and the servers of users.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from rich.console import Console
from rich.table import Table

from embedded.load import PushRecord, Result
from embedded.servers import prosody
from embedded.servers.postgres import EmbeddedPostgres
from embedded.xmpp_load import XmppLoad
from kit.http.connections import new_client
from tests.interop.xmpp import peers
from tests.interop.xmpp.peers import DOUBLE_SECRET, DOUBLES, LOOPBACK, SERVICE
from tests.interop.xmpp.service import APP, Neighbour, Service
from tests.rig.peers import ask
from tests.rig.server import SERVER, Fleet, NewFleet, served, wait_until
from tests.siege import intruders
from tests.siege.honest import Honest, ask_honestly, besieging, report_of
from tests.siege.payloads import TO_OWN_PHONES, Payloads
from tests.siege.watching import cpu_seconds, cpu_seconds_of, stored
from waku_bridge.messages import WakuMessage
from xmpp_bridge.client import Route

pytestmark = pytest.mark.chaos
SECONDS = int(os.environ.get("ATTACK_SECONDS") or 5)
ATTACK = os.environ.get("ATTACK") or ""
HOSTILE_RATE, WAKU_RATE, XMPP_RATE = 100, 10, 10
PHONES = 50
WARM_UP_SECONDS = 6
NOBODY = "nobody attacks"
# Processes that are not part of the server: other operators run them, or they stand for Apple and Google.
NOT_OURS = {"node", "gorush", "prosody"}
WAITING = """
    SELECT (SELECT count(*) FROM waku_bridge_inboundenvelope WHERE state IN ('received', 'postponed'))
         + (SELECT count(*) FROM waku_bridge_outboundreply WHERE state = 'pending')
         + (SELECT count(*) FROM notifications_notification WHERE state IN ('pending', 'in_flight'))
"""
# Rows for each message. An accepted registration leaves seven: envelope, reply, registration, route, grant, event, key
# of a topic. A hundred pushes to the sender's own phones may each wait and be attempted.
MAX_ROWS_EACH = 8
MAX_ROWS_OF_PUSHES = 200


@dataclass(frozen=True, slots=True)
class Moment:
    """Resources that were used and stored up to a moment, by all senders."""

    cpu_seconds: float
    rows: int
    bytes: int
    pushes: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one attack: messages and bytes of its sender, the resources used meanwhile, and the results of honest
    clients.
    """

    name: str
    messages: int
    bytes: int
    used: Moment
    waku: Result
    xmpp: Result


@dataclass(frozen=True, slots=True)
class World:
    fleet: Fleet
    service: Service
    postgres: EmbeddedPostgres

    def now(self) -> Moment:
        ours = sum(used for name, used in cpu_seconds(self.fleet).items() if name not in NOT_OURS)
        postmaster = int((self.postgres.data_dir / "postmaster.pid").read_text().splitlines()[0])
        tables = stored(self.fleet.environment["DATABASE_URL"]).values()
        pushes = int(ask(self.service.gorush_url, "GET", "/dev/pushes?limit=1").body["last_id"])
        return Moment(
            ours + cpu_seconds_of(postmaster), sum(rows for rows, _ in tables), sum(size for _, size in tables), pushes
        )

    def wait_until_quiet(self) -> None:
        wait_until(lambda: self.fleet.rows(WAITING) == [(0,)], seconds=120, pause_seconds=0.5, what="nothing waits")


@pytest.fixture
def world(
    require_or_skip: Callable[[bool, str], None], postgres: EmbeddedPostgres, new_fleet: NewFleet
) -> Iterator[World]:
    require_or_skip(prosody.is_installed(), "there is no Prosody: `make siege` as root installs it")
    fleet = new_fleet("attacks", GORUSH_TIMEOUT_SECONDS="3")
    peer = peers.prosody(fleet)
    fleet.environment.update(peers.component_of(peer))
    with served(fleet):
        service = Service(peer, fleet)
        service.add_app(APP)
        service.start_bridge()
        asyncio.run(service.wait_until_connected())
        yield World(fleet, service, postgres)


def test_an_attack_disturbs_no_honest_client_and_leaves_few_rows(world: World) -> None:
    quiet, *costs = asyncio.run(suffer_each(world))
    show(quiet, costs)
    assert [cost.name for cost in [quiet, *costs] if not (cost.waku.is_clean and cost.xmpp.is_clean)] == []
    limits = {TO_OWN_PHONES: MAX_ROWS_OF_PUSHES}
    assert [cost.name for cost in costs if rows_each(cost, quiet) > limits.get(cost.name, MAX_ROWS_EACH)] == []


async def suffer_each(world: World) -> list[Cost]:
    """Measure without an attack, and then each attack in turn."""
    settings = world.fleet.environment
    async with new_client(timeout_seconds=30, max_answer_bytes=2**30) as client, world.service.user_server() as server:
        honest = await Honest.register(PHONES, settings, client)
        xmpp = XmppLoad(server, SERVICE, APP)
        record = PushRecord(settings["GORUSH_URL"], client)
        clients = Clients(world, honest, xmpp, record, await xmpp.register(PHONES))
        warm_up = honest.requests(seconds=WARM_UP_SECONDS, rate=WAKU_RATE)
        await ask_honestly(honest, warm_up)
        kinds = [kind for kind in Payloads(SERVER.pub33, [], [], keys=1, seed=1).kinds if ATTACK in kind]
        await clients.suffer(NOBODY)  # a warm-up: plans are made, and pools filled
        costs = [await clients.suffer(NOBODY)]
        kinds_of_xmpp = [kind for kind in intruders.KINDS if ATTACK in kind]
        for kind, domain in zip(kinds_of_xmpp, DOUBLES, strict=False):
            async with Neighbour(domain, DOUBLE_SECRET, LOOPBACK, world.service.peer.component_port) as intruder:
                costs.append(await clients.suffer(kind, intruder=intruder))
        costs += [await clients.suffer(kind, besieged_by=kind, recorded=warm_up.messages) for kind in kinds]
    return costs


@dataclass(frozen=True, slots=True)
class Clients:
    """The honest clients of both bridges, and their results during an attack."""

    world: World
    honest: Honest
    xmpp: XmppLoad
    record: PushRecord
    routes: Sequence[Route]

    async def suffer(
        self,
        name: str,
        *,
        besieged_by: str = "",
        recorded: Sequence[WakuMessage] = (),
        intruder: Neighbour | None = None,
    ) -> Cost:
        """Run an attack, or none, for a while, and measure until nothing waits."""
        settings, count = self.world.fleet.environment, HOSTILE_RATE * SECONDS
        rate = {"rate": HOSTILE_RATE, "seconds": SECONDS}
        besiegers = (
            besieging(self.honest, settings["WAKU_NODES"], recorded, kind=besieged_by, **rate) if besieged_by else None
        )
        sent = await intruders.stanzas(name, intruder, count) if intruder else []
        before = await asyncio.to_thread(self.world.now)
        async with intruding(intruder, sent):
            waku, xmpp = await asyncio.gather(
                ask_honestly(self.honest, self.honest.requests(seconds=SECONDS, rate=WAKU_RATE), besiegers),
                self.xmpp.run(self.routes, self.record, rate=XMPP_RATE, seconds=SECONDS, drain_seconds=30),
            )
        hostile = report_of(besiegers) if besiegers else {"sent": {name: len(sent)}, "bytes": intruders.bytes_of(sent)}
        await asyncio.to_thread(self.world.wait_until_quiet)
        after = await asyncio.to_thread(self.world.now)
        used = Moment(
            after.cpu_seconds - before.cpu_seconds,
            after.rows - before.rows,
            after.bytes - before.bytes,
            after.pushes - before.pushes,
        )
        return Cost(name, sum(hostile["sent"].values()), hostile["bytes"], used, waku, xmpp)


@asynccontextmanager
async def intruding(intruder: Neighbour | None, sent: Sequence[str]) -> AsyncIterator[None]:
    """Send stanzas at a steady rate, all of them before the end."""

    async def send() -> None:
        began = time.monotonic()
        for number, stanza in enumerate(sent):
            await asyncio.sleep(max(0.0, began + number / HOSTILE_RATE - time.monotonic()))
            if intruder:
                intruder.component.send(stanza)

    sending = asyncio.create_task(send())
    yield
    await sending


def rows_each(cost: Cost, quiet: Cost) -> float:
    return (cost.used.rows - quiet.used.rows) / max(1, cost.messages)


def show(quiet: Cost, costs: Sequence[Cost]) -> None:
    """Print a row for each attack: its cost beyond that of honest traffic alone."""
    titles = ("attack", "messages", "bytes each", "our CPU ms each", "rows each", "bytes stored each", "pushes each")
    table = Table(*titles, "p99 Waku ms", "p99 XMPP ms", title=f"{SECONDS} s of each attack, {HOSTILE_RATE} a second")
    for cost in [quiet, *costs]:
        own = [] if cost is quiet else _own(cost, quiet)
        table.add_row(cost.name, *map(str, own or [""] * 6), _p99(cost.waku.pushes), _p99(cost.xmpp.pushes))
    Console(width=170).print(table)


def _own(cost: Cost, quiet: Cost) -> list[object]:
    count = max(1, cost.messages)
    return [
        cost.messages,
        cost.bytes // count,
        f"{max(0.0, cost.used.cpu_seconds - quiet.used.cpu_seconds) * 1000 / count:.1f}",
        f"{max(0.0, rows_each(cost, quiet)):.1f}",
        f"{max(0, cost.used.bytes - quiet.used.bytes) / count:.0f}",
        f"{(cost.used.pushes - quiet.used.pushes) / count:.2f}",
    ]


def _p99(arrivals: object) -> str:
    latency = getattr(arrivals, "latency_ms", None)
    return f"{latency.p99:.0f}" if latency else "?"
