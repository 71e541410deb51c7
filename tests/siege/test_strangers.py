"""Strangers without end, beside honest people: made-up installations (1), queries about one user (2) and for long
answers (3), malformed registrations (7), and calls of hostile servers of XMPP (9).

The real code decides from message to reply. Time passes on the test's clock, and for (7) on the real one.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import count, cycle
from os import urandom

import pytest
from aiohttp import web
from coincurve import PrivateKey
from django.conf import LazySettings
from django.utils import timezone

from kit.db.clock import clock
from notifications.messages import Outcome
from notifications.models import Notification
from registrations import quotas
from registrations.models import Registration, Route
from tests.rig.conversation import push, put, query, registration, replies_to, request, say
from tests.rig.delivering import DeliveryProcess, Process, RecordingGateway
from tests.rig.peers import development_node
from tests.rig.rows import delete_all, firebase_token
from waku_bridge.codec.keys import Identity
from waku_bridge.inbox import processing
from waku_bridge.inbox.queries import Limits
from waku_bridge.messages import WakuMessage
from waku_bridge.models import OutboundReply
from waku_bridge.query_topics import CpuBudget, derive_newest
from xmpp_bridge.models import Device
from xmpp_bridge.tests.talking import SERVER, Registered, Service, encrypted, make_app, push2

pytestmark = [pytest.mark.chaos, pytest.mark.django_db(transaction=True)]
TICK = timedelta(seconds=0.25)
RATE = 20  # queries of the attack in a second
SENDERS, PERIOD = 95, timedelta(minutes=8)
ASKED, USERS, PHONES, UNPROVEN = 149, 40, 20, 100
MALFORMED, NODE_RATE, HONEST_RATE, SECONDS, BURST_AT = 1000, 40, 5, 12, 2
ANSWERED_WITHIN = timedelta(seconds=3)
# Made-up installations are fewer by 2 500: 29 an hour stand for 20 a second, 10 an hour for 7 a second, and 800 places
# for two million.
PLACES, TOMBSTONES = 800, 40
BURST, STEADY = 29, 10  # new installations an hour, and as many tombstones
QUIET_HOURS, BURST_HOURS, STEADY_HOURS = 24, 2, 110
HOUR, STEPS = timedelta(hours=1), 3
HOSTILE = [f"evil{number}.test" for number in range(3)]
CALLING_SECONDS, HOSTILE_EVERY, HONEST_EVERY = 1800, 5, 60
keys, texts = count(3_000_000), count()


def person() -> Identity:
    return Identity(PrivateKey(next(keys).to_bytes(32)))


class World:
    """A server with users. Its clock is ``now``."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.now = timezone.now()
        self.asked, self.answered = 0, 0

    def register(
        self, users: Sequence[Identity], *, contacts: int = 0, is_reached: bool = True, token: str = ""
    ) -> None:
        """Register a phone of each user with contacts, derive the keys of their topics, and deliver a push to each."""
        for user in users:
            listed = tuple(urandom(64) for _ in range(contacts))
            fields = {"allow_from_contacts_only": bool(listed), "allowed_key_list": listed}
            put(registration(user, device_token=token or firebase_token(), **fields), now=self.now)
            self.process.process_backlog(now=self.now)
        if is_reached:
            put(*(request(push(user), message_id=user.pub33) for user in users), now=self.now)
            self.process.process_backlog(now=self.now)
        while derive_newest(budget=CpuBudget(0, 60)):
            pass

    def passes(self, hostile: Iterator[WakuMessage], honest: Sequence[Identity], *, apart: timedelta) -> None:
        """Let time pass until honest people have asked about each of these users, beside the queries of the attack."""
        people = deque((self.now + number * apart, user) for number, user in enumerate(honest, start=1))
        while people:
            self.now += TICK
            put(*(next(hostile) for _ in range(round(RATE * TICK.total_seconds()))), now=self.now)
            due = [people.popleft()[1] for _ in range(len(people)) if people[0][0] <= self.now]
            hashes = put(*questions(due), now=self.now)
            while self.process.process_batch(now=self.now):
                pass
            replies = OutboundReply.objects.filter(envelope_hash__in=hashes).values_list("envelope_hash").distinct()
            self.asked, self.answered = self.asked + len(due), self.answered + replies.count()
            delete_all(OutboundReply)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(Process(RecordingGateway(Outcome.DELIVERED)))
    limits = Limits(processing.QUERIES_PER_KEY_PER_MINUTE, clock=lambda: world.now.timestamp())  # noqa: PLW0108 - it changes
    monkeypatch.setattr(processing, "query_limits", lambda: limits)
    return world


