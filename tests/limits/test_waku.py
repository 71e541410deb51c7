"""The limits of Waku and of pushes in docs/limits.md, met by envelopes and what is answered to them."""

import itertools
from asyncio import Runner
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from fractions import Fraction
from functools import partial
from uuid import UUID

import pytest
from django.conf import LazySettings
from django.core.management import call_command
from django.db import connection
from django.db.models import F

from kit.batches.batch import Wakeup
from kit.batches.worker import Worker
from kit.buckets.bucket import Limit
from kit.buckets.shared import Share, SharedBuckets, own_buckets
from kit.expiry.models import MassExpiry
from notifications import tasks
from notifications.messages import NotificationType, Outcome, ReportError, Result
from notifications.models import Notification
from notifications.queues.capacity import Admission, own_admission
from pushserver.console.health.snapshot import take_snapshot
from pushserver.console.health.verdicts import State
from registrations import quotas
from registrations.messages import TokenType
from registrations.models import Registration, Route
from tests.limits.conftest import Instead, Time
from tests.limits.page import limit
from tests.rig.conversation import (
    CLIENT,
    EPHEMERAL,
    OUTSIDER,
    TOKEN,
    anybody,
    push,
    put,
    query,
    registration,
    replies_to,
    request,
)
from tests.rig.delivering import Process, RecordingGateway, SilentGateway
from tests.rig.rows import apn_token, delete_all, make_envelope, make_registration
from waku_bridge import tasks as waku_tasks
from waku_bridge.codec.keys import Identity
from waku_bridge.inbox import inbox, processing, queries
from waku_bridge.inbox.journal import InFlightJournal
from waku_bridge.inbox.priority import BUDGET, QUERY_UNITS
from waku_bridge.management.commands import run_waku_bridge
from waku_bridge.messages import MessageType, RegistrationError, WakuMessage
from waku_bridge.models import InboundEnvelope, OutboundReply
from waku_bridge.query_topics import CpuBudget
from waku_bridge.reading.intake import Bound, in_thread
from waku_bridge.reading.tests import conftest as reading
from waku_bridge.reading.tests.conftest import World
from waku_bridge.reading.tests.test_pages import NOW_NS, raw, selected
from waku_bridge.tests import test_lost_batches

pytestmark = pytest.mark.django_db
journal, runner, world = test_lost_batches.journal, reading.runner, reading.world
OK, MALFORMED, BUSY = RegistrationError.NONE, RegistrationError.MALFORMED_MESSAGE, RegistrationError.INTERNAL_ERROR
NUMBERS = itertools.count(1)


