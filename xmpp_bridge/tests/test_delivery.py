"""Delivery from the stanza to gorush, its trace, and the way back from gorush's answer to the user's server."""

import itertools
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import orjson
import pytest
from django.conf import LazySettings
from django.db import connection
from django.utils import timezone
from prometheus_client import REGISTRY, generate_latest

from kit.http import Answer
from notifications.gateways.gorush.client import GorushGateway
from notifications.messages import Outcome, Push, Result
from notifications.models import Attempt, Channel, Notification, OpenNotification
from notifications.policy import MIN_DEAD_TOKENS
from pushserver.console.xmpp.operations import DisableDevice, RemoveDevice
from registrations.models import Route
from tests.rig.collector import attributes, collected
from tests.rig.delivering import DeliveryProcess, RecordingGateway
from xmpp_bridge import devices
from xmpp_bridge.codec.elements import parse
from xmpp_bridge.devices import find_ended
from xmpp_bridge.models import Device
from xmpp_bridge.tests.talking import (
    APN_TOKEN,
    CALL_TOKEN,
    FORWARDED,
    SERVER,
    SERVICE,
    Registered,
    Service,
    disabled_client,
    encrypted,
    error_of,
    publish,
    push2,
    rfc8291,
    summary,
)

pytestmark = pytest.mark.django_db
_COUNTED = itertools.count(1)
TAKEN = {"success": "ok", "counts": 1, "logs": []}


class Gorush(GorushGateway):
    """The gateway of gorush, with a gorush whose answers the test computes."""

    def __init__(self, answer: Callable[[dict[str, Any]], dict[str, Any]] = lambda _: TAKEN) -> None:
        self.sent: list[dict[str, Any]] = []

        async def request(_method: str, _url: str, *, body: bytes, **_options: Any) -> Answer:
            [notification] = orjson.loads(body)["notifications"]
            self.sent.append(notification)
            return Answer(200, {}, orjson.dumps(answer(notification)))

        super().__init__(["http://gorush.test"], Mock(request=request))


