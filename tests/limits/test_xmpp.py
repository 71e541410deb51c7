"""The limits of XMPP in docs/limits.md, met by stanzas and their answers."""

import itertools
from base64 import b64encode
from collections.abc import Iterable
from datetime import timedelta
from fractions import Fraction

import pytest
from django.conf import LazySettings
from django.db.models import F

from kit.buckets.bucket import Limit
from kit.db.clock import clock
from notifications.models import Notification
from notifications.queues.capacity import Admission
from registrations.models import Route
from tests.limits.conftest import Time
from tests.limits.page import limit
from tests.rig.rows import apn_token, end_open
from xmpp_bridge import handler, inbound
from xmpp_bridge.codec.elements import parse
from xmpp_bridge.codec.stanzas import decode
from xmpp_bridge.codec.stream import Received, Stream
from xmpp_bridge.codec.tests.test_stream import HEADER
from xmpp_bridge.handler import Arrived
from xmpp_bridge.limits import RATES, Rates
from xmpp_bridge.management.commands import run_xmpp_bridge
from xmpp_bridge.models import Device
from xmpp_bridge.tests.talking import (
    SERVICE,
    Registered,
    Service,
    arrived,
    command,
    encrypted,
    error_of,
    make_app,
    push2,
)

pytestmark = pytest.mark.django_db
BUSY = ("wait", "resource-constraint")
NUMBERS = itertools.count()


@pytest.fixture
def service(time: Time) -> Service:
    make_app()
    return Service()


@pytest.fixture
def phone(service: Service) -> Registered:
    return service.register()


def text() -> str:
    """Return a ciphertext that no push had before."""
    return b64encode(next(NUMBERS).to_bytes(6)).decode()


def ciphertexts(phone: Registered, number: int, *, voip: bool = False, **origin: str) -> list[str]:
    """Return pushes of different contents."""
    return [push2(phone.client, encrypted(text(), voip=voip), **origin) for _ in range(number)]


def refused(service: Service, stanzas: Iterable[str]) -> int:
    """Return how many of these stanzas are answered with `wait`. They come in batches, as the connection reads them."""
    waiting, answers = list(stanzas), []
    while waiting:
        answers += service.receive_all(*waiting[:200])
        del waiting[:200]
    assert {error_of(each) for each in answers if each.get("type") == "error"} <= {BUSY}
    return len([each for each in answers if each.get("type") == "error"])


def registrations(*senders: str) -> list[str]:
    """Return commands that register one new device for each sender."""
    fields = {"token": apn_token()}
    return [
        command("register-push-apns", fields | {"device-id": str(next(NUMBERS))}, sender=f"{sender}/x")
        for sender in senders
    ]


def cancels(sender: str, number: int) -> list[str]:
    """Return commands that cost as much of the limits as any others, and no rows."""
    return [command("register-push-apns", None, sender=f"{sender}/x", action="cancel")] * number


def due() -> list[float]:
    """Return in how many seconds each wake-up goes out, in the order in which they came."""
    rows = Notification.objects.order_by("pk").values_list("due_at", "created_at")
    return [(at - made).total_seconds() for at, made in rows if at]


# Pushes ---------------------------------------------------------------------------------------------------------------


@limit("wake-ups: a device once in {seconds} s;")
def test_a_device_is_woken_at_once_and_again_after_the_pause(
    seconds: int, service: Service, phone: Registered, time: Time
) -> None:
    service.receive(push2(phone.client))
    end_open("delivered")
    time.passes(seconds=seconds - 1)
    service.receive_all(push2(phone.client), push2(phone.client))
    assert due() == [1]
    end_open("delivered")
    time.passes(seconds=1 + seconds)
    service.receive(push2(phone.client))
    assert due() == [0]
    assert Notification.objects.count() == 3


@limit("of a domain to a phone {at_once} at once, one a second; else merged")
def test_a_phone_of_many_accounts_is_woken_this_often_at_once(at_once: int, service: Service, time: Time) -> None:
    phones = [service.register(sender=f"account{n}@capulet.test/x") for n in range(at_once + 2)]
    service.receive_all(*[push2(phone.client) for phone in phones])
    assert due() == [0] * at_once + [1, 2]


@limit(
    "repeats: same content within {content} s (no call), wake-up within {wake} s, "
    "stanza until its answer or within {stanza} s: dropped"
)
@pytest.mark.parametrize("kind", ["content", "wake-up", "stanza"])
def test_a_repetition_is_dropped_within_the_time_of_its_kind(
    content: int, wake: Fraction, stanza: int, kind: str, service: Service, phone: Registered, time: Time
) -> None:
    def come() -> None:
        inside = {"content": encrypted("AAAA"), "wake-up": "", "stanza": encrypted(text())}[kind]
        service.receive(push2(phone.client, inside, stanza_id="same" if kind == "stanza" else ""))
        end_open("delivered")

    come()
    time.passes(seconds=float({"content": content, "wake-up": wake, "stanza": stanza}[kind]) - 0.1)
    come()
    assert Notification.objects.count() == 1
    time.passes(seconds=0.2)
    come()
    assert Notification.objects.count() == 2


