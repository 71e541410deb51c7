"""The steps of the inbox: a flood does not delay messages about a proven phone, and no envelope is forgotten."""

from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from coincurve import PrivateKey
from django.db import connection
from django.db.models import F
from django.utils import timezone

from kit.batches.batch import LONG_AGO
from kit.db.base import fetch
from kit.db.sessions import BATCH_WORKER, set_all
from registrations.models import Registration, Route
from tests.rig.conversation import OUTSIDER, SENDER, push, put, query, registration, replies_to, request, say
from tests.rig.delivering import Process
from tests.rig.rows import make_envelope
from tests.rig.statements import other_session
from waku_bridge.codec.keys import Identity
from waku_bridge.inbox import inbox, processing
from waku_bridge.inbox.priority import BUDGET, QUERY_UNITS, SHARE, SHARE_OF_IDLE, THRESHOLD
from waku_bridge.messages import MessageType, WakuMessage
from waku_bridge.models import InboundEnvelope, OpenEnvelope, OutboundReply
from waku_bridge.query_topics import CpuBudget, derive_newest

pytestmark = pytest.mark.django_db
State = InboundEnvelope.State
HOUR = timedelta(hours=1)
LATER = THRESHOLD + timedelta(milliseconds=1)


def states() -> Counter[str]:
    return Counter(InboundEnvelope.objects.values_list("state", flat=True))


def dear(count: int) -> list[WakuMessage]:
    """Return requests about nobody, each at the cost of twenty others: three of them fill the share."""
    return [request(*[push(OUTSIDER)] * 95, signer=identity_of(number)) for number in range(count)]


def registrations(count: int) -> list[WakuMessage]:
    return [registration(identity_of(number)) for number in range(count)]


def tombstones(count: int, *, first: int = 0) -> list[WakuMessage]:
    """Return valid messages of one unit each, by as many keys. They cost their sender next to nothing."""
    numbers = range(first, first + count)
    return [registration(identity_of(number), version=2**63, unregister=True) for number in numbers]


def flood() -> list[WakuMessage]:
    """Return messages that cost more than a full batch, and are fewer than a batch takes."""
    return [*dear(4), *registrations(190)]


def identity_of(number: int) -> Identity:
    return Identity(PrivateKey((1000 + number).to_bytes(32)))


