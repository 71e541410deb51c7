"""Partitions by day: the beginning of a day makes no envelope or reply be taken, answered or removed twice or never."""

import asyncio
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from django.db import connection, transaction

from kit.db.base import connection_parameters, fetch
from kit.db.clock import day_of, with_days
from pushserver.console.waku import operations
from tests.rig import rows
from tests.rig.conversation import EPHEMERAL, PUBSUB_TOPIC, put
from tests.rig.delivering import Process
from tests.rig.statements import at_once, beside, generic_plan
from waku_bridge import tasks
from waku_bridge.inbox import inbox
from waku_bridge.messages import Envelope, PushResponse, WakuMessage
from waku_bridge.models import EnvelopeHash, InboundEnvelope, OutboundReply
from waku_bridge.outbound import outbox
from waku_bridge.outbound.outbox import Reply, record
from waku_bridge.outbound.sending import Outgoing, Sent, Verdict
from waku_bridge.query_topics import QueryTopics
from waku_bridge.reading.intake import Session

pytestmark = pytest.mark.django_db(transaction=True)
State = InboundEnvelope.State
TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
MOMENT = timedelta(milliseconds=100)
DAY = timedelta(days=1)
BEFORE, AFTER = TODAY - MOMENT, TODAY + MOMENT
ENVELOPES, REPLIES = "waku_bridge_endedenvelope", "waku_bridge_endedreply"


def message(number: int = 1, sent_at: datetime = BEFORE) -> WakuMessage:
    return WakuMessage(b"%d" % number, "/waku/1/0x01020304/rfc26", int(sent_at.timestamp() * 1000) * 10**6)


def places(table: str) -> list[str]:
    return [place for (place,) in fetch(f"SELECT tableoid::regclass::text FROM {table} ORDER BY 1")]


@pytest.fixture(autouse=True)
def _days() -> Iterator[None]:
    """Create the partitions that a server has which has run since yesterday."""
    for table in (tasks.HASHES, tasks.ENVELOPES, tasks.REPLIES):
        table.make_ahead(now=BEFORE)
        table.make_ahead(now=TODAY)
    yield
    connection.cursor().execute("RESET TIME ZONE")
    for table in (tasks.HASHES, tasks.ENVELOPES, tasks.REPLIES):
        for day in table.days() - set(table.days_ahead(TODAY)):
            connection.cursor().execute(f"DROP TABLE {table.partition(day)}")
        table.make_ahead(now=TODAY)


# Envelopes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("later", [2 * MOMENT, -2 * MOMENT, DAY, 3 * DAY, -DAY])
def test_a_copy_is_recognised_on_any_later_day(later: timedelta) -> None:
    """A copy is recognised also when the clock of the database has jumped back."""
    [envelope_hash] = put(message(), now=BEFORE)
    Process().process_batch(now=BEFORE)
    assert places(ENVELOPES) == [tasks.ENVELOPES.partition(day_of(BEFORE))]
    assert put(message(), now=BEFORE + later) == []
    assert bytes(InboundEnvelope.objects.get().hash) == envelope_hash


def test_an_envelope_that_ends_after_midnight_ends_on_the_new_day() -> None:
    put(message(), now=BEFORE)
    assert places(ENVELOPES) == []
    Process().process_batch(now=AFTER)
    assert places(ENVELOPES) == [tasks.ENVELOPES.partition(day_of(AFTER))]


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago"])
def test_days_are_in_utc_in_every_time_zone_of_a_session(zone: str) -> None:
    put(message(1, BEFORE), message(2, AFTER), now=AFTER)
    connection.cursor().execute("SELECT set_config('TimeZone', %s, false)", [zone])
    assert put(message(1, BEFORE), message(2, AFTER), now=AFTER) == []
    assert set(EnvelopeHash.objects.values_list("sent_on", flat=True)) == {day_of(BEFORE), day_of(AFTER)}
    rows.make_envelope(state=State.POSTPONED, at=BEFORE)
    fetch(inbox.BOUND, {"now": AFTER, "limit": 0, "max_dropped": 10})
    assert InboundEnvelope.objects.get(reason="overload").ended_on == day_of(AFTER)


def test_an_envelope_from_two_bridges_at_once_is_stored_once_also_when_it_ended_meanwhile() -> None:
    """The second bridge waits for the first, and its snapshot of the table is older than the commit of the first."""
    with psycopg.connect(**connection_parameters()) as first:
        first.execute("SET plan_cache_mode = auto")
        envelopes = [Envelope(bytes([n]) * 32, PUBSUB_TOPIC, message(n)) for n in range(3)]
        values = inbox.insert_values(envelopes, source="other", path=inbox.Path.LIVE, received_at=BEFORE)
        assert len(first.execute(inbox.INSERT.encode(), values).fetchall()) == 3
        second = beside(lambda: inbox.store(envelopes, source="test", now=AFTER))
        first.execute(inbox._DROP, {"hashes": values[0], "reason": "over", "now": BEFORE})
    assert second.result() == []
    assert places(ENVELOPES) == [tasks.ENVELOPES.partition(day_of(BEFORE))] * 3


