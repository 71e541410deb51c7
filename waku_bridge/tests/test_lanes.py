"""The two lanes of the inbox: a flood of strangers keeps nobody else waiting, and nobody is forgotten."""

from collections import Counter
from contextlib import suppress
from datetime import datetime, timedelta

import pytest
from coincurve import PrivateKey
from django.db import connection
from django.db.models import F
from django.utils import timezone

from kit.hands import Hands
from kit.sessions import BATCH_WORKER, set_all
from notifications.models import Notification
from registrations.models import Route
from tests import factories
from tests.conversation import CLIENT, SENDER, STRANGER, put, replies_to, say
from tests.turns import Process
from waku_bridge import front_door, inbound, lanes
from waku_bridge.codec.keys import Identity
from waku_bridge.messages import RegistrationResponse, WakuMessage
from waku_bridge.models import InboundEnvelope, OutboundReply
from waku_bridge.precedence import UNITS
from waku_bridge.tests.test_inbound import push, registration, request
from waku_bridge.tests.test_lost_batches import Killed, kill_a_process_with

pytestmark = pytest.mark.django_db
State = InboundEnvelope.State
LATER = lanes.PATIENCE + timedelta(milliseconds=1)


def states() -> Counter[str]:
    return Counter(InboundEnvelope.objects.values_list("state", flat=True))


def dear(count: int) -> list[WakuMessage]:
    """Requests about nobody, each as dear as twenty others: three of them are all that a turn has room for."""
    return [request(*[push(STRANGER)] * 95, signer=identity_of(number)) for number in range(count)]


def newcomers(count: int) -> list[WakuMessage]:
    return [registration(identity_of(number)) for number in range(count)]


def flood() -> list[WakuMessage]:
    """More than a full turn, in fewer messages than a turn takes."""
    return [*dear(4), *newcomers(190)]


def identity_of(number: int) -> Identity:
    return Identity(PrivateKey((1000 + number).to_bytes(32)))


@pytest.fixture
def now() -> datetime:
    return timezone.now()


@pytest.fixture
def known(now: datetime) -> None:
    """The client has a phone that something was delivered to."""
    say(registration(), now=now - timedelta(hours=1))
    Route.objects.update(delivered_digest=F("address_digest"))


def turns_until_nothing_is_left(process: Process, now: datetime) -> None:
    for _ in range(50):
        process.turn(now=now)
        if not states().keys() & {State.RECEIVED, State.POSTPONED}:
            return
        for stage in process.door.intake():
            stage._next_at = None  # the half of the time that is not its own is over


@pytest.mark.usefixtures("known")
def test_who_notifies_a_phone_goes_before_a_flood_that_came_first(now: datetime) -> None:
    put(*dear(30), now=now - LATER)
    honest = put(request(push(), signer=SENDER), now=now)
    process = Process()
    process.worker.turn(now=now)
    assert InboundEnvelope.objects.get(hash=honest[0]).state == State.PROCESSED
    assert process.delivery.flights.under_way == 1
    assert states() == {State.POSTPONED: 27, State.PROCESSED: 5}  # of the client's registration, too


@pytest.mark.parametrize(
    ("message", "state"),
    [
        (lambda: request(push(), signer=SENDER), State.PROCESSED),
        (lambda: registration(version=2), State.PROCESSED),
        (lambda: registration(version=2, unregister=True), State.PROCESSED),
        (lambda: request(push(), *[push(STRANGER)] * 99), State.PROCESSED),
        (lambda: request(push(access_token="guessed"), signer=SENDER), State.POSTPONED),
        (lambda: request(push(STRANGER), signer=SENDER), State.POSTPONED),
        (lambda: registration(STRANGER), State.POSTPONED),
    ],
)
@pytest.mark.usefixtures("known")
def test_only_what_concerns_a_proven_phone_goes_first(message, state, now: datetime) -> None:
    put(*flood(), now=now - LATER)
    [envelope_hash] = put(message(), now=now)
    Process().worker.turn(now=now)
    assert InboundEnvelope.objects.get(hash=envelope_hash).state == state


def test_nothing_is_postponed_while_the_inbox_keeps_up(now: datetime) -> None:
    put(*dear(30), now=now)
    Process().turn(now=now)
    assert states() == {State.PROCESSED: 30}


def test_what_fits_into_a_turn_is_decided_however_long_it_waited(now: datetime) -> None:
    put(*newcomers(200), now=now - timedelta(hours=1))
    Process().turn(now=now)
    assert states() == {State.PROCESSED: 200}


def test_a_newcomer_does_not_wait_behind_requests_for_hundreds_that_came_first(now: datetime) -> None:
    put(*dear(30), now=now - LATER)
    [newcomer] = put(registration(), now=now)
    Process().worker.turn(now=now)
    assert InboundEnvelope.objects.get(hash=newcomer).state == State.PROCESSED


def test_what_was_postponed_is_answered_truthfully_once_there_is_time(now: datetime) -> None:
    put(*flood(), now=now - LATER)
    process = Process()
    process.worker.turn(now=now)
    assert states()[State.POSTPONED] > UNITS
    turns_until_nothing_is_left(process, now)
    assert states() == {State.PROCESSED: 194}
    assert OutboundReply.objects.count() == 194
    for number in (10, 189):
        [reply] = replies_to(identity_of(number))
        assert isinstance(reply.body, RegistrationResponse)
        assert reply.body.success