@pytest.fixture(autouse=True)
def _keep_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the rows of requests that notify nobody, which these tests count."""
    monkeypatch.setattr(processing, "ROWS_PER_MINUTE", 10_000)


@pytest.fixture
def now() -> datetime:
    return timezone.now()


@pytest.fixture
def proven(now: datetime) -> None:
    """Make a client whose phone has received a push."""
    say(registration(), now=now - HOUR)
    Route.objects.update(delivered_digest=F("address_digest"))


def work_until_nothing_is_left(process: Process, now: datetime) -> None:
    for _ in range(50):
        process.process_batch(now=now)
        if not states().keys() & {State.RECEIVED, State.POSTPONED}:
            return


@pytest.mark.usefixtures("proven")
def test_thousands_of_cheap_messages_do_not_delay_those_about_a_proven_phone(now: datetime) -> None:
    """There is a backlog of an hour, and as many new messages come with each batch as it opens."""
    sealed = tombstones(BUDGET)
    put(*(replace(each, timestamp_ns=each.timestamp_ns + n) for each in sealed for n in range(20)), now=now - HOUR)
    process = Process()
    process.process_batch(now=now)
    for number in range(3):
        moment = now + timedelta(milliseconds=number)
        newer = tombstones(BUDGET - 1, first=(1 + number) * BUDGET)
        put(request(push(), message_id=b"%d" % number), *newer, now=moment)
        process.process_batch(now=moment)
        assert process.delivery.under_way == 1 + number
    assert states() == {
        State.RECEIVED: 19 * BUDGET,
        State.POSTPONED: 4 * (BUDGET - SHARE) - 3,
        State.PROCESSED: 1 + 4 * SHARE + 3,
    }


@pytest.mark.parametrize(
    ("message", "state"),
    [
        (lambda: request(push(), signer=SENDER), State.PROCESSED),
        (lambda: registration(version=2), State.PROCESSED),
        (lambda: registration(version=2, unregister=True), State.PROCESSED),
        (lambda: request(push(), *[push(OUTSIDER)] * 99), State.PROCESSED),
        (lambda: request(push(access_token="guessed"), signer=SENDER), State.POSTPONED),
        (lambda: request(push(OUTSIDER), signer=SENDER), State.POSTPONED),
        (lambda: registration(OUTSIDER), State.POSTPONED),
    ],
)
@pytest.mark.usefixtures("proven")
def test_only_messages_about_a_proven_phone_go_first(message, state, now: datetime) -> None:
    put(*flood(), now=now - LATER)
    [envelope_hash] = put(message(), now=now)
    Process().worker.process_batch(now=now)
    assert InboundEnvelope.objects.get(hash=envelope_hash).state == state


def redated(message: WakuMessage, count: int = 1) -> list[WakuMessage]:
    """Return envelopes with the same bytes and another time, as anybody who recorded them can send them."""
    return [replace(message, timestamp_ns=message.timestamp_ns + 1 + number) for number in range(count)]


@pytest.mark.parametrize("message", [lambda: request(push(), signer=SENDER), lambda: registration(version=2)])
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.usefixtures("proven")
def test_of_copies_of_a_message_only_the_first_goes_first(message, is_known, now: datetime) -> None:
    shown = message()
    if is_known:
        say(shown, now=now - HOUR)
    put(*flood(), now=now - LATER)
    hashes = put(shown, *redated(shown, 3), now=now)
    Process().worker.process_batch(now=now)
    states = Counter(each.state for each in InboundEnvelope.objects.filter(hash__in=hashes))
    assert states == ({} if is_known else {State.PROCESSED: 1}) | {State.POSTPONED: 3}


def test_messages_within_the_budget_are_decided_and_the_rest_by_the_next_batches(now: datetime) -> None:
    put(*dear(9), now=now)
    process = Process()
    process.process_batch(now=now)
    assert states() == {State.PROCESSED: 9}
    put(*dear(34)[9:], now=now)
    process.process_batch(now=now)
    assert states() == {State.PROCESSED: 9 + 10, State.POSTPONED: 15}
    work_until_nothing_is_left(process, now)
    assert states() == {State.PROCESSED: 34}


def test_a_postponed_message_is_answered_once_the_inbox_keeps_up(now: datetime) -> None:
    put(*flood(), now=now - LATER)
    process = Process()
    process.worker.process_batch(now=now)
    assert states()[State.POSTPONED] > SHARE
    work_until_nothing_is_left(process, now)
    assert states() == {State.PROCESSED: 194}
    assert OutboundReply.objects.count() == 194
    assert [[reply.body.success for reply in replies_to(identity_of(number))] for number in (10, 189)] == [[True]] * 2


def test_the_last_postponed_message_comes_first_and_leaves_a_budget_for_others(now: datetime) -> None:
    rows = [
        make_envelope(state=State.POSTPONED, at=now - timedelta(seconds=number), payload=b"x")
        for number in range(SHARE_OF_IDLE + 5)
    ]
    process = Process()
    process.worker.process_batch(now=now)
    left = InboundEnvelope.objects.filter(state=State.POSTPONED).values_list("hash", flat=True)
    assert set(map(bytes, left)) == {row.hash for row in rows[SHARE_OF_IDLE:]}
    process.worker.process_batch(now=now)
    assert states() == {State.DROPPED: SHARE_OF_IDLE + 5}


def test_fewer_postponed_messages_are_decided_beside_new_ones(now: datetime) -> None:
    for number in range(2 * SHARE_OF_IDLE):
        make_envelope(state=State.POSTPONED, at=now - timedelta(seconds=number), payload=b"x")
    put(registration(), now=now)
    process = Process()
    process.worker.process_batch(now=now)
    assert states() == {State.PROCESSED: 1, State.DROPPED: SHARE, State.POSTPONED: 2 * SHARE_OF_IDLE - SHARE}
    process.worker.process_batch(now=now)
    assert states()[State.DROPPED] == SHARE + SHARE_OF_IDLE


def test_postponed_messages_wait_while_the_inbox_is_behind(now: datetime) -> None:
    waiting = make_envelope(state=State.POSTPONED, payload=b"x", at=now)
    put(*dear(30), now=now - LATER)
    process = Process()
    process.worker.process_batch(now=now)
    assert InboundEnvelope.objects.get(hash=waiting.hash).state == State.POSTPONED
    work_until_nothing_is_left(process, now)
    assert InboundEnvelope.objects.get(hash=waiting.hash).state == State.DROPPED


def queries(count: int) -> list[WakuMessage]:
    """Return queries about the client, each of another sender."""
    return [query(signer=identity_of(number)) for number in range(count)]


def answered() -> int:
    return OutboundReply.objects.filter(message_type=MessageType.QUERY_RESPONSE).count()


@pytest.mark.usefixtures("proven")
def test_postponed_queries_get_what_new_ones_leave_of_the_quarter(now: datetime) -> None:
    derive_newest(budget=CpuBudget(0, 60))
    put(*queries(30), now=now)
    OpenEnvelope.objects.filter(state=State.RECEIVED).update(state=State.POSTPONED)
    [older] = put(registration(OUTSIDER), now=now - HOUR)
    OpenEnvelope.objects.filter(hash=older).update(state=State.POSTPONED)
    put(*(query(signer=identity_of(number)) for number in range(100, 111)), now=now)
    process = Process()
    process.process_batch(now=now)
    assert answered() == BUDGET // 4 // QUERY_UNITS == 12
    for _ in range(2):
        process.process_batch(now=now)
    assert answered() == 36
    work_until_nothing_is_left(process, now)
    assert (answered(), states()) == (41, {State.PROCESSED: 1 + 41 + 1})


@pytest.mark.usefixtures("proven")
def test_requests_about_proven_phones_beyond_the_budget_stay_in_the_inbox(now: datetime) -> None:
    pushes = [push(), *[push(OUTSIDER)] * 99]
    put(*(request(*pushes, message_id=b"%d" % number) for number in range(12)), now=now - LATER)
    process = Process()
    assert process.process_batch(now=now)
    assert states() == {State.PROCESSED: 1 + 10, State.RECEIVED: 2}
    process.process_batch(now=now)
    assert states() == {State.PROCESSED: 1 + 12}


@pytest.mark.parametrize(("processed", "waiting"), [(0, 0), (20, 1), (300, 3)])
@pytest.mark.parametrize(
    ("sql", "scan"),
    [
        (inbox._OLDEST, "Index Scan"),
        (inbox._NEWEST, "Index Scan Backward"),
        (inbox._POSTPONED, "Index Scan Backward"),
    ],
)
def test_waiting_envelopes_are_found_by_an_index_without_a_sort_for_all_statistics(
    sql: str, scan: str, processed: int, waiting: int
) -> None:
    """The parameter is the number of rows at the time of PostgreSQL's statistics."""
    for number, state in enumerate([State.PROCESSED] * processed + [State.RECEIVED, State.POSTPONED] * waiting):
        make_envelope(state=state, at=timezone.now() - timedelta(seconds=number * 7 % 10))
    with connection.cursor() as cursor:
        # Rows of other tests have left pages in the indexes, so that a small index looks expensive to the planner.
        cursor.execute("REINDEX TABLE waku_bridge_openenvelope; ANALYZE waku_bridge_openenvelope")
        cursor.execute(f"SELECT {set_all(BATCH_WORKER)}")
        cursor.execute(
            f"EXPLAIN {sql.replace('b::', 's::')}", {"limit": 20, "max_bytes": 1, "but": [], "nothing_before": LONG_AGO}
        )
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert f"{scan} using envelope_due on" in plan
    assert "waku_bridge_endedenvelope" not in plan
    assert "Sort" not in "".join(plan.split("Limit")[1:])  # only the rows that were taken are sorted


