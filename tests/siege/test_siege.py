"""A thousand hostile keys at 300 messages/s beside 50 honest requests/s, and 100 000 messages at once beside 20.

The honest ones must not notice. `make siege` runs the first for five minutes (SIEGE_SECONDS), on this machine alone,
and prints the figures. Everything is real: processes as `manage.py up` starts them, PostgreSQL, Valkey, the development
node and gorush.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from coincurve import PrivateKey

from kit.http.connections import new_client
from pushserver.embedded.postgres import EmbeddedPostgres
from pushserver.embedded.valkey import EmbeddedValkey
from pushserver.supervisor.guard import Guard
from registrations.messages import RegistrationMessage
from tests.flows.conftest import SERVER, environment_of, served
from tests.flows.fleet import PUBSUB_TOPIC, Fleet
from tests.siege.watching import Memory, given_up, inbox, stored
from waku_bridge.client import Session
from waku_bridge.client.load import Ear, Result, build, evaluate, pushes_recorded, register_devices, shoot
from waku_bridge.client.registering import RegisteringClient
from waku_bridge.codec.envelope import encode_registration
from waku_bridge.codec.keys import Identity
from waku_bridge.codec.topics import message_hash
from waku_bridge.inbox import INSERT, Envelope, Path, insert_values
from waku_bridge.node import WakuNode

pytestmark = pytest.mark.chaos
SECONDS = int(os.environ.get("SIEGE_SECONDS") or 300)
KEYS, HOSTILE_RATE, HONEST_RATE, DEVICES = 1000, 300, 50, 50
DRAIN_SECONDS = 60
WARM_UP_SECONDS = 3
# What the siege is about are the limits as they are by default.
UNSET = ("_LIMITS", "MAX_OPEN_PER_ROUTE", "REPLY_DEADLINE_SECONDS")
MOST_MB = 400
MOST_ROWS_EACH = 5
# The flood of messages as cheap to decide as any, beside few requests about phones that were reached before.
BACKLOG = int(os.environ.get("SIEGE_BACKLOG") or 100_000)
PROVEN_RATE, PROVEN_SECONDS = 20, 60
PAGE = 1000
# An honest request leaves an envelope, a request, a notification, an attempt and a reply.
ROWS_OF_A_REQUEST = 5


@dataclass(frozen=True, slots=True)
class Siege:
    """What a siege showed."""

    honest: Result
    sent: dict[str, int]
    sent_bytes: int
    memory: Memory
    before: dict[str, tuple[int, int]]
    after: dict[str, tuple[int, int]]
    inbox: dict[str, int]

    @property
    def messages(self) -> int:
        return sum(self.sent.values())

    @property
    def rows_each(self) -> float:
        """Return how many rows a hostile message left, with those that honest ones left taken off."""
        rows = sum(count for count, _ in self.after.values()) - sum(count for count, _ in self.before.values())
        return (rows - ROWS_OF_A_REQUEST * self.honest.requests) / self.messages

    @property
    def bytes_per_byte(self) -> float:
        """Return how many bytes on disk a byte on the wire became, of everybody's messages."""
        grown = sum(size for _, size in self.after.values()) - sum(size for _, size in self.before.values())
        return grown / (self.sent_bytes + 700 * self.honest.requests)


