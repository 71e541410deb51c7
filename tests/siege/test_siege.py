"""Siege of a thousand hostile keys at 300 messages/s beside 50 honest requests/s, and 100 000 messages at once beside
20.

Honest clients must not notice. `make siege` runs the first for five minutes (SIEGE_SECONDS), with nothing else on this
machine, and prints the figures. Everything is real: processes as `manage.py up` starts them, PostgreSQL, Valkey, the
development node and gorush.
"""

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

import psycopg
import pytest
from coincurve import PrivateKey

from embedded.load import Result
from kit.http.connections import new_client
from registrations.messages import RegistrationMessage
from tests.rig.server import PUBSUB_TOPIC, SERVER, Fleet, NewFleet, served
from tests.siege.honest import KEYS, Honest, ask_honestly, besieging, report_of
from tests.siege.watching import Memory, analyze_nothing, given_up, inbox, stored
from waku_bridge.codec.envelope import encode_registration
from waku_bridge.codec.keys import Identity
from waku_bridge.codec.topics import message_hash
from waku_bridge.inbox.inbox import INSERT, Envelope, Path, insert_values

pytestmark = pytest.mark.chaos
SECONDS = int(os.environ.get("SIEGE_SECONDS") or 300)
DEVICES = 50
WARM_UP_SECONDS = 3
MAX_MB = 400
# An accepted registration leaves most rows: envelope and hash, registration, route, grant, event, query topic, reply.
# On a fast machine, which drops less of the siege, the mean comes near it.
MAX_ROWS_EACH = 8
# Size of the flood. Its messages are the cheapest to decide. The few honest requests are about phones with an earlier
# push.
BACKLOG = int(os.environ.get("SIEGE_BACKLOG") or 100_000)
PROVEN_RATE, PROVEN_SECONDS = 20, 60
PAGE = 1000
# An honest request leaves an envelope, a request, the hash of each, a notification, an attempt and a reply.
ROWS_OF_A_REQUEST = 7


@dataclass(frozen=True, slots=True)
class Siege:
    """Figures of a siege."""

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
        """Return the rows that a hostile message left, without those of honest messages."""
        rows = sum(count for count, _ in self.after.values()) - sum(count for count, _ in self.before.values())
        return (rows - ROWS_OF_A_REQUEST * self.honest.requests) / self.messages

    @property
    def bytes_per_byte(self) -> float:
        """Return the bytes on disk for each byte on the wire, for the messages of all senders."""
        grown = sum(size for _, size in self.after.values()) - sum(size for _, size in self.before.values())
        return grown / (self.sent_bytes + 700 * self.honest.requests)


@pytest.fixture
def fleet(new_fleet: NewFleet) -> Iterator[Fleet]:
    with served(new_fleet("siege", GORUSH_TIMEOUT_SECONDS="3")) as running:
        yield running


async def hold_out(fleet: Fleet) -> Siege:
    """Register the honest clients, start the besiegers, and measure."""
    settings = fleet.environment
    async with new_client(timeout_seconds=30, max_answer_bytes=2**30) as client:
        honest = await Honest.register(DEVICES, settings, client)
        # The honest phones are proven, as each was notified before. The besiegers have recorded those requests.
        warm_up = honest.requests(seconds=WARM_UP_SECONDS)
        await ask_honestly(honest, warm_up)
        besiegers = besieging(honest, settings["WAKU_NODES"], warm_up.messages, seconds=SECONDS)
        await asyncio.to_thread(analyze_nothing, settings["DATABASE_URL"])
        before = stored(settings["DATABASE_URL"])
        with Memory(fleet) as memory:
            result = await ask_honestly(honest, honest.requests(seconds=SECONDS), besiegers)
        hostile = report_of(besiegers)
    url = settings["DATABASE_URL"]
    return Siege(result, hostile["sent"], hostile["bytes"], memory, before, stored(url), inbox(url))