def test_what_was_postponed_last_comes_first(now: datetime) -> None:
    rows = [
        factories.make_envelope(state=State.POSTPONED, at=now - timedelta(seconds=number), payload=b"x")
        for number in range(lanes.POSTPONED_LIMIT + 5)
    ]
    Process().worker.turn(now=now)
    left = InboundEnvelope.objects.filter(state=State.POSTPONED).values_list("hash", flat=True)
    assert set(map(bytes, left)) == {row.hash for row in rows[lanes.POSTPONED_LIMIT :]}


def test_what_was_postponed_takes_half_of_the_time(now: datetime) -> None:
    for _ in range(lanes.POSTPONED_LIMIT + 1):
        factories.make_envelope(state=State.POSTPONED, payload=b"x")
    process = Process()
    process.worker.turn(now=now)
    _, postponed = process.door.intake()
    assert postponed.next_at() is not None
    assert states()[State.POSTPONED] == 1
    while states()[State.POSTPONED]:
        process.turn(now=now)
    assert postponed.next_at() is None


def test_what_was_postponed_waits_while_the_inbox_does_not_keep_up(now: datetime) -> None:
    waiting = factories.make_envelope(state=State.POSTPONED, payload=b"x", at=now)
    put(*dear(30), now=now - LATER)
    process = Process()
    process.worker.turn(now=now)
    assert InboundEnvelope.objects.get(hash=waiting.hash).state == State.POSTPONED
    turns_until_nothing_is_left(process, now)
    assert InboundEnvelope.objects.get(hash=waiting.hash).state == State.DROPPED


def test_the_later_a_turn_is_the_less_strangers_get(now: datetime) -> None:
    put(*dear(30), now=now - 3 * LATER)
    Process().worker.turn(now=now)
    assert states() == {State.PROCESSED: 1, State.POSTPONED: 29}


def test_beyond_the_bound_the_oldest_are_dropped_and_counted(settings, now: datetime) -> None:
    settings.MAX_POSTPONED_ENVELOPES = 30
    rows = [factories.make_envelope(state=State.POSTPONED, at=now - timedelta(seconds=number)) for number in range(40)]
    Process().worker.turn(now=now)
    dropped = InboundEnvelope.objects.filter(reason="overload")
    assert {bytes(row.hash) for row in dropped} == {row.hash for row in rows[30:]}
    assert {(row.state, row.payload, row.processed_at) for row in dropped} == {(State.DROPPED, None, now)}


def test_who_is_waited_for_is_found_by_an_index_whatever_the_table_holds() -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {set_all(BATCH_WORKER)}")
        cursor.execute(f"EXPLAIN {lanes._TAKE_POSTPONED}", {"limit": 20})
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "Index Scan Backward using envelope_postponed" in plan


def test_an_envelope_that_kills_processes_is_found_among_the_postponed(
    tmp_path, monkeypatch: pytest.MonkeyPatch, now: datetime
) -> None:
    hands = Hands(tmp_path)
    monkeypatch.setattr(front_door, "_hands", lambda: hands)
    rows = [factories.make_envelope(state=State.POSTPONED, payload=b"x") for _ in range(5)]
    poison, sizes, original = rows[2].hash, [], inbound.process

    def process(items, **facts):
        if poison in [item.hash for item in items]:
            sizes.append(kill_a_process_with(hands))
            raise Killed
        return original(items, **facts)

    monkeypatch.setattr(inbound, "process", process)
    for _ in range(20):
        with suppress(Killed):
            Process().turn(now=now)
        if not states().keys() & {State.RECEIVED, State.POSTPONED}:
            break
    hands.close()
    assert sizes == [5, 5, 1]
    assert states() == {State.DROPPED: 4, State.FAILED: 1}
    assert InboundEnvelope.objects.get(state=State.FAILED).reason == inbound.PROCESS_DIED


def test_one_that_trips_a_turn_up_is_set_aside_among_the_postponed(
    monkeypatch: pytest.MonkeyPatch, now: datetime
) -> None:
    rows = [factories.make_envelope(state=State.POSTPONED, payload=b"x") for _ in range(5)]
    original = inbound.process

    def process(items, **facts):
        if rows[3].hash in [item.hash for item in items]:
            raise ArithmeticError
        return original(items, **facts)

    monkeypatch.setattr(inbound, "process", process)
    turns_until_nothing_is_left(Process(), now)
    assert states() == {State.DROPPED: 4, State.FAILED: 1}
    assert InboundEnvelope.objects.get(state=State.FAILED).reason == "ArithmeticError"


@pytest.mark.usefixtures("known")
def test_a_flood_at_one_victim_waits_behind_the_messages_to_others(settings, now: datetime) -> None:
    settings.ROUTE_LIMITS = (settings.ROUTE_LIMITS[0]._replace(tokens=3), *settings.ROUTE_LIMITS[1:])
    say(registration(STRANGER), now=now - timedelta(hours=1))
    Route.objects.update(delivered_digest=F("address_digest"))
    pestering = [push(), *[push(STRANGER, access_token="guessed")] * 9]
    put(*(request(*pestering, message_id=b"%d" % number) for number in range(80)), now=now - LATER)
    [other] = put(request(push(STRANGER), signer=SENDER), now=now)
    Process().worker.turn(now=now)
    assert InboundEnvelope.objects.get(hash=other).state == State.PROCESSED
    assert states()[State.POSTPONED] == 80 - 3 - UNITS // 3
    assert CLIENT.key_hash in {bytes(row.public_key_hash) for row in Notification.objects.all()}