@pytest.fixture
def fleet(
    postgres: EmbeddedPostgres,
    valkey: EmbeddedValkey,
    new_database: Callable[[str], str],
    guard: Guard,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("siege")
    url = postgres.url(new_database(folder.name))
    environment = environment_of(url, f"{valkey.url.removesuffix('/0')}/9", tmp_path_factory)
    environment = {name: value for name, value in environment.items() if not name.endswith(UNSET)}
    with served(Fleet(folder, environment, guard)) as running:
        yield running


async def hold_out(fleet: Fleet) -> Siege:
    """Register the honest ones, let the besiegers come, and measure."""
    settings = fleet.environment
    async with new_client(timeout_seconds=30, max_answer_bytes=2**30) as client:
        node = WakuNode(settings["WAKU_NODES"], client)
        session = Session(node, pubsub_topic=PUBSUB_TOPIC)
        phones = await register_devices(session, SERVER.pub33, DEVICES, _nothing)
        besiegers = _besiegers(settings["WAKU_NODES"], phones)
        # They are proven: each phone was notified before.
        await _ask_honestly(node, session, phones, settings["GORUSH_URL"], seconds=WARM_UP_SECONDS)
        before = stored(settings["DATABASE_URL"])
        with Memory(fleet) as memory:
            honest = await _ask_honestly(node, session, phones, settings["GORUSH_URL"], besiegers, seconds=SECONDS)
        said, _ = besiegers.communicate(timeout=60)
    hostile = json.loads(said.strip().splitlines()[-1])
    url = settings["DATABASE_URL"]
    return Siege(honest, hostile["sent"], hostile["bytes"], memory, before, stored(url), inbox(url))


def _besiegers(node_url: str, phones: list[RegisteringClient]) -> "subprocess.Popen[str]":
    victims = [(p.identity.key_hash.hex(), p.installation_id, p.access_token) for p in phones]
    told = {"node": node_url, "server": SERVER.pub33.hex(), "victims": victims, "keys": KEYS, "seed": 1}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-m", "tests.siege.besiege"], **pipes)
    process.stdin.write(json.dumps(told | {"rate": HOSTILE_RATE, "seconds": SECONDS}) + "\n")
    process.stdin.flush()
    assert process.stdout.readline() == "ready\n"
    return process


async def _ask_honestly(
    node: WakuNode,
    session: Session,
    phones: list[RegisteringClient],
    gorush_url: str,
    besiegers: "subprocess.Popen[str] | None" = None,
    *,
    seconds: float,
    rate: float = HONEST_RATE,
) -> Result:
    """Notify all phones but the first. That is the victim: whoever is pestered that much is told less.

    Besiegers begin at the moment when the first request is due.
    """
    load = build(phones[1:], SERVER.pub33, rate=rate, seconds=seconds, on_progress=_nothing)
    if besiegers and besiegers.stdin:
        await asyncio.sleep((load.due_ns[0] - time.time_ns()) / 1e9)
        besiegers.stdin.write("begin\n")
        besiegers.stdin.flush()
    ear = Ear(node, PUBSUB_TOPIC, load.senders)
    listening = asyncio.create_task(ear.listen())
    shots = await shoot(load.messages, load.due_ns, session.publish, _nothing)
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while ear.unanswered(load.message_ids):  # noqa: ASYNC110 - it is a store that is asked
                await asyncio.sleep(0.5)
    listening.cancel()
    with suppress(asyncio.CancelledError):
        await listening
    await ear.listen_again()
    async with new_client(timeout_seconds=60, max_answer_bytes=2**30) as client:
        found = await pushes_recorded(gorush_url, client, since=0)
    return evaluate(load, shots, ear.heard(), found[0] if found else None)


def _nothing() -> None:
    """Show no progress."""


def show(siege: Siege) -> None:
    """Print the figures."""
    honest = siege.honest
    print(f"\nSiege of {SECONDS} s: {siege.messages:,} hostile messages of {KEYS} keys, {siege.sent_bytes:,} bytes")
    for kind, count in sorted(siege.sent.items(), key=lambda item: -item[1]):
        print(f"  {count:>8,}  {kind}")
    print(f"Honest requests: {honest.requests:,}, refused or failed {honest.failed}")
    for name, arrivals in (("gorush", honest.pushes), ("replies", honest.replies)):
        print(f"  {name}: {arrivals}")
    print(f"  generator: {honest.generator}")
    for name, most in sorted(siege.memory.most_mb.items()):
        first, cores = siege.memory.first_mb.get(name, 0), siege.memory.cores.get(name, 0)
        print(f"  {name}: {first:.0f} MB, at most {most:.0f} MB; {cores:.2f} cores")
    print(f"  the machine: {siege.memory.machine_cores:.2f} cores of {os.cpu_count()}")
    for table, (count, size) in sorted(siege.after.items()):
        rows, size_before = siege.before.get(table, (0, 0))
        if count - rows > 100:
            print(f"  {count - rows:>10,} rows, {(size - size_before) / 2**20:>8.1f} MB  {table}")
    print(f"  in the inbox, of everybody: {siege.inbox}")
    print(f"  {siege.rows_each:.2f} rows per hostile message, {siege.bytes_per_byte:.2f} bytes on disk per byte sent")


def test_honest_clients_do_not_notice_a_siege(fleet: Fleet) -> None:
    siege = asyncio.run(hold_out(fleet))
    show(siege)
    pushes, replies = siege.honest.pushes, siege.honest.replies
    assert (siege.honest.failed, pushes.lost, replies.lost, pushes.doubled) == (0, 0, 0, 0)
    assert pushes.latency_ms.p99 <= 2000
    assert replies.latency_ms.p99 <= 3000
    server = {name: most for name, most in siege.memory.most_mb.items() if name not in {"node", "gorush"}}
    assert {name: most for name, most in server.items() if most > MOST_MB} == {}
    assert siege.rows_each <= MOST_ROWS_EACH
    assert siege.bytes_per_byte <= 3


def tombstones(count: int) -> list[Envelope]:
    """Seal valid messages of one unit, each by a key of its own."""
    sealed = []
    for _ in range(count):
        message = encode_registration(
            RegistrationMessage(str(uuid4()), version=2**63, unregister=True),
            identity=Identity(PrivateKey()),
            server=SERVER.pub33,
            timestamp_ns=time.time_ns(),
            random_bytes=os.urandom,
        ).message
        sealed.append(Envelope(message_hash(PUBSUB_TOPIC, message), PUBSUB_TOPIC, message))
    return sealed


def put(envelopes: Sequence[Envelope], database_url: str) -> None:
    """Write envelopes into the inbox faster than any bridge does."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        for first in range(0, len(envelopes), PAGE):
            page = envelopes[first : first + PAGE]
            values = insert_values(page, source="siege", path=Path.LIVE, now=datetime.now(UTC))
            connection.execute(INSERT, values)


async def hold_out_behind_a_backlog(fleet: Fleet) -> Result:
    """Register phones, reach each of them once, and notify them behind a backlog of messages that cost one unit."""
    settings = fleet.environment
    async with new_client(timeout_seconds=30, max_answer_bytes=2**30) as client:
        node = WakuNode(settings["WAKU_NODES"], client)
        session = Session(node, pubsub_topic=PUBSUB_TOPIC)
        phones = await register_devices(session, SERVER.pub33, DEVICES, _nothing)
        await _ask_honestly(node, session, phones, settings["GORUSH_URL"], seconds=WARM_UP_SECONDS)
        await asyncio.to_thread(put, tombstones(BACKLOG), settings["DATABASE_URL"])
        return await _ask_honestly(
            node, session, phones, settings["GORUSH_URL"], seconds=PROVEN_SECONDS, rate=PROVEN_RATE
        )


def test_a_hundred_thousand_messages_of_one_unit_keep_no_proven_phone_waiting(fleet: Fleet) -> None:
    honest = asyncio.run(hold_out_behind_a_backlog(fleet))
    url = fleet.environment["DATABASE_URL"]
    print(f"\n{BACKLOG:,} messages of one unit beside {PROVEN_RATE} proven requests/s for {PROVEN_SECONDS} s:")
    print(f"  gorush: {honest.pushes}\n  replies: {honest.replies}\n  in the inbox, of everybody: {inbox(url)}")
    assert (honest.failed, honest.pushes.lost, honest.pushes.doubled) == (0, 0, 0)
    assert honest.pushes.latency_ms.p99 <= 3000
    assert given_up(url) == 0