def show(siege: Siege) -> None:
    """Print the figures."""
    honest = siege.honest
    print(f"\nSiege of {SECONDS} s: {siege.messages:,} hostile messages of {KEYS} keys, {siege.sent_bytes:,} bytes")
    for kind, count in sorted(siege.sent.items(), key=lambda item: -item[1]):
        print(f"  {count:>8,}  {kind}")
    print(f"Honest requests: {honest.requests:,}, refused {honest.refused}")
    for name, arrivals in (("gorush", honest.pushes), ("replies", honest.replies)):
        print(f"  {name}: {arrivals}")
    print(f"  generator: {honest.generator}")
    for name, most in sorted(siege.memory.max_mb.items()):
        first, cores = siege.memory.first_mb.get(name, 0), siege.memory.cores.get(name, 0)
        print(f"  {name}: {first:.0f} MB, at most {most:.0f} MB; {cores:.2f} cores")
    print(f"  the machine: {siege.memory.machine_cores:.2f} cores of {os.cpu_count()}")
    for table, (count, size) in sorted(siege.after.items()):
        rows, size_before = siege.before.get(table, (0, 0))
        if count - rows > 100:
            print(f"  {count - rows:>10,} rows, {(size - size_before) / 2**20:>8.1f} MB  {table}")
    print(f"  in the inbox, of all senders: {siege.inbox}")
    print(f"  {siege.rows_each:.2f} rows per hostile message, {siege.bytes_per_byte:.2f} bytes on disk per byte sent")


def test_honest_clients_do_not_notice_a_siege(fleet: Fleet) -> None:
    siege = asyncio.run(hold_out(fleet))
    show(siege)
    pushes, replies = siege.honest.pushes, siege.honest.replies
    assert (siege.honest.refused, pushes.lost, replies.lost, pushes.doubled) == ({}, 0, 0, 0)
    assert pushes.latency_ms.p99 <= 2000
    assert replies.latency_ms.p99 <= 3000
    server = {name: most for name, most in siege.memory.max_mb.items() if name not in {"node", "gorush"}}
    assert {name: most for name, most in server.items() if most > MAX_MB} == {}
    assert siege.rows_each <= MAX_ROWS_EACH
    assert siege.bytes_per_byte <= 3


def tombstones(count: int) -> list[Envelope]:
    """Seal valid messages that cost one unit, each by a key of its own."""
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
    """Write envelopes into the inbox faster than a bridge does."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        for first in range(0, len(envelopes), PAGE):
            page = envelopes[first : first + PAGE]
            values = insert_values(page, source="siege", path=Path.LIVE, now=datetime.now(UTC))
            connection.execute(INSERT, values)


async def hold_out_behind_a_backlog(fleet: Fleet) -> Result:
    """Register phones, push to each once, and notify them behind a backlog of messages that cost one unit."""
    settings = fleet.environment
    async with new_client(timeout_seconds=30, max_answer_bytes=2**30) as client:
        honest = await Honest.register(DEVICES, settings, client)
        await ask_honestly(honest, honest.requests(seconds=WARM_UP_SECONDS))
        await asyncio.to_thread(analyze_nothing, settings["DATABASE_URL"])
        await asyncio.to_thread(put, tombstones(BACKLOG), settings["DATABASE_URL"])
        return await ask_honestly(honest, honest.requests(seconds=PROVEN_SECONDS, rate=PROVEN_RATE))


def test_a_hundred_thousand_messages_of_one_unit_keep_no_proven_phone_waiting(fleet: Fleet) -> None:
    honest = asyncio.run(hold_out_behind_a_backlog(fleet))
    url = fleet.environment["DATABASE_URL"]
    print(f"\n{BACKLOG:,} messages of one unit beside {PROVEN_RATE} proven requests/s for {PROVEN_SECONDS} s:")
    print(f"  gorush: {honest.pushes}\n  replies: {honest.replies}\n  in the inbox, of all senders: {inbox(url)}")
    assert (honest.refused, honest.pushes.lost, honest.pushes.doubled) == ({}, 0, 0)
    assert honest.pushes.latency_ms.p99 <= 3000
    assert given_up(url) == 0
