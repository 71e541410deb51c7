"""The bound of the inbox, which the bridge keeps also without a worker."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from kit.db.base import fetch
from kit.db.clock import clock
from kit.processes.leader import Term
from tests.rig import rows
from tests.rig.conversation import PUBSUB_TOPIC
from tests.rig.statements import read_only
from waku_bridge.inbox import inbox
from waku_bridge.inbox.inbox import Envelope
from waku_bridge.metrics import ENVELOPES_PROCESSED
from waku_bridge.models import InboundEnvelope, OpenEnvelope
from waku_bridge.reading.intake import Bound, in_thread
from waku_bridge.reading.tests.conftest import message, messages, until
from waku_bridge.reading.tests.test_bridge import MAX_WAITING, bridge

State = InboundEnvelope.State
DROPPED = ENVELOPES_PROCESSED.labels("unknown", inbox.OVERLOAD)


class Given:
    """A node that sets an event when it has returned a page."""

    skew_seconds = None

    def __init__(self, node):
        self._node = node
        self.url = node.url
        self.given = asyncio.Event()

    async def read(self, pubsub_topic):
        page = await self._node.read(pubsub_topic)
        self.given.set()
        return page


async def test_above_the_limit_of_unopened_envelopes_no_page_is_taken_in_and_none_is_lost(world):
    bound = Bound(world.intake, limit=3)
    first = world.publish(*messages(4))
    await world.read()
    await bound._enforce()
    second = world.publish(*messages(5))
    node = Given(world.node)
    reading = asyncio.create_task(world.read(world.live(node)))
    await node.given.wait()
    await asyncio.wait([reading], timeout=0.3)
    assert not reading.done()
    assert set(await world.paths()) == set(first)
    await in_thread(lambda: inbox.drop(first, "over", now=timezone.now()))
    await bound._enforce()
    await reading
    assert set(await world.paths()) == {*first, *second}


def test_the_connection_is_not_opened_each_second_while_the_database_cannot_be_written(world, runner):
    """All topics are loaded over each new connection."""

    async def scenario():
        bound = Bound(world.intake, limit=3)
        return [await bound._enforce() for _ in range(8)]

    with read_only():
        pauses = runner.run(scenario())
    assert pauses[0] == 1.0
    assert all(2.5 <= pause <= 5 for pause in pauses[5:])


async def test_envelopes_count_also_after_the_clock_of_the_database_leapt_ahead(world, monkeypatch):
    clock.set(timezone.now())
    bound, execute = Bound(world.intake, limit=3), world.intake.session.execute

    async def execute_a_day_ahead(*statement):
        [(*found, now)] = await execute(*statement)
        return [(*found, now + timedelta(days=1))]

    with monkeypatch.context() as leap:
        leap.setattr(world.intake.session, "execute", execute_a_day_ahead)
        await bound._enforce()
    world.publish(*messages(4))
    await world.read()
    await bound._enforce()
    assert not world.intake.has_capacity.is_set()


async def test_a_bridge_that_loses_its_lock_does_not_wait_for_capacity(world):
    world.publish(*messages(2))
    await world.read()
    term = Term(asyncio.Event())
    keeping = asyncio.create_task(Bound(world.intake, limit=1).run(term))
    await until(lambda: asyncio.sleep(0, not world.intake.has_capacity.is_set()), "the inbox is full")
    term.ended.set()
    await keeping
    assert world.intake.has_capacity.is_set()


@pytest.mark.parametrize("state", [State.POSTPONED, State.PENDING_KEY])
async def test_the_oldest_envelopes_beyond_the_bound_are_dropped_and_counted(world, state):
    """Keys are derived far more slowly than anybody can fill new topics."""

    def wait(count):
        hashes = [bytes([n % 7, *n.to_bytes(31)]) for n in range(count)]
        page = [Envelope(each, PUBSUB_TOPIC, replace(message(), timestamp_ns=n)) for n, each in enumerate(hashes)]
        inbox.store(page, source="http://one", now=timezone.now())
        OpenEnvelope.objects.update(state=state)
        if state == State.PENDING_KEY:  # of a page each
            fetch("UPDATE waku_bridge_openenvelope SET due_at = due_at + timestamp_ns * interval '1 ms'")
        return hashes

    async def are_dropped():
        return await in_thread(lambda: InboundEnvelope.objects.filter(state=State.DROPPED).count() == 5)

    hashes = await in_thread(wait, MAX_WAITING + 5)
    before = DROPPED._value.get()
    async with bridge(world):
        await until(are_dropped, "five are dropped")
    rows = await in_thread(lambda: list(InboundEnvelope.objects.filter(state=State.DROPPED)))
    assert {bytes(row.hash) for row in rows} == set(hashes[:5])
    assert {(row.reason, row.payload, row.processed_at is None) for row in rows} == {("overload", None, False)}
    assert DROPPED._value.get() - before == 5


@pytest.mark.parametrize(("processed", "waiting"), [(200, 1), (200, 20)])
def test_the_bound_reads_indexes_alone_and_locks_no_envelope_that_stays(db, processed, waiting):
    """The parameter is the number of rows at the time of PostgreSQL's statistics."""
    for state in [State.PROCESSED] * processed + [State.RECEIVED, State.POSTPONED] * waiting:
        rows.make_envelope(state=state)
    with connection.cursor() as cursor:
        # Rows of other tests have left pages in the indexes, so that a small index looks expensive to the planner.
        cursor.execute("REINDEX TABLE waku_bridge_openenvelope; ANALYZE waku_bridge_openenvelope")
        cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
        cursor.execute(
            f"EXPLAIN {inbox.BOUND}",
            {"now": timezone.now(), "limit": 1000, "max_dropped": 10},
        )
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert plan.count("Index Only Scan using envelope_due") == 1, plan
    assert plan.count("Index Only Scan Backward using envelope_due") == 2, plan  # the limits of the two other states