def questions(users: Iterable[Identity]) -> Iterator[WakuMessage]:
    """Yield queries about these users, each of another key."""
    return (query(user.key_hash, signer=person()) for user in users)


def test_queries_about_one_key_leave_answers_to_honest_senders(world: World) -> None:
    world.register([victim := person()])
    world.passes(questions(cycle([victim])), [victim] * SENDERS, apart=PERIOD / SENDERS)
    print(f"\n2: {RATE} queries a second about a user: {world.answered} of {world.asked} honest ones were answered")
    assert world.answered >= 0.95 * SENDERS


def never_reached(world: World, _: list[Identity]) -> list[Identity]:
    world.register(outsiders := [person() for _ in range(UNPROVEN)], contacts=1000, is_reached=False)
    return outsiders


def of_one_phone(world: World, _: list[Identity]) -> list[Identity]:
    """Make users to all of whose installations one real phone gives a proven address."""
    world.register(owned := [person() for _ in range(PHONES)], contacts=1000, token=firebase_token())
    assert Route.objects.filter(is_proven=True).count() == USERS + PHONES
    return owned


def known(_: World, users: list[Identity]) -> list[Identity]:
    """Return an honest user, whom everybody can ask about."""
    return users[:1]


@pytest.mark.parametrize("contacts", [400, 1000])
@pytest.mark.parametrize("asked_about", [never_reached, of_one_phone, known])
def test_long_answers_to_outsiders_leave_those_about_reached_users(
    contacts: int, asked_about: Callable[[World, list[Identity]], list[Identity]], world: World
) -> None:
    world.register(users := [person() for _ in range(USERS)], contacts=contacts)
    about = asked_about(world, users)
    others = cycle(user for user in users if user not in about)
    world.passes(questions(cycle(about)), [next(others) for _ in range(ASKED)], apart=timedelta(seconds=1))
    kind = asked_about.__name__.replace("_", " ")
    print(
        f"\n3: answers ({kind}), users of {contacts} contacts: {world.answered} of {world.asked} queries were answered"
    )
    assert world.answered >= 0.95 * ASKED


def limit() -> Callable[[bytes], web.Response | None]:
    """Return the limit of a node that takes `NODE_RATE` messages a second, and answers 429 beyond that."""
    taken = deque[float]()

    def refuse(_body: bytes) -> web.Response | None:
        while taken and taken[0] < time.monotonic() - 1:
            taken.popleft()
        if len(taken) >= NODE_RATE:
            return web.Response(status=429, text="Request rate limit reached")
        taken.append(time.monotonic())
        return None

    return refuse


def test_errors_to_outsiders_leave_a_node_its_rate_for_other_replies() -> None:
    with development_node(limit()) as node:
        world = World(Process(RecordingGateway(Outcome.DELIVERED), nodes=[node]))
        world.register(users := [person() for _ in range(SECONDS)])
        delete_all(OutboundReply)
        hostile = [registration(person(), device_token="e") for _ in range(MALFORMED)]
        # One in five honest registrations is malformed, too: a user's whose phone was reached.
        honest = [
            registration(users[second], device_token="e", version=2) if number == 0 else registration(person())
            for second in range(SECONDS)
            for number in range(HONEST_RATE)
        ]
        sent, began = dict[bytes, datetime](), time.monotonic()
        while (passed := time.monotonic() - began) < SECONDS + 5:
            due = honest[len(sent) : int(passed * HONEST_RATE) + 1]
            burst, hostile = (hostile, []) if passed > BURST_AT else ([], hostile)
            sent |= dict.fromkeys(put(*due, now=timezone.now()), timezone.now())
            put(*burst, now=timezone.now())
            if not world.process.process_batch():
                world.process.wait(0.01)
        replies = OutboundReply.objects.filter(envelope_hash__in=sent, published_at__isnull=False)
        in_time = sum(row.published_at - sent[bytes(row.envelope_hash)] <= ANSWERED_WITHIN for row in replies)
        others = OutboundReply.objects.exclude(envelope_hash__in=sent).count()
        errors = [len(replies_to(user)) for user in users]
    print(
        f"\n7: {MALFORMED} malformed registrations, at a node with {NODE_RATE} messages a second: {in_time} of "
        f"{len(sent)} honest ones were answered within 3 s, {sum(errors)} of {SECONDS} of these with an error; "
        f"{others} rows of errors to others"
    )
    assert len(sent) == len(honest)
    assert in_time >= 0.95 * len(honest)
    assert errors == [1] * SECONDS