@limit("repeats: same content within {seconds} s (no call)")
def test_two_calls_of_the_same_content_are_two(seconds: int, service: Service, phone: Registered) -> None:
    service.receive_all(*[push2(phone.client, encrypted(voip=True)) for _ in range(seconds)])
    assert Notification.objects.count() == seconds


@limit("payloads of a domain to a phone: {a_minute} a minute, {a_day} a day; else a wake-up")
def test_a_phone_gets_its_payloads_of_a_minute_and_of_a_day(
    a_minute: int, a_day: int, service: Service, phone: Registered, time: Time
) -> None:
    def payloads() -> int:
        return Notification.objects.filter(message__isnull=False).count()

    assert refused(service, ciphertexts(phone, a_minute + 1)) == 0
    assert (payloads(), Notification.objects.count()) == (a_minute, a_minute + 1)
    ended = 0
    for _ in range(a_day // a_minute):
        ended += payloads()
        end_open("delivered")
        time.passes(minutes=1)
        refused(service, ciphertexts(phone, a_minute))
    assert a_day <= ended + payloads() <= a_day + a_day // 24  # some come back within the first hour


@limit("calls of a domain to a phone: {a_minute} a minute")
def test_a_phone_gets_its_calls_of_a_minute(a_minute: int, service: Service, phone: Registered, time: Time) -> None:
    assert refused(service, ciphertexts(phone, a_minute + 1, voip=True)) == 1
    time.passes(seconds=60 / a_minute)
    assert refused(service, ciphertexts(phone, 2, voip=True)) == 1
    assert Notification.objects.filter(grade="voip").count() == a_minute + 1


@limit("pushes of a domain: {a_second} a second, {at_once} at once;")
def test_a_domain_sends_its_pushes(
    a_second: int, at_once: int, service: Service, phone: Registered, time: Time
) -> None:
    assert refused(service, ciphertexts(phone, at_once + 1)) == 1
    time.passes(seconds=1)
    assert refused(service, ciphertexts(phone, a_second + 1)) == 1
    other = service.register(sender="romeo@montague.test/x")
    assert refused(service, ciphertexts(other, 1, sender="montague.test")) == 0


@limit("for unknown clients {an_hour} an hour, then no answer to messages")
def test_pushes_for_unknown_clients_are_answered(an_hour: int, service: Service, time: Time) -> None:
    assert len(service.receive_all(*[push2("nope") for _ in range(an_hour + 1)])) == an_hour
    time.passes(hours=1 / an_hour)
    assert len(service.receive_all(push2("nope"), push2("nope"))) == 1


@limit("all pushes: {setting},")
def test_all_domains_send_what_an_operator_sets(
    setting: str, settings: LazySettings, service: Service, phone: Registered
) -> None:
    setattr(settings, setting, (Limit(10, 10), Limit(100, 3600)))
    settings.XMPP_COMPONENT_JID = SERVICE
    handler = run_xmpp_bridge._component()._handler
    other = service.register(sender="romeo@montague.test/x")
    pushes = [*ciphertexts(phone, 6), *ciphertexts(other, 5, sender="montague.test")]
    answers, _ = handler.answer([arrived(push) for push in pushes])
    assert [error_of(parse(each)) for each in answers] == [BUSY]


@limit("all pushes: …, {setting}")
def test_pushes_wait_up_to_the_limit_of_an_operator(
    setting: str, settings: LazySettings, service: Service, phone: Registered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apps without any delivery share a tenth of it. Alone on its platform, the phone's queue has all of that."""
    setattr(settings, setting, 100)
    own = Admission()
    monkeypatch.setattr(inbound, "own_admission", lambda: own)
    assert refused(service, ciphertexts(phone, 11)) == 1
    assert Notification.objects.count() == 10


@limit("Domains with the same last {labels} labels get {part} of what all may send,")
def test_a_zone_sends_its_part_of_all(labels: int, part: Fraction, service: Service, time: Time) -> None:
    service = Service(Rates(in_all=(Limit(50, 50.0),)))
    shared = ["x", *["capulet", "test"][-labels:]]
    phone = service.register(sender=f"juliet@{'.'.join(shared)}/x")
    others = service.register(sender=f"romeo@{'.'.join(['y', *shared[1:]])}/x")
    alone = service.register(sender="romeo@montague.test/x")
    assert refused(service, ciphertexts(phone, int(50 * part) - 1, sender=".".join(shared))) == 0
    assert refused(service, ciphertexts(others, 2, sender=".".join(["y", *shared[1:]]))) == 1
    assert refused(service, ciphertexts(alone, int(50 * (1 - part)) + 1, sender="montague.test")) == 1


@limit("count as one to a phone, which takes {times} times as much from all")
def test_a_phone_takes_several_times_as_much_from_all_domains(times: int, service: Service) -> None:
    def calls(domain: str) -> int:
        phone = service.register(sender=f"juliet@{domain}/x")
        own = RATES.calls_per_minute
        return own - refused(service, ciphertexts(phone, own, voip=True, sender=domain))

    assert [calls("a.verona.test"), calls("b.verona.test")] == [RATES.calls_per_minute, 0]
    assert [calls(f"{n}.example") for n in range(times)] == [RATES.calls_per_minute] * (times - 1) + [0]


@limit("a stanza: {kib} KiB, else `bad-request`")
def test_a_stanza_of_that_size_is_read_and_a_larger_one_is_a_bad_request(kib: int, service: Service) -> None:
    """The first is too long for an id, so that its client is unknown."""
    for size, answer in ((kib * 1024, ("cancel", "item-not-found")), (kib * 1024 + 1, ("modify", "bad-request"))):
        stanza = push2("nope", stanza_id="m").replace("</message>", "<body></body></message>")
        stanza = stanza.replace("<body>", f"<body>{'x' * (size - len(stanza))}")
        [event] = [each for each in Stream().feed(HEADER + stanza.encode()) if isinstance(each, Received)]
        decoded = decode(event.stanza, is_too_large=event.is_too_large)
        answers, _ = service.answer([Arrived(decoded, 0.0, size)])
        assert [error_of(parse(each)) for each in answers] == [answer]


# Devices and commands -------------------------------------------------------------------------------------------------


@pytest.mark.requirement("XB4", "X4")
@limit("devices of an account in an app: {most}; a new one replaces the longest dead")
def test_an_account_has_that_many_devices(most: int, service: Service) -> None:
    assert refused(service, registrations(*["juliet@capulet.test"] * (most + 1))) == 1
    dead = Route.objects.order_by("pk")[2]
    Route.objects.filter(pk=dead.pk).update(state="disabled", disabled_at=clock.now())
    assert refused(service, registrations(*["juliet@capulet.test"] * 2)) == 1
    assert not Route.objects.filter(pk=dead.pk).exists()
    assert Device.objects.filter(state="active").count() == most


@pytest.mark.requirement("XB4", "X4")
@limit("commands: {an_hour} an hour of an account;")
def test_an_account_sends_its_commands_of_an_hour(an_hour: int, service: Service, time: Time) -> None:
    assert refused(service, cancels("juliet@capulet.test", an_hour + 1)) == 1
    time.passes(hours=1 / an_hour)
    assert refused(service, cancels("juliet@capulet.test", 2)) == 1


@limit("an account; {at_once} at once and {a_second} a second of a domain, {all_at_once} and {all_a_second} of all;")
def test_a_domain_and_all_domains_send_their_commands(
    at_once: int, a_second: int, all_at_once: int, all_a_second: int, service: Service, time: Time
) -> None:
    def send(domain: str, number: int) -> int:
        return refused(service, [each for n in range(number) for each in cancels(f"account{n}@{domain}", 1)])

    assert send("capulet.test", at_once + 1) == 1
    time.passes(seconds=1)
    assert send("capulet.test", a_second + 1) == 1
    domains = [f"{number}.example" for number in range(2 * all_at_once // at_once)]
    sent = at_once + a_second - all_a_second + sum(at_once - send(each, at_once) for each in domains)
    assert sent == all_at_once
    time.passes(seconds=1)
    assert send("montague.test", all_a_second // 2) == 0
    assert send("verona.test", all_a_second // 2 + 1) == 1


@limit("of all; {most} wait")
def test_commands_wait_up_to_a_number(most: int, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "OTHERS_SECONDS", 0.0)
    _, waiting = service.answer([arrived(each) for each in cancels("juliet@capulet.test", most)])
    assert len(waiting) == most
    answers, waiting = service.answer([*waiting, arrived(cancels("romeo@capulet.test", 1)[0])])
    assert ([error_of(parse(each)) for each in answers], len(waiting)) == ([BUSY], most)


@limit("new devices: {an_hour} an hour of a domain")
def test_a_domain_registers_its_devices_of_an_hour(an_hour: int, service: Service, time: Time) -> None:
    """All but two of them are only charged, as each costs a transaction."""
    assert all(service.limits.take_route("capulet.test", time.seconds()) for _ in range(an_hour - 2))
    service.limits.keep()
    assert refused(service, registrations(*[f"account{n}@capulet.test" for n in range(3)])) == 1
    time.passes(hours=1 / an_hour)
    assert refused(service, registrations("later@capulet.test", "last@capulet.test")) == 1


@limit("all devices: {setting}")
def test_devices_are_registered_up_to_the_limit_of_an_operator(
    setting: str, settings: LazySettings, service: Service
) -> None:
    setattr(settings, setting, 100)
    accounts = [f"account{number}@capulet.test" for number in range(101)]
    assert refused(service, registrations(*accounts)) == 1
    assert Device.objects.count() == 100
    Route.objects.update(created_at=F("created_at") - timedelta(hours=1))
    assert refused(service, registrations(accounts[-1])) == 0
    assert Device.objects.count() == 100