def test_on_a_day_without_a_partition_envelopes_end_and_copies_are_recognised() -> None:
    far = TODAY + 50 * DAY
    put(message(1, far), now=far)
    Process().process_batch(now=far)
    assert places(ENVELOPES) == [f"{ENVELOPES}_default"]
    assert put(message(1, far), now=far) == []
    for table in (tasks.HASHES, tasks.ENVELOPES):
        table.make_ahead(now=far)
    assert places(ENVELOPES) == [tasks.ENVELOPES.partition(far.date())]
    assert put(message(1, far), now=far) == []


def test_a_failed_envelope_that_is_processed_again_is_under_way_again() -> None:
    failed = rows.make_envelope(state=State.FAILED, at=BEFORE, processed_at=BEFORE)
    assert operations.process_again([failed.hash]) == 1
    assert places(ENVELOPES) == []
    list(tasks.remove_old(now=TODAY + 30 * DAY, keep=3 * DAY))
    Process().process_batch(now=AFTER)
    failed.refresh_from_db()
    assert (failed.state, failed.ended_on) == (State.DROPPED, day_of(AFTER))


def test_two_operators_who_process_an_envelope_again_at_once_do_so_once() -> None:
    failed = rows.make_envelope(state=State.FAILED, at=BEFORE)
    with transaction.atomic():
        operations.process_again([failed.hash])
        second = beside(lambda: operations.process_again([failed.hash]))
    assert second.result() == 0


def test_a_collision_ends_neither_the_bridges_connection_nor_its_topics() -> None:
    async def scenario() -> None:
        session = Session(QueryTopics())
        number = await session.connect()
        with suppress(psycopg.errors.SerializationFailure):
            await session.execute("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = 'serialization_failure'; END $$")
        assert await session.connect() == number
        assert await session.execute("SELECT 1", number=number) == [(1,)]
        await session.close()

    asyncio.run(scenario())


# Replies --------------------------------------------------------------------------------------------------------------


def answer(now: datetime) -> int:
    with transaction.atomic():
        recorded = record([Reply(b"e" * 32, PUBSUB_TOPIC, EPHEMERAL.pub33, PushResponse(b"m"))], now=now)
    return len(recorded.outgoing())


@pytest.mark.parametrize("later", [timedelta(), 2 * MOMENT, DAY, -DAY])
@pytest.mark.parametrize("state", OutboundReply.State)
def test_an_envelope_that_was_answered_is_not_answered_again(state: OutboundReply.State, later: timedelta) -> None:
    rows.make_reply(envelope_hash=b"e" * 32, state=state, at=BEFORE)
    assert answer(BEFORE + later) == 0
    assert OutboundReply.objects.count() == 1


def test_two_workers_that_answer_an_envelope_at_once_write_one_reply() -> None:
    with transaction.atomic():
        assert answer(BEFORE) == 1
        other = beside(lambda: answer(AFTER))
    assert other.result() == 0


@pytest.mark.parametrize("state", [state for state in OutboundReply.State if state.is_terminal])
def test_a_reply_is_moved_to_the_day_on_which_it_ends(state: OutboundReply.State) -> None:
    long_ago = BEFORE - outbox.GIVE_UP_AFTER
    published_at = None if state == "abandoned" else long_ago
    reply = rows.make_reply(at=long_ago, published_at=published_at, due_at=BEFORE)
    outgoing = Outgoing(*(getattr(reply, name) for name in Outgoing._fields))
    with transaction.atomic():
        if state == "confirmed":
            outbox.settle([Sent(outgoing, after=Verdict.CONFIRMED)], now=AFTER)
        else:
            outbox.give_up([outgoing], now=AFTER)
    reply.refresh_from_db()
    assert (reply.state, reply.ended_on) == (state, day_of(AFTER))
    assert places(REPLIES) == [tasks.REPLIES.partition(day_of(AFTER))]


# Plans ----------------------------------------------------------------------------------------------------------------


def test_a_reply_is_searched_only_in_the_days_on_which_it_may_have_ended() -> None:
    near = {tasks.REPLIES.partition(day_of(AFTER) + number * DAY) for number in (-1, 0, 1)}
    plan = generic_plan(with_days(outbox._INSERT, AFTER))
    assert set(re.findall(rf" on ({REPLIES}_d\d{{8}})\b", plan)) == near


def test_workers_that_take_and_end_envelopes_at_once_do_not_conflict() -> None:
    """A row that is moved while another worker selects rows would end that worker's batch by a conflict."""
    for number in range(800):
        put(message(number), now=BEFORE)

    def work() -> None:
        while _take_and_end(20):
            pass

    at_once(*[work] * 6)
    assert set(InboundEnvelope.objects.values_list("state", "ended_on")) == {(State.PROCESSED, TODAY.date())}


@transaction.atomic
def _take_and_end(limit: int) -> bool:
    taken = inbox.take(limit)
    time.sleep(0.005)
    for item in taken.items:
        item.state = State.PROCESSED
    inbox.end(taken.items, now=AFTER)
    return bool(taken.items)