class Newcomers:
    """A server to which people register for hours. Its clock is ``now``."""

    def __init__(self) -> None:
        self.process = Process()
        self.now = datetime(2026, 3, 1, tzinfo=timezone.get_current_timezone())
        self.answers: list[bool] = []

    def hour(self, made_up: int) -> bytes:
        """Let an hour pass with a number of made-up installations, an honest new user and one who returns.

        Return the key hash of the new user.
        """
        new_user, returning = person(), person()
        say(registration(returning, unregister=True), now=self.now, process=self.process)
        for step in range(STEPS):
            self.now += HOUR / STEPS
            messages = [registration(person(), device_token=firebase_token()) for _ in range(step, made_up, STEPS)]
            messages += [registration(person(), unregister=True) for _ in range(step, made_up, STEPS)]
            if step == 1:
                honest = [registration(new_user), registration(returning, version=2)]
                messages[len(messages) // 2 : 0] = honest
            delete_all(OutboundReply)
            say(*messages, now=self.now, process=self.process)
            if step == 1:
                self.answers += [replies_to(each)[-1].body.success for each in (new_user, returning)]
        return new_user.key_hash


def left_of(users: list[bytes]) -> int:
    return Registration.objects.filter(public_key_hash__in=users).count()


def test_made_up_installations_replace_each_other_and_keep_nobody_out(
    settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.MAX_REGISTRATIONS = PLACES
    monkeypatch.setattr(quotas, "MAX_FORGETTABLE", TOMBSTONES)
    world = Newcomers()
    quiet = [world.hour(0) for _ in range(QUIET_HOURS)]
    attacked = [world.hour(BURST) for _ in range(BURST_HOURS)]
    full_after = 0
    for hour in range(STEADY_HOURS):
        attacked.append(world.hour(STEADY))
        if left_of(attacked) == len(attacked):
            full_after = hour + 1
    accepted = sum(world.answers) / len(world.answers)
    share = (PLACES - 2 * QUIET_HOURS) / (BURST_HOURS * (BURST + 2) + STEADY_HOURS * (STEADY + 2))
    print(
        f"\nattack 1: {accepted:.0%} of {len(world.answers)} honest registrations were accepted, and nobody went for "
        f"{full_after} hours. After {STEADY_HOURS} hours, {left_of(quiet)} of {len(quiet)} new users of quiet hours "
        f"are left, and {left_of(attacked)} of {len(attacked)} of the others ({share:.0%} by computation)."
    )
    assert accepted >= 0.95
    assert full_after >= (PLACES - 2 * QUIET_HOURS - BURST_HOURS * (BURST + 2)) // (STEADY + 2)
    assert left_of(quiet) == len(quiet)
    assert left_of(attacked) >= 0.75 * share * len(attacked)
    assert Registration.objects.filter(state="active").count() == PLACES
    assert Registration.objects.filter(state="unregistered").count() <= TOMBSTONES


def test_calls_of_hostile_servers_take_none_of_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user has accounts on all of these servers, each with a device that has the phone's token."""
    make_app()
    service, process = Service(), DeliveryProcess()
    phone = service.register()
    theirs = [service.register(sender=f"juliet@{domain}/phone") for domain in HOSTILE]
    began = now = timezone.now()
    monkeypatch.setattr(type(clock), "now", lambda _: now)
    honest, hostile = list[bool](), list[bool]()
    for seconds in range(0, CALLING_SECONDS, HOSTILE_EVERY):
        now = began + timedelta(seconds=seconds)
        hostile += [call(service, device, domain) for device, domain in zip(theirs, HOSTILE, strict=True)]
        if seconds % HONEST_EVERY == 0:
            honest.append(call(service, phone, SERVER))
        process.process_backlog(now=now)
    rung = Notification.objects.filter(
        installation_id=str(Device.objects.get(domain=SERVER).pk), grade="voip", state="delivered"
    ).count()
    print(
        f"\n9: {len(honest)} honest calls in {CALLING_SECONDS // 60} minutes: {sum(honest)} accepted, {rung} rang; of "
        f"{len(hostile)} by {len(HOSTILE)} hostile servers {sum(hostile)} were accepted"
    )
    assert rung >= 0.95 * len(honest)
    assert sum(hostile) < len(hostile)


def call(service: Service, device: Registered, domain: str) -> bool:
    """Call a device of a user of this domain, and return whether the call was accepted."""
    ciphertext = f"{next(texts):04}"
    return service.receive(push2(device.client, encrypted(ciphertext, voip=True), sender=domain)) is None
