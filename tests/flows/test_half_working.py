"""Requests while the way behind gorush is half broken: from the envelope to gorush's answer, and to the push's end.

The clock is the test's, so that days pass. gorush answers over HTTP, in words that operators have seen.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler
from itertools import count
from time import sleep
from typing import Any, ClassVar

import pytest
from django.test import override_settings
from django.utils import timezone

from kit.http import Connections, submit
from notifications.delivery import steps
from notifications.gateways.gorush.client import GorushGateway
from notifications.models import Halt, Notification
from pushserver.console.health.snapshot import take_snapshot
from pushserver.console.health.verdicts import State, Verdict
from registrations.messages import TokenType
from tests.rig.conversation import anybody, push, registration, say
from tests.rig.conversation import request as push_request
from tests.rig.delivering import Process
from tests.rig.peers import serve
from tests.rig.rows import apn_token, firebase_token

pytestmark = pytest.mark.django_db
IOS, ANDROID = 1, 2
POST = 'Post "https://api.push.apple.com/3/device/{token}": '
GOAWAY = (
    "http2: server sent GOAWAY and closed the connection; LastStreamID=0, ErrCode=NO_ERROR, "
    r'debug="{{\"reason\":\"BadCertificateEnvironment\"}}"'
)
WORDS = [
    (IOS, POST + "remote error: tls: expired certificate"),
    (IOS, POST + GOAWAY),
    (IOS, POST + "net/http: TLS handshake timeout"),
    (IOS, POST + "EOF"),
    (IOS, POST + "dial tcp: lookup api.push.apple.com: no such host"),
    (IOS, POST + "words that nobody has seen for {token}"),
    (IOS, "AReasonThatAppleAddedYesterday"),
    (ANDROID, "The caller does not have permission"),
    (ANDROID, "failed to establish a connection: dial tcp: lookup fcm.googleapis.com: no such host"),
    (ANDROID, "words of Google that nobody has seen"),
]
THIRD_PARTY = "Auth error from APNS or Web Push Service"
message_ids = count(1)


class Gorush(BaseHTTPRequestHandler):
    """gorush that answers about each platform or app topic in the words of ``words``, or takes the push.

    ``refused`` holds the tokens of the pushes that it did not take. An answer takes ``seconds``.
    """

    words: ClassVar[dict[int | str, str]] = {}
    taken: ClassVar[dict[str, list[Any]]] = {}
    refused: ClassVar[list[str]] = []
    seconds: ClassVar[float] = 0.0

    def do_POST(self) -> None:
        sleep(self.seconds)
        [sent] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["notifications"]
        [token], platform = sent["tokens"], sent["platform"]
        logs = []
        if word := self.words.get(sent.get("topic")) or self.words.get(platform):
            self.refused.append(token)
            logs = [{"type": "failed-push", "platform": "", "token": token, "error": word.format(token=token)}]
        else:
            self.taken[token].append(sent)
        self._answer({"success": "ok", "counts": 1, "logs": logs})

    def do_GET(self) -> None:
        self._answer({})

    def _answer(self, answer: object) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Phone:
    """A registered installation that was notified before."""

    def __init__(self, platform: int, topic: str = "im.status") -> None:
        self.identity = anybody()
        self.token = apn_token() if platform == IOS else firebase_token()
        kind = TokenType.APN if platform == IOS else TokenType.FIREBASE
        app_topic = topic if platform == IOS else ""
        self.message = registration(self.identity, token_type=kind, app_topic=app_topic, device_token=self.token)


class World:
    """A worker process with real phones, senders and gorush. Its clock is ``now``."""

    def __init__(self, url: str, gorush: type[Gorush]) -> None:
        self.gorush, self.now = gorush, timezone.now()
        self.client = Connections(silent_seconds=5)
        self.process = Process(GorushGateway([url], self.client))
        self.phones = {platform: [Phone(platform) for _ in range(6)] for platform in (IOS, ANDROID)}
        self.senders = [anybody() for _ in range(4)]
        every = [phone for phones in self.phones.values() for phone in phones]
        self.register(*every)
        self.notify(*every)
        self.gorush.taken.clear()
        self.gorush.refused.clear()

    def register(self, *phones: Phone) -> None:
        """Have these phones register."""
        say(*(phone.message for phone in phones), now=self.now, process=self.process)

    def notify(self, *phones: Phone, message_id: bytes = b"") -> None:
        """Have a push to each of these phones requested, by one sender after the other, one push at a time."""
        for number, phone in enumerate(phones):
            own_id = message_id or b"message %d" % next(message_ids)
            signer = self.senders[number % len(self.senders)]
            say(
                push_request(push(phone.identity), signer=signer, message_id=own_id), now=self.now, process=self.process
            )
            self.process.process_backlog(now=self.now)

    def wait(self, **time: float) -> None:
        """Let time pass, and the process do what is due then."""
        self.now += timedelta(**time)
        self.process.process_backlog(now=self.now)

    def pass_time(self, *, until: datetime, delivering_to: Sequence[Phone], minutes: int = 10) -> None:
        """Let time pass in steps of some minutes, in each of which one of these phones is notified."""
        for number in count():
            if self.now >= until:
                return
            self.now += timedelta(minutes=minutes)
            self.notify(delivering_to[number % len(delivering_to)])
            self.wait()

    def sent_to(self, *phones: Phone) -> list[int]:
        """Return how often gorush took a push to each of these phones."""
        return [len(self.gorush.taken[phone.token]) for phone in phones]


@pytest.fixture
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(steps, "GATHERING_SECONDS", 0.0)  # pushes are sent one by one
    with open_world(Gorush, **getattr(request, "param", {})) as world:
        yield world


@contextmanager
def open_world(handler: type[Gorush], *, is_delivered: bool = True) -> Iterator[World]:
    """Serve a gorush, and open a world with it."""
    gorush = type(handler.__name__, (handler,), {"words": {}, "taken": defaultdict(list), "refused": []})
    with serve(gorush) as server:
        if not is_delivered:
            gorush.words[IOS] = "InvalidProviderToken"
        url = f"http://127.0.0.1:{server.server_port}"
        with override_settings(GORUSH_URLS=[url]):
            world = World(url, gorush)
            yield world
        submit(world.client.close()).result(20)


@pytest.mark.parametrize(("platform", "word"), WORDS)
def test_an_outage_of_ten_minutes_loses_nothing_whatever_the_words(world: World, platform: int, word: str) -> None:
    waiting, others = world.phones[platform] * 2, world.phones[3 - platform]
    world.gorush.words[platform] = word
    world.notify(*waiting)
    [halt] = Halt.objects.in_force()
    assert (halt.kind, halt.token_type) == ("tripped", platform)
    assert not [phone for phone in waiting if phone.token in halt.reason]
    world.notify(*others)
    assert world.sent_to(*others) == [1] * 6
    for _ in range(10):
        world.wait(minutes=1)
    assert not Notification.objects.filter(finished_at__gte=world.now - timedelta(minutes=9))
    world.gorush.words.clear()
    for _ in range(12):
        world.wait(seconds=5)
    assert world.sent_to(*world.phones[platform]) == [2] * 6
    assert not Halt.objects.in_force().exists()


@pytest.mark.parametrize("word", [POST + "EOF", POST + "words that nobody has seen"])
def test_a_push_that_may_have_arrived_is_sent_nine_times_in_a_day_and_then_a_repeat_counts(
    world: World, word: str
) -> None:
    [phone, *_] = world.phones[IOS]
    world.gorush.words[IOS] = word
    world.notify(phone, message_id=b"the same")
    while world.now < _expiry():
        world.wait(seconds=max((_next_at() - world.now).total_seconds(), 1) if _next_at() else 3600)
    notification = Notification.objects.latest("pk")
    assert (notification.state, notification.attempt_count) == ("unconfirmed", 9)
    world.gorush.words.clear()
    world.senders.reverse()  # the same request of the same sender would be a repetition
    world.notify(phone, message_id=b"the same")
    assert world.sent_to(phone) == [1]
    assert Notification.objects.latest("pk").collapse_id == notification.collapse_id


def _expiry() -> datetime:
    return Notification.objects.latest("pk").expires_at


def _next_at() -> datetime | None:
    next_at = Notification.objects.latest("pk").due_at
    return min(next_at, _expiry()) if next_at else None


def test_refusals_at_three_phones_that_may_be_their_tokens_fault_stop_nobody(world: World) -> None:
    world.gorush.words[ANDROID] = THIRD_PARTY
    world.notify(*world.phones[ANDROID][:3] * 2)
    assert not Halt.objects.in_force().exists()
    world.notify(*world.phones[ANDROID][3:], world.phones[ANDROID][0])
    assert Halt.objects.in_force().get().kind == "tripped"


def test_three_failures_without_a_success_show_in_a_fleet_too_small_to_be_halted(world: World) -> None:
    """Not those of a made-up app: anybody can register one that Apple refuses, and have pushes sent to it."""
    world.gorush.words[IOS] = POST + "words that nobody has seen for {token}"
    outsider, phones = Phone(IOS, topic="made.up"), world.phones[IOS][:3]
    world.register(outsider)
    world.notify(outsider, outsider, outsider, *phones[:2])
    assert _sending(world).state == State.GREEN
    world.notify(phones[2])
    sending = _sending(world)
    assert (sending.state, Halt.objects.in_force().count()) == (State.YELLOW, 0)
    assert "APN im.status: the last 3 sends failed, mostly with unknown" in sending.sentence
    assert not [phone for phone in phones if phone.token in sending.sentence]
    world.gorush.words.clear()
    world.wait(seconds=15)
    assert _sending(world).state == State.GREEN


@pytest.mark.parametrize("world", [{"is_delivered": False}], indirect=True)
def test_three_failures_before_the_first_delivery_show_too(world: World) -> None:
    sending = _sending(world)
    assert sending.state == State.YELLOW
    assert "apps without a delivery: the last 6 sends failed, mostly with InvalidProviderToken" in sending.sentence


def test_an_outage_of_five_hours_ends_no_first_push(world: World) -> None:
    new_phones = [Phone(IOS) for _ in range(3)]
    world.register(*new_phones)
    world.gorush.words[IOS] = "InternalServerError"
    end = world.now + timedelta(hours=5)
    world.notify(*new_phones)
    world.pass_time(until=end, delivering_to=world.phones[ANDROID])
    assert min(Counter(world.gorush.refused).values()) > 8
    world.gorush.words.clear()
    world.pass_time(until=end + timedelta(hours=1), delivering_to=world.phones[IOS])
    assert world.sent_to(*new_phones) == [1, 1, 1]


@pytest.fixture
def new_phone(world: World) -> Phone:
    """Return a phone of a new app, whose set-up is wrong for three hours after the first push."""
    new_phone = Phone(IOS, topic="im.new")
    world.register(new_phone)
    world.gorush.words["im.new"] = "AReasonThatAppleAddedYesterday"
    end = world.now + timedelta(hours=3)
    world.notify(new_phone)
    world.pass_time(until=end, delivering_to=world.phones[IOS])
    world.gorush.words.clear()
    return new_phone


def test_an_operator_has_three_hours_to_correct_the_set_up_of_a_new_app(world: World, new_phone: Phone) -> None:
    world.pass_time(until=world.now + timedelta(hours=1), delivering_to=world.phones[IOS])
    assert world.sent_to(new_phone) == [1]


def test_the_next_push_to_an_address_that_works_at_last_brings_those_that_wait(world: World, new_phone: Phone) -> None:
    world.notify(new_phone)
    world.wait(seconds=1)
    assert world.sent_to(new_phone) == [2]


def _sending(world: World) -> Verdict:
    indicators = take_snapshot(now=world.now).indicators
    return next(indicator for indicator in indicators if indicator.id == "sending")