def refusing(error: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def answer(notification: dict[str, Any]) -> dict[str, Any]:
        log = {"type": "failed-push", "platform": "ios", "token": notification["tokens"][0], "error": error}
        return {"success": "ok", "counts": 1, "logs": [log | {"notif_id": notification["notif_id"]}]}

    return answer


@pytest.fixture
def phone(service: Service) -> Registered:
    return service.register(voip_token=CALL_TOKEN)


def deliver(gorush: Gorush) -> list[dict[str, Any]]:
    deliverer = DeliveryProcess(gorush)
    deliverer.process_backlog()
    deliverer.process_backlog()  # a push that was refused with its payload is due again at once
    return gorush.sent


@pytest.mark.requirement("XB6", "XB7", "X6", "X7")
def test_a_ciphertext_arrives_bit_by_bit_and_one_that_is_too_large_becomes_a_wake_up_with_a_marker(
    service: Service, phone: Registered
) -> None:
    text = "QUJD" * 984  # the largest payload of mod_push2
    service.receive_all(push2(phone.client, rfc8291(text)), push2(phone.client, rfc8291("QUJD" * 1024)))
    sent, wake = sorted(deliver(Gorush()), key=lambda each: each["data"]["k"])
    assert sent["data"]["e"] == text
    assert (sent["tokens"], sent["topic"], sent["push_type"]) == ([APN_TOKEN], "org.example.chat", "alert")
    assert sent["production"] is True
    assert (wake["data"]["k"], wake["data"]["x"], "e" in wake["data"]) == ("wake", "truncated", False)


def test_a_call_goes_to_the_token_for_calls_and_when_that_is_dead_to_the_other(
    service: Service, phone: Registered
) -> None:
    service.receive(push2(phone.client, encrypted(voip=True), attributes="priority='high'"))
    gorush = Gorush(lambda sent: refusing("Unregistered")(sent) if sent["push_type"] == "voip" else TAKEN)
    first, second = deliver(gorush)
    assert (first["tokens"], first["topic"]) == ([CALL_TOKEN], "org.example.chat.voip")
    assert (second["tokens"], second["push_type"]) == ([APN_TOKEN], "alert")
    assert [attempt.code for attempt in Attempt.objects.order_by("number")] == ["dead_call_token", ""]
    assert (Notification.objects.get().state, Route.objects.get().state) == ("delivered", "active")


@pytest.mark.parametrize("wrong", [{}, {"environment": "development"}], ids=["gorush's", "the app's"])
def test_devices_of_one_domain_outlive_a_wrong_environment(service: Service, wrong: dict[str, str]) -> None:
    phones = dict.fromkeys(f"{number:064x}" for number in range(25))

    def push_to_all(gorush: Gorush, **fields: str) -> None:
        for token in phones:
            device = service.register(token=token, sender=f"{token[-2:]}@capulet.test/phone", **fields)
            service.receive(push2(device.client, encrypted("QUJD" * next(_COUNTED))))
        deliver(gorush)

    push_to_all(Gorush())
    push_to_all(Gorush(refusing("BadDeviceToken")), **wrong)
    assert Attempt.objects.filter(outcome="dead").count() >= len(phones)
    # Results may come in several batches, and fewer than 20 deaths in an hour are believed (decision 0127).
    assert Route.objects.filter(state="active").count() > len(phones) - MIN_DEAD_TOKENS
    assert Channel.objects.get().deaths_distrusted_since is not None


def test_a_phone_counts_once_with_all_of_its_registrations(service: Service) -> None:
    sandbox = {"environment": "development"}
    for number, fields in enumerate(({}, {"voip_token": CALL_TOKEN}, {"voip_token": "ef" * 32}, sandbox)):
        service.register(sender=f"number{number}@capulet.test/phone", **fields)
    assert len(set(Route.objects.values_list("address_digest", flat=True))) == 1


def die(_service: Service) -> None:
    deliver(Gorush(refusing("Unregistered")))
    assert Route.objects.get().state == "disabled"


def unregister(service: Service) -> None:
    service.command("unregister-push-apns", {"device-id": "phone"})


def expire(_service: Service) -> None:
    now = timezone.now()
    assert sum(devices.expire(now=now + timedelta(days=91), keep=timedelta(days=90))) == 1


def remove(_service: Service) -> None:
    device = Device.objects.get()
    assert [RemoveDevice().run([device], by="ann").is_change for _ in range(2)] == [True, False]
    assert (Notification.objects.get().state, Route.objects.exists()) == ("withdrawn", False)


def disable_and_unregister(service: Service) -> None:
    DisableDevice().run([Device.objects.get()], by="ann")
    unregister(service)


@pytest.mark.requirement("XB10", "X10")
@pytest.mark.parametrize("end", [die, unregister, expire, remove, disable_and_unregister])
def test_the_end_of_a_device_is_announced_once_and_then_answers_each_later_push(
    service: Service, phone: Registered, end: Callable[[Service], None]
) -> None:
    service.receive(push2(phone.client, to=f"5891b5b522@{SERVICE}"))
    end(service)
    ended = service.find_ended()
    [announcement] = [parse(each) for each in service.write_ends(ended)]
    assert (announcement.get("to"), announcement.get("from")) == (SERVER, f"5891b5b522@{SERVICE}")
    assert (error_of(announcement), disabled_client(announcement)) == (("cancel", "gone"), phone.client)
    assert len(service.write_ends(service.find_ended())) == 1  # it is not recorded yet
    service.note_announced(ended)
    assert service.find_ended() == []
    if end is die:
        unregister(service)
        assert service.find_ended() == []
    assert disabled_client(service.ask(push2(phone.client, encrypted()))) == phone.client


def test_a_server_that_pushes_by_xep_0357_gets_the_end_with_its_next_push_only(
    service: Service, phone: Registered
) -> None:
    service.receive(publish(phone.node, phone.secret))
    deliver(Gorush(refusing("Unregistered")))
    ended = find_ended()
    assert (len(ended), service.write_ends(ended)) == (1, [])
    assert error_of(service.receive(publish(phone.node, phone.secret))) == ("cancel", "item-not-found")


def test_a_device_that_nobody_uses_for_90_days_expires_and_is_forgotten_later(
    service: Service, phone: Registered
) -> None:
    used = service.register(device_id="used")
    service.receive(push2(used.client))
    now, keep = timezone.now(), timedelta(days=90)
    Device.objects.update(registered_at=now - timedelta(days=91))
    assert sum(devices.expire(now=now, keep=keep)) == 1
    assert sorted(Device.objects.values_list("state", flat=True)) == ["active", "expired"]
    assert Route.objects.count() == 1
    assert disabled_client(service.ask(push2(phone.client))) == phone.client
    assert sum(devices.purge(now=now + timedelta(days=91), keep=keep)) == 1
    assert error_of(service.receive(push2(phone.client))) == ("cancel", "item-not-found")


@pytest.mark.django_db(transaction=True)
def test_a_push_and_its_retry_are_one_trace(
    service: Service, phone: Registered, settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collected(settings, monkeypatch) as collector:
        service.receive(push2(phone.client))
        deliverer = DeliveryProcess(RecordingGateway(fail_once))
        deliverer.process_backlog()
        OpenNotification.objects.update(due_at=timezone.now())
        deliverer.process_backlog()
        collector.finish()
        [trace] = [spans for spans in collector.traces().values() if spans[0].name == "accept"]
    once = ["Due", "send", "Results"]
    assert [span.name for span in trace] == ["accept", *once, *once]
    sent = [attributes(span.attributes) for span in trace if span.name == "send"]
    assert [shown["pushserver.outcome"] for shown in sent] == ["transient", "delivered"]
    assert [shown["pushserver.attempt"] for shown in sent] == [1, 2]
    assert attributes(trace[0].attributes) == {"pushserver.bridge": "xmpp"}


def fail_once(push: Push) -> Result:
    return Result(Outcome.TRANSIENT if push.attempt_number == 1 else Outcome.DELIVERED, "code", latency_ms=7)


# The promise of docs/xmpp.md: no JID, no sender and no text of a user is anywhere but in the stanza ------------------

TEXT = "Wherefore art thou?"
USERS = ("juliet", "romeo", "balcony", "desk", "name-of-the-phone", TEXT)
CIPHERTEXT = "c2VjcmV0" * 8


def tables() -> str:
    """Return every value of every table, as text. Bytes are in hexadecimal digits."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
        rows = []
        for (table,) in cursor.fetchall():
            cursor.execute(f'SELECT row_to_json(t)::text FROM "{table}" AS t')
            rows += [row for (row,) in cursor.fetchall()]
    return "\n".join(rows)


def found(words, text: str) -> list[str]:
    return [word for word in words if word in text or word.encode().hex() in text]


@pytest.mark.requirement("XB17", "X17")
def test_no_user_is_in_tables_logs_metrics_or_pushes(service: Service, caplog, capsys) -> None:
    gorush = Gorush()
    with caplog.at_level(logging.DEBUG):
        phone = service.register(device_id="name-of-the-phone", voip_token=CALL_TOKEN)
        reported = summary(last_message_body=TEXT, last_message_sender="romeo@capulet.test/desk")
        service.receive_all(
            push2(phone.client, FORWARDED, sender="juliet@capulet.test"),
            push2(phone.client, encrypted(CIPHERTEXT)),
            publish(phone.node, phone.secret, reported),
            push2(phone.client, sender="romeo@capulet.test/desk"),
            push2(phone.client, encrypted("juliet@capulet.test")),
            publish("juliet@capulet.test", "romeo", reported),
        )
        waiting = tables()
        DeliveryProcess(gorush).process_backlog()
    logged = caplog.text + "".join(capsys.readouterr())
    sent, kept, counted = str(gorush.sent), tables(), generate_latest(REGISTRY).decode()
    assert [found(USERS, text) for text in (waiting, kept, logged, sent, counted)] == [[]] * 5
    secrets = (phone.client, phone.secret, APN_TOKEN, CALL_TOKEN)
    assert [found(secrets, text) for text in (waiting, kept, logged, counted)] == [[]] * 4
    assert "capulet" not in logged + counted
    assert found([CIPHERTEXT], waiting) == found([CIPHERTEXT], sent) == [CIPHERTEXT]
    assert found([CIPHERTEXT], kept + logged + counted) == []
    assert Notification.objects.filter(message__isnull=False).count() == 0