class Server:
    """A worker process as the network knows it: envelopes go in, and replies come out."""

    def __init__(self, time: Time, process: Process) -> None:
        self.time = time
        self.process = process

    def receive(self, *messages: WakuMessage) -> None:
        """Process these messages in as many batches as they need."""
        put(*messages, now=self.time.now)
        for _ in range(10 + len(messages) // 10):
            if not self.process.process_batch(now=self.time.now) and not self._has_new_keys():
                return
        raise AssertionError

    def _has_new_keys(self) -> bool:
        return bool(inbox.derive_needed_keys(budget=CpuBudget(0, 60), limit=1000))

    def deliver(self) -> None:
        """Carry out the pushes that are due, and answer the requests."""
        self.process.process_backlog(now=self.time.now)

    def answers(self, *messages: WakuMessage, to: Identity = CLIENT) -> list[RegistrationError]:
        """Return the errors in the answers to these registrations."""
        delete_all(OutboundReply)  # old ones have no payload any more
        self.receive(*messages)
        return [reply.body.error for reply in replies_to(to)]


@pytest.fixture
def gateway() -> RecordingGateway:
    return RecordingGateway()


@pytest.fixture
def server(time: Time, gateway: RecordingGateway, instead: Instead, monkeypatch: pytest.MonkeyPatch) -> Server:
    share = Share()  # of one worker, whatever sessions of earlier tests have not ended yet
    buckets, admission = SharedBuckets(share), Admission()
    instead(own_buckets, lambda: buckets)
    instead(own_admission, lambda: admission)
    limits = queries.Limits(processing.QUERIES_PER_KEY_PER_MINUTE, clock=time.seconds, share=share)
    monkeypatch.setattr(processing, "query_limits", lambda: limits)
    return Server(time, Process(gateway))


@pytest.fixture
def phone(server: Server) -> Registration:
    return make_registration(public_key_hash=CLIENT.key_hash, installation_id=numbered(0), access_token=TOKEN)


def numbered(number: int) -> str:
    return str(UUID(int=number, version=4))


def pushes(number: int, *, signer: Identity = EPHEMERAL, **fields: object) -> list[WakuMessage]:
    """Return requests that notify the phone about different messages."""
    wanted = push(installation_id=numbered(0), message=b"sealed", **fields)
    return [request(wanted, message_id=next(NUMBERS).to_bytes(32), signer=signer) for _ in range(number)]


def waiting(**which: object) -> int:
    return Notification.objects.filter(**which).count()


@limit("never less, and at most {part} and a batch of each process more.")
def test_workers_together_exceed_a_limit_by_a_part_and_a_batch_of_each(
    part: Fraction, time: Time, instead: Instead
) -> None:
    """Each of them takes as many changes of one installation as it can."""
    share = Share()
    share.part = 1 / 8
    workers, versions = [SharedBuckets(share) for _ in range(8)], itertools.count(1)
    instead(own_buckets, lambda: workers[0])
    server, taken = Server(time, Process()), 0
    for _ in range(3 * len(workers)):
        taken += len(server.answers(*[registration(version=next(versions)) for _ in range(5)]))
        workers.append(workers.pop(0))
    assert 30 <= taken <= 30 * (1 + part) + 5 * len(workers)


# Registrations --------------------------------------------------------------------------------------------------------


@limit("device token: {least} to {most} hexadecimal digits (Apple)")
def test_a_token_of_apple_has_that_many_digits(least: int, most: int, server: Server) -> None:
    apple = {"token_type": TokenType.APN, "app_topic": "im.status"}
    sizes = (least - 1, least, most, most + 1)
    sent = [registration(version=n, device_token="a" * size, **apple) for n, size in enumerate(sizes, start=1)]
    assert server.answers(*sent) == [MALFORMED, OK, OK, MALFORMED]


@limit("(Apple), {least} to {most} letters, digits")
def test_a_token_of_firebase_has_that_many_characters(least: int, most: int, server: Server) -> None:
    sizes = (least - 1, least, most, most + 1)
    sent = [registration(version=n, device_token="a_:-Z9".ljust(size, "x")) for n, size in enumerate(sizes, start=1)]
    assert server.answers(*sent) == [MALFORMED, OK, OK, MALFORMED]


@limit("not with {setting}")
def test_an_operator_may_have_any_token_taken(setting: str, settings: LazySettings, server: Server) -> None:
    assert server.answers(registration(device_token="e")) == [MALFORMED]
    setattr(settings, setting, False)
    assert server.answers(registration(device_token="e")) == [OK]


@limit("app topic: {most} letters, digits")
def test_an_app_topic_has_that_many_characters(most: int, server: Server) -> None:
    apple = {"token_type": TokenType.APN, "device_token": apn_token()}
    sent = [registration(version=n, app_topic="x" * (most - 1 + n), **apple) for n in (1, 2)]
    assert server.answers(*sent) == [OK, MALFORMED]


@limit("installations of one key: {most}; a new one replaces the longest dead one, else `INTERNAL_ERROR`")
def test_a_key_has_that_many_installations(most: int, server: Server) -> None:
    sent = [registration(installation_id=numbered(n)) for n in range(most + 3)]
    assert server.answers(*sent[: most + 1]) == [OK] * most + [BUSY]
    Route.objects.filter(registration__installation_id=numbered(2)).update(
        state="disabled", disabled_at=server.time.now
    )
    assert server.answers(*sent[most + 1 :]) == [OK, BUSY]
    assert not Registration.objects.filter(installation_id=numbered(2), state="active").exists()


@limit("changes of an installation: {at_once} at once, {a_minute} a minute")
def test_an_installation_changes_that_often(at_once: int, a_minute: int, server: Server) -> None:
    versions = itertools.count(1)
    assert len(server.answers(*[registration(version=next(versions)) for _ in range(at_once + 1)])) == at_once
    server.time.passes(minutes=1)
    assert len(server.answers(*[registration(version=next(versions)) for _ in range(a_minute + 1)])) == a_minute


@limit("new installations: {setting}, else `INTERNAL_ERROR`")
def test_new_installations_are_taken_as_often_as_an_operator_sets(
    setting: str, settings: LazySettings, server: Server
) -> None:
    setattr(settings, setting, 6)
    users = [anybody() for _ in range(7)]
    server.receive(*map(registration, users))
    assert Registration.objects.count() == 6
    server.time.passes(minutes=1)
    assert server.answers(registration(users[6]), to=users[6]) == [OK]


STORE_TOMBSTONES = """
    INSERT INTO registrations_registration (
        public_key_hash, installation_id, version, state, is_forgettable, enabled, allow_from_contacts_only,
        block_mentions, allowed_key_list, blocked_chat_list, muted_chat_list, allowed_mentions_chat_list,
        content_digest, created_at, updated_at
    ) SELECT sha512(number::text::bytea), number, 1, 'unregistered', true, false, false, false,
        '{}', '{}', '{}', '{}', '', %(at)s, %(at)s FROM generate_series(1, %(number)s) AS number
"""


def store_registrations(number: int, **fields: object) -> None:
    """Store registrations of as many keys, as they are after a long time."""
    for _ in range(number):
        make_registration(**fields)


@limit(
    "registrations: {setting}, alert from {percent} %; a new one replaces one never reached, older than an hour, else"
)
def test_registrations_are_taken_up_to_the_limit_of_an_operator(
    setting: str, percent: int, settings: LazySettings, server: Server
) -> None:
    def light() -> State:
        [shown] = [each for each in take_snapshot(now=server.time.now).indicators if each.id == "registrations"]
        return shown.state

    setattr(settings, setting, 100)
    store_registrations(percent - 1)
    lights = [light()]
    store_registrations(1)
    assert [*lights, light()] == [State.GREEN, State.YELLOW]
    store_registrations(99 - percent)
    assert server.answers(registration(CLIENT)) == [OK]
    assert server.answers(registration(OUTSIDER), to=OUTSIDER) == [BUSY]
    assert server.answers(registration(CLIENT, version=2)) == [OK]
    for seconds, answer in ((3599, BUSY), (1, OK)):
        server.time.passes(seconds=seconds)
        assert server.answers(registration(OUTSIDER), to=OUTSIDER) == [answer]
    assert Registration.objects.count() == 100


@limit("installations that one address proves: {most}")
def test_one_address_proves_that_many_installations(most: int, server: Server, gateway: RecordingGateway) -> None:
    users = [anybody() for _ in range(most + 1)]
    server.receive(*map(registration, users))  # all with the same token
    server.receive(*(request(push(user), message_id=user.key_hash) for user in users))
    server.deliver()
    assert (len(gateway.pushes), Route.objects.filter(is_proven=True).count()) == (most + 1, most)


@limit("unregistered ones never reached: {most}; the oldest are forgotten")
def test_unknown_installations_that_unregister_are_remembered_up_to_a_number(most: int, server: Server) -> None:
    """Only some of them cause a count."""
    kept, gap = Registration.objects.filter(state="unregistered"), most // quotas.COUNTS
    first = server.time.now - timedelta(days=1)
    with connection.cursor() as cursor:
        cursor.execute(STORE_TOMBSTONES, {"number": most - gap, "at": first})
    users = [anybody() for _ in range(2 * gap)]
    server.receive(*(registration(user, version=1, unregister=True) for user in users))
    assert most - gap < kept.count() <= most + gap
    assert kept.filter(public_key_hash__in=[user.key_hash for user in users]).count() == 2 * gap
    assert kept.filter(updated_at=first).count() == kept.count() - 2 * gap


@pytest.fixture
def upkeep(server: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return the task that ends what nobody uses, by the clock of the test."""
    monkeypatch.setattr("waku_bridge.tasks.database_now", lambda: server.time.now)
    return waku_tasks.expire_registrations


@limit("a registration neither repeated nor reached: ends after {setting};")
def test_a_registration_ends_after_the_days_that_an_operator_sets(
    setting: str, settings: LazySettings, server: Server, upkeep: Callable[[], None]
) -> None:
    server.receive(registration())
    for wait, active in ((getattr(settings, setting), 1), (1, 0)):
        server.time.passes(days=wait)
        upkeep()
        assert Registration.objects.filter(state="active").count() == active


@limit("over {part} at once needs `manage.py allow_expiry`")
def test_registrations_that_end_at_once_need_an_operator_beyond_a_part(
    part: Fraction, settings: LazySettings, server: Server, upkeep: Callable[[], None]
) -> None:
    old = server.time.now - timedelta(days=settings.REGISTRATION_EXPIRY_DAYS + 1)
    unused = int(200 * part)
    store_registrations(200 - unused, at=server.time.now)
    store_registrations(unused, at=old)
    upkeep()
    assert Registration.objects.filter(state="active").count() == 200 - unused
    store_registrations(unused + 1, at=old)
    upkeep()
    assert Registration.objects.filter(state="active").count() == 200 + 1
    call_command("allow_expiry", "registrations")
    MassExpiry.objects.update(allowed_at=server.time.now)  # by the clock of this test
    upkeep()
    assert Registration.objects.filter(state="active").count() == 200 - unused
    upkeep()
    assert not MassExpiry.objects.exists()  # the permission was for once


@limit("memory of an unregistered installation: {days} days; then a recording can register again")
def test_a_recording_can_register_again_only_after_that_time(
    days: int, server: Server, upkeep: Callable[[], None]
) -> None:
    def play() -> list[RegistrationError]:
        return server.answers(registration(version=1))

    server.receive(registration(version=1), registration(version=2, unregister=True))
    for wait, answer in ((days, RegistrationError.VERSION_MISMATCH), (1, OK)):
        server.time.passes(days=wait)
        upkeep()
        assert play() == [answer]


@limit("largest message: {kib} KiB (`wrong_size`)")
def test_a_message_of_that_size_is_taken_in(kib: int) -> None:
    sizes = (kib * 1024, kib * 1024 + 1)
    page = [raw(timestamp_ns=NOW_NS - n, payload=bytes(size)) for n, size in enumerate(sizes)]
    found = selected(*page)
    assert [len(each.message.payload) for each in found.envelopes] == [kib * 1024]
    assert [reason for _, reason in found.rejected] == ["wrong_size"]


# Reading --------------------------------------------------------------------------------------------------------------


@limit("one request, one query: {notifications} notifications, {keys} keys")
def test_a_request_and_a_query_name_that_many(notifications: int, keys: int, server: Server) -> None:
    server.receive(registration())
    sent = [request(*[push()] * size, message_id=bytes([size])) for size in (notifications, notifications + 1)]
    sent += [query(CLIENT.key_hash, *map(bytes64, range(size - 1))) for size in (keys, keys + 1)]
    server.receive(*sent)
    ended = Counter(InboundEnvelope.objects.values_list("state", "reason"))
    assert ended == {("processed", ""): 3, ("dropped", "too_large"): 2}


def bytes64(number: int) -> bytes:
    return number.to_bytes(64)


@limit("answers to a repeated request: {a_minute} a minute")
def test_a_repeated_request_is_answered_again(a_minute: int, server: Server, phone: Registration) -> None:
    def repeat(number: int, message_id: bytes = b"m") -> int:
        """Return how many of these repetitions of one request are answered."""
        known = len(replies_to(EPHEMERAL))
        wanted = push(installation_id=numbered(0))
        server.receive(*[request(wanted, message_id=message_id, timestamp_ns=n) for n in range(number)])
        server.deliver()
        return len(replies_to(EPHEMERAL)) - known

    assert repeat(1) == 1
    assert repeat(a_minute + 1) == a_minute
    assert [repeat(1, b"another"), repeat(1, b"another")] == [1, 1]
    server.time.passes(seconds=60 / a_minute)
    assert repeat(2) == 1


@limit("memory of a request: {days} days; then a recording is pushed once more")
def test_a_recording_is_pushed_again_only_after_that_time(
    days: int, server: Server, phone: Registration, gateway: RecordingGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play() -> int:
        server.receive(request(wanted, message_id=b"m", timestamp_ns=1))
        server.deliver()
        return len(gateway.pushes)

    wanted = push(installation_id=numbered(0))
    monkeypatch.setattr(tasks, "database_now", lambda: server.time.now)
    assert play() == 1
    for wait, pushed in ((days, 1), (1, 2)):
        server.time.passes(days=wait)
        tasks.purge()
        assert play() == pushed
    assert InboundEnvelope.objects.filter(state="dropped", reason="replayed").count() == 1


@limit("same query of the same key: once in {seconds} s")
@pytest.mark.django_db(transaction=True)
def test_a_query_is_answered_again_after_that_time(seconds: int, server: Server) -> None:
    server.receive(registration())
    for wait, answered in ((0, 1), (seconds - 0.1, 1), (0.2, 2)):
        server.time.passes(seconds=wait)
        server.receive(query())
        assert len(replies_to(EPHEMERAL)) == answered
    assert InboundEnvelope.objects.filter(reason="repeated_query").count() == 1


def queries_of(number: int) -> list[WakuMessage]:
    """Return queries of different people about the same user."""
    return [query(signer=anybody()) for _ in range(number)]


def unanswered(server: Server, messages: list[WakuMessage]) -> int:
    """Return how many of these queries are beyond a limit."""
    known = InboundEnvelope.objects.filter(reason="too_many_queries").count()
    server.receive(*messages)
    return InboundEnvelope.objects.filter(reason="too_many_queries").count() - known


@limit("queries about a key: {a_minute} a minute;")
def test_queries_about_a_key_are_answered_this_often_a_minute(a_minute: int, server: Server) -> None:
    server.receive(registration())
    assert unanswered(server, queries_of(a_minute + 1)) == 1
    server.time.passes(seconds=60 / a_minute)
    assert unanswered(server, queries_of(2)) == 1


@limit("queries about a key: … a minute; all together {part} of a batch, more later")
def test_all_queries_together_get_a_part_of_a_batch(part: Fraction, server: Server) -> None:
    fit = int(part * BUDGET) // QUERY_UNITS
    server.receive(registration())
    server.receive(query())
    put(*queries_of(fit + 1), now=server.time.now)
    server.process.process_batch(now=server.time.now)
    assert InboundEnvelope.objects.filter(state="postponed").count() == 1
    assert OutboundReply.objects.filter(message_type=MessageType.QUERY_RESPONSE).count() == 1 + fit


def size(contacts: int) -> int:
    """Return the bytes that an installation with this number of contacts counts in an answer."""
    return 256 + 68 * contacts


def contacts_of(size: float) -> int:
    """Return the most contacts with which an installation counts no more than ``size`` bytes."""
    return int(size - 256) // 68


class Directory:
    """Queries about a user with contacts, each of another sender."""

    def __init__(self, server: Server, *, is_proven: bool = False) -> None:
        self._server, self._is_proven = server, is_proven
        self._user, self._versions = anybody(), itertools.count(1)

    def has(self, *contacts: int) -> None:
        """Give the user an installation for each of these numbers of contacts."""
        for number, each in enumerate(contacts):
            allowed = tuple(map(bytes64, range(each)))
            fields = {"allow_from_contacts_only": True, "allowed_key_list": allowed, "version": next(self._versions)}
            self._server.receive(registration(self._user, installation_id=numbered(number), **fields))
        if self._is_proven:
            Route.objects.filter(registration__public_key_hash=self._user.key_hash).update(
                delivered_digest=F("address_digest")
            )

    def ask(self) -> int:
        """Return how many installations the answer has."""
        asker = anybody()
        self._server.receive(query(self._user.key_hash, signer=asker))
        return sum(len(reply.body.info) for reply in replies_to(asker))

    def use_up(self, always: int) -> None:
        """Ask for answers that are longer than ``always`` until nothing is left for these."""
        for excess in (100_000, 20_000, 4_000, 800, 160, 68):
            self.has(contacts_of(always + excess))
            while self.ask():
                pass


SIZE = "size of an answer: {times} times its query"


@limit(SIZE + ". Keys … and share {kb} kB a second; others share {part} of that; {most} kB at most")
@pytest.mark.django_db(transaction=True)
def test_an_answer_is_as_long_as_its_query_and_the_common_excess_allow(
    times: int, kb: int, part: Fraction, most: int, server: Server
) -> None:
    always = times * len(query().payload)
    for more, fit in ((0, 2), (1, 1)):
        directory = Directory(server)
        directory.has(*[contacts_of(most * 1000 / 2) + more] * 2)
        assert directory.ask() == fit
    (directory := Directory(server)).use_up(always)
    for more, fit in ((0, 1), (1, 0)):
        directory.has(contacts_of(always) + more)
        assert directory.ask() == fit
    server.time.passes(seconds=1)
    directory.has(contacts_of(always + part * kb * 1000))
    assert [directory.ask(), directory.ask()] == [1, 0]


@limit(SIZE + ". Keys with a proven address have {own} kB a minute more, and share {kb} kB a second")
@pytest.mark.django_db(transaction=True)
def test_an_answer_about_a_proven_address_has_a_larger_excess(times: int, own: int, kb: int, server: Server) -> None:
    always = times * len(query().payload)
    (directory := Directory(server, is_proven=True)).use_up(always)
    other = Directory(server, is_proven=True)
    other.has(contacts_of(always + own * 1000 / 2))
    assert [other.ask() for _ in range(3)] == [1, 1, 0]
    server.time.passes(seconds=1)
    directory.has(contacts_of(always + kb * 1000))
    assert [directory.ask(), directory.ask()] == [1, 0]
    server.time.passes(seconds=59)
    directory.use_up(always)
    assert [other.ask() for _ in range(3)] == [1, 1, 0]


@limit(
    "errors: a key with a proven address gets {at_once} at once, {a_minute} a minute; others {few} at once,"
    " {a_second} a second"
)
def test_registrations_are_answered_with_an_error_that_often(
    at_once: int, a_minute: int, few: int, a_second: int, server: Server
) -> None:
    def answered(*users: Identity) -> int:
        return len(server.answers(*[registration(user, installation_id="\0") for user in users], to=users[0]))

    def outsiders(number: int) -> int:
        server.answers(*[registration(anybody(), installation_id="\0") for _ in range(number)])
        return OutboundReply.objects.count()

    server.receive(registration())
    Route.objects.update(delivered_digest=F("address_digest"))
    assert outsiders(few + 1) == few
    server.time.passes(seconds=1)
    assert outsiders(few) == a_second
    assert answered(*[CLIENT] * (at_once + 1)) == at_once
    server.time.passes(minutes=1)
    assert outsiders(few + 1) == few
    assert answered(*[CLIENT] * (a_minute + 1)) == a_minute


@limit("processes that die with an envelope: {deaths}, then it is `failed`")
def test_an_envelope_is_given_up_after_this_number_of_deaths(
    deaths: int, journal: InFlightJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison = make_envelope(payload=b"x")
    sizes = test_lost_batches.play(journal, bytes(poison.hash), monkeypatch)
    poison.refresh_from_db()
    assert (len(sizes), poison.state) == (deaths, "failed")


@limit("go first, each address as often as {setting} allow at once.")
def test_messages_about_a_proven_address_go_first_as_often_as_an_operator_sets(
    setting: str, settings: LazySettings, server: Server, phone: Registration
) -> None:
    """The inbox is behind, and what came first is about nobody."""
    setattr(settings, setting, (Limit(4, 1e6), Limit(4, 1e6)))
    Route.objects.update(delivered_digest=F("address_digest"))
    server.process = Process()
    put(*[request(push(anybody()), message_id=bytes(32)) for _ in range(400)], now=server.time.now)
    put(*pushes(10), now=server.time.now + timedelta(seconds=1))
    for _ in range(2):
        server.process.process_batch(now=server.time.now + timedelta(seconds=1))
    assert waiting() == 4


_FILL = """
    INSERT INTO waku_bridge_openenvelope
        (hash, pubsub_topic, content_topic, timestamp_ns, state, source, received_at, due_at)
    SELECT decode(lpad(to_hex(number), 64, '0'), 'hex'), '', '', number, %s, '', at, at
    FROM generate_series(1, %s) AS number,
        LATERAL (SELECT now() - interval '1 hour' + number * interval '1 ms' AS at) AS time
"""


def fill(state: str, number: int) -> None:
    """Store envelopes in a state, the first one the oldest."""
    with connection.cursor() as cursor:
        cursor.execute(_FILL, [state, number])
        cursor.execute("ANALYZE waku_bridge_openenvelope")


@limit("At most {most} messages are postponed, and as many wait for a topic's key; then the oldest are dropped")
@pytest.mark.parametrize("state", ["postponed", "pending_key"])
def test_the_oldest_message_beyond_the_limit_is_dropped(state: str, most: int, world: World, runner: Runner) -> None:
    async def scenario() -> None:
        bound = Bound(world.intake, limit=run_waku_bridge.MAX_WAITING)
        await in_thread(fill, state, most)
        await bound._enforce()
        assert await in_thread(dropped) == []
        await in_thread(partial(make_envelope, state=state))
        await bound._enforce()
        assert await in_thread(dropped) == [1]

    def dropped() -> list[int]:
        ended = InboundEnvelope.objects.filter(state="dropped", reason="overload")
        return [int.from_bytes(envelope.hash) for envelope in ended]

    runner.run(scenario())


@limit("While {most} wait unopened, the bridge leaves new ones in the stores.")
def test_the_bridge_takes_in_nothing_while_that_many_wait_unopened(most: int, world: World, runner: Runner) -> None:
    async def scenario() -> None:
        bound = Bound(world.intake, limit=run_waku_bridge.MAX_WAITING)
        await in_thread(fill, "received", most)
        await bound._enforce()
        assert world.intake.has_capacity.is_set()
        await in_thread(make_envelope)
        await bound._enforce()
        assert not world.intake.has_capacity.is_set()

    runner.run(scenario())


# Pushes ---------------------------------------------------------------------------------------------------------------


def pushed_with_content(server: Server, gateway: RecordingGateway, messages: list[WakuMessage]) -> int:
    """Return how many of these requests become pushes with their content."""
    known = len(gateway.pushes)
    server.receive(*messages)
    server.deliver()
    return len([each for each in gateway.pushes[known:] if each.message])


@limit("wake-ups of an address: {setting}; beyond that one wake-up for all, and success")
def test_an_address_is_woken_as_often_as_an_operator_sets(
    setting: str, settings: LazySettings, server: Server, phone: Registration, gateway: RecordingGateway
) -> None:
    at_once, seconds = getattr(settings, setting)[0]
    assert pushed_with_content(server, gateway, pushes(at_once + 3)) == at_once
    assert waiting(is_wake_up=True) == 1
    server.time.passes(seconds=seconds / at_once)
    assert pushed_with_content(server, gateway, pushes(2)) == 0
    assert len(gateway.pushes) == at_once + 1  # the wake-up for all


def pushed_in_the_long_run(
    server: Server, gateway: RecordingGateway, at_once: int, seconds: float, **kind: object
) -> int:
    """Return how many pushes keep their content if as many come as the limit of bursts allows, until some do not."""
    pushed = 0
    while (more := pushed_with_content(server, gateway, pushes(at_once, **kind))) == at_once:
        pushed += more
        server.time.passes(seconds=seconds)
    return pushed + more


@limit("wake-ups of an address: {setting};")
def test_an_address_is_woken_in_the_long_run_as_often_as_an_operator_sets(
    setting: str, settings: LazySettings, server: Server, phone: Registration, gateway: RecordingGateway
) -> None:
    (at_once, seconds), (an_hour, hour) = getattr(settings, setting)
    pushed = pushed_in_the_long_run(server, gateway, int(at_once), seconds)
    came_back = pushed / at_once * seconds / hour * an_hour
    assert an_hour <= pushed <= an_hour + came_back


@limit("mentions, contact and join requests: of their own {at_once} at once, {an_hour} an hour")
def test_mentions_and_requests_have_limits_of_their_own(
    at_once: int, an_hour: int, settings: LazySettings, server: Server, phone: Registration, gateway: RecordingGateway
) -> None:
    settings.ROUTE_LIMITS = (Limit(1, 3600), Limit(1, 3600))
    kind = {"type": NotificationType.CONTACT_REQUEST}
    assert pushed_with_content(server, gateway, pushes(1)) == 1
    assert pushed_with_content(server, gateway, pushes(at_once + 1, **kind)) == at_once
    server.time.passes(hours=2)
    pushed = pushed_in_the_long_run(server, gateway, at_once, 10, **kind)
    assert an_hour <= pushed <= an_hour + pushed / at_once * 10 / 3600 * an_hour + 1


def phones(number: int) -> list[Identity]:
    """Register a phone for each user of this number, and return the users."""
    users = [anybody() for _ in range(number)]
    for user in users:
        make_registration(public_key_hash=user.key_hash, installation_id=numbered(0), access_token=TOKEN)
    return users


@limit("sender key (every success), server: {of_sender}, {of_all}; likewise")
def test_a_sender_and_all_senders_wake_as_many_phones_as_an_operator_sets(
    of_sender: str, of_all: str, settings: LazySettings, server: Server, gateway: RecordingGateway
) -> None:
    """A phone more gets a wake-up. Of another sender it gets more, unless the limit is that of all."""

    def about(user: Identity, signer: Identity) -> WakuMessage:
        wanted = push(user, installation_id=numbered(0), message=b"m")
        return request(wanted, message_id=next(NUMBERS).to_bytes(32), signer=signer)

    unlimited = getattr(settings, of_sender)
    for setting, new_signer, others in ((of_sender, lambda: EPHEMERAL, 1), (of_all, anybody, 0)):
        setattr(settings, of_sender, unlimited)
        setattr(settings, setting, (Limit(10, 10), Limit(100, 3600)))
        users, woken = phones(11), waiting(is_wake_up=True)
        assert pushed_with_content(server, gateway, [about(user, new_signer()) for user in users]) == 10
        assert waiting(is_wake_up=True) == woken + 1
        assert pushed_with_content(server, gateway, [about(users[-1], anybody())]) == others
        server.time.passes(hours=2)


@limit("failures of a push to an address without a delivery: {most}, then `undeliverable`")
def test_a_push_that_fails_that_often_ends_while_others_are_delivered(
    most: int, server: Server, gateway: RecordingGateway, phone: Registration
) -> None:
    make_registration(public_key_hash=OUTSIDER.key_hash, installation_id=numbered(0), access_token=TOKEN)
    words = {phone.public_key_hash: Outcome.CONFIG}
    gateway.answer = lambda sent: Result(words.get(sent.public_key_hash, Outcome.DELIVERED))
    for number in range(most):
        server.time.passes(seconds=30)
        server.receive(request(push(OUTSIDER, installation_id=numbered(0)), message_id=next(NUMBERS).to_bytes(32)))
        server.deliver()
        assert waiting(state="undeliverable") == 0
        server.time.passes(hours=1)
        server.receive(*pushes(0 if number else 1))
        server.deliver()
    assert (waiting(state="undeliverable"), waiting(state="delivered")) == (1, most)


@limit("waiting for one address: {setting}; beyond that the oldest is coalesced, and success")
def test_as_many_pushes_wait_for_an_address_as_an_operator_sets(
    setting: str, settings: LazySettings, server: Server, phone: Registration
) -> None:
    setattr(settings, setting, 5)
    server.process = Process(limit=0)
    server.receive(*pushes(5))
    assert waiting(state="pending") == 5
    server.receive(*pushes(1))
    assert (waiting(state="pending"), waiting(state="coalesced")) == (5, 1)
    assert Notification.objects.order_by("pk").values_list("state", flat=True)[0] == "coalesced"


@limit("waiting in a queue: a part of {setting}, else `INTERNAL_ERROR`")
def test_as_many_pushes_wait_in_a_queue_as_its_part(setting: str, settings: LazySettings, server: Server) -> None:
    """The only queue of addresses that nothing was delivered to has a tenth."""
    setattr(settings, setting, 100)
    server.process = Process(limit=0)
    sent = [request(push(user, installation_id=numbered(0)), message_id=user.pub33) for user in phones(11)]
    server.receive(*sent[:10])
    server.receive(*sent[10:])
    assert waiting(state="pending") == 10
    [refused] = replies_to(EPHEMERAL)
    assert [report.error for report in refused.body.reports] == [ReportError.INTERNAL_ERROR]


@limit("sent at once from a queue: {count}, more after quick answers; others wait")
def test_a_process_sends_few_at_once_before_any_answer(
    count: int, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "open_all", lambda: None)
    monkeypatch.setattr(tasks, "gateway_for", lambda _: silent)
    silent = SilentGateway()
    worker = Worker(tasks.new_steps(wakeup := Wakeup()), wakeup)
    put(
        *[request(push(user, installation_id=numbered(0)), message_id=user.pub33) for user in phones(count + 1)],
        now=server.time.now,
    )
    while worker.process_batch(now=server.time.now):
        pass
    assert (waiting(state="in_flight"), waiting(state="pending")) == (count, 1)