def test_a_poisoned_envelope_is_quarantined_among_the_postponed(monkeypatch: pytest.MonkeyPatch, now: datetime) -> None:
    rows = [make_envelope(state=State.POSTPONED, payload=b"x") for _ in range(5)]
    original = processing.process

    def process(items, **facts):
        if rows[3].hash in [item.hash for item in items]:
            raise ArithmeticError
        return original(items, **facts)

    monkeypatch.setattr(processing, "process", process)
    work_until_nothing_is_left(Process(), now)
    assert states() == {State.DROPPED: 4, State.FAILED: 1}
    assert InboundEnvelope.objects.get(state=State.FAILED).reason == "ArithmeticError"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("state", [State.RECEIVED, State.POSTPONED])
def test_an_envelope_that_needs_a_locked_row_is_processed_later_and_stops_no_others(
    state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock may be of an operator with an open transaction, or of a command that changes many rows."""
    monkeypatch.setattr("waku_bridge.inbox.inbox.MAX_AGAIN_SECONDS", 2)
    say(*registrations(8), now=timezone.now() - HOUR)
    renewals = [registration(identity_of(number), version=2) for number in range(8)]
    put(*renewals[:4], *(registration(identity_of(100 + number)) for number in range(20)), *renewals[4:])
    OpenEnvelope.objects.update(state=state)
    process = Process()
    with other_session() as session:
        session.execute("SELECT FROM registrations_registration FOR UPDATE")
        monkeypatch.setattr("kit.batches.worker.LOCK_TIMEOUT", "20ms")
        process.process_until(lambda: states() == {State.PROCESSED: 8 + 20, state: 8})
    process.process_until(lambda: states() == {State.PROCESSED: 8 + 20 + 8})
    assert set(Registration.objects.values_list("version", "public_key_hash").filter(version=2)) == {
        (2, identity_of(number).key_hash) for number in range(8)
    }


def test_an_envelope_that_comes_again_waits_twice_as_long_each_time_and_no_longer_than_the_limit() -> None:
    """The times are in the row, so that all processes keep them."""
    make_envelope(state=State.RECEIVED)
    [item] = inbox.take(1).items
    delays = []
    for _ in range(11):
        inbox.again([item])
        [(delay,)] = fetch("SELECT extract(epoch FROM due_at - now())::integer FROM waku_bridge_openenvelope")
        delays.append(delay)
    assert delays == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert inbox.take(1).items == []


def test_an_envelope_of_a_process_whose_clock_is_behind_is_found_by_the_next_look() -> None:
    """Processes that started before a leap of the database's clock do not follow it, and those that start later do."""
    process = say(registration(SENDER))
    put(registration(identity_of(1)), now=timezone.now() - 2 * HOUR)
    process.worker._rows.look_at = 0.0
    process.worker.process_batch(now=timezone.now())
    assert states() == {State.PROCESSED: 2}
