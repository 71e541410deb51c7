"""Delivery from the stanza to the request to gorush, and from gorush's answer to the answer to the user's server."""

import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx
import orjson
import pytest
from django.utils import timezone

from notifications.gateways.gorush.sending.client import GorushGateway
from notifications.models import Attempt, Channel, Notification
from notifications.queues import disabling
from registrations.models import Route
from tests.delivering import DeliveryProcess
from xmpp_bridge.codec.elements import parse
from xmpp_bridge.component.announcing import find_ended
from xmpp_bridge.console import operator_actions
from xmpp_bridge.devices import retention
from xmpp_bridge.models import Device
from xmpp_bridge.tests.talking import (
    APN_TOKEN,
    CALL_TOKEN,
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
)

pytestmark = pytest.mark.django_db
_COUNTED = itertools.count(1)
TAKEN = {"success": "ok", "counts": 1, "logs": []}


class Gorush(GorushGateway):
    """The gateway of gorush, with a gorush whose answers the test computes."""

    def __init__(self, answer: Callable[[dict[str, Any]], dict[str, Any]] = lambda _: TAKEN) -> None:
        self.sent: list[dict[str, Any]] = []

        def respond(request: httpx.Request) -> httpx.Response:
            [notification] = orjson.loads(request.content)["notifications"]
            self.sent.append(notification)
            return httpx.Response(200, json=answer(notification))

        client = httpx.AsyncClient(transport=httpx.MockTransport(respond))
        super().__init__(["http://gorush.test"], client)


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
def test_a_ciphertext_arrives_bit_by_bit(service: Service, phone: Registered) -> None:
    text = "QUJD" * 984  # the largest payload of mod_push2
    service.receive(push2(phone.client, rfc8291(text)))
    [sent] = deliver(Gorush())
    assert sent["data"]["e"] == text
    assert (sent["tokens"], sent["topic"], sent["push_type"]) == ([APN_TOKEN], "org.example.chat", "alert")
    assert sent["production"] is True


def test_a_payload_that_is_too_large_becomes_a_wake_up_with_a_marker(service: Service, phone: Registered) -> None:
    service.receive(push2(phone.client, rfc8291("QUJD" * 1024)))
    [sent] = deliver(Gorush())
    assert (sent["data"]["k"], sent["data"]["x"]) == ("wake", "truncated")
    assert "e" not in sent["data"]


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
    assert set(Route.objects.values_list("state", flat=True)) == {"active"}


def test_a_phone_counts_once_with_all_of_its_registrations(service: Service) -> None:
    sandbox = {"environment": "development"}
    for number, fields in enumerate(({}, {"voip_token": CALL_TOKEN}, {"voip_token": "ef" * 32}, sandbox)):
        service.register(sender=f"number{number}@capulet.test/phone", **fields)
    assert len(set(Route.objects.values_list("address_digest", flat=True))) == 1


def test_a_payload_that_apple_refuses_is_left_out_and_the_route_stays(service: Service, phone: Registered) -> None:
    service.receive(push2(phone.client, encrypted()))
    gorush = Gorush(lambda sent: refusing("PayloadTooLarge")(sent) if "e" in sent["data"] else TAKEN)
    assert [sent["data"]["k"] for sent in deliver(gorush)] == ["msg", "wake"]
    assert Route.objects.get().state == "active"


@pytest.mark.requirement("XB10", "X10")
def test_a_dead_token_is_announced_and_then_answers_each_later_push(service: Service, phone: Registered) -> None:
    service.receive(push2(phone.client, to=f"5891b5b522@{SERVICE}"))
    deliver(Gorush(refusing("Unregistered")))
    assert Route.objects.get().state == "disabled"
    ended = service.find_ended()
    [announcement] = [parse(each) for each in service.write_ends(ended)]
    assert (announcement.get("to"), announcement.get("from")) == (SERVER, f"5891b5b522@{SERVICE}")
    assert announcement.get("id")
    assert (error_of(announcement), disabled_client(announcement)) == (("cancel", "gone"), phone.client)
    service.note_announced(ended)
    assert service.find_ended() == []
    answer = service.receive(push2(phone.client, encrypted()))
    assert answer is not None
    assert disabled_client(answer) == phone.client


def unregister(service: Service) -> None:
    service.command("unregister-push-apns", {"device-id": "phone"})


def expire(_service: Service) -> None:
    now = timezone.now()
    assert sum(retention.expire(now=now + timedelta(days=91), keep=timedelta(days=90))) == 1


def remove(_service: Service) -> None:
    assert operator_actions.remove([Device.objects.get().pk], now=timezone.now()) == 1


def disable_and_unregister(service: Service) -> None:
    operator_actions.disable([Device.objects.get().pk], now=timezone.now())
    unregister(service)


@pytest.mark.requirement("XB10", "X10")
@pytest.mark.parametrize("end", [unregister, expire, remove, disable_and_unregister])
def test_a_device_that_ends_is_announced_once_as_a_dead_token_is(
    service: Service, phone: Registered, end: Callable[[Service], None]
) -> None:
    service.receive(push2(phone.client, to=f"5891b5b522@{SERVICE}"))
    end(service)
    ended = service.find_ended()
    [announcement] = [parse(each) for each in service.write_ends(ended)]
    assert (announcement.get("to"), announcement.get("from")) == (SERVER, f"5891b5b522@{SERVICE}")
    assert (error_of(announcement), disabled_client(announcement)) == (("cancel", "gone"), phone.client)
    service.note_announced(ended)
    assert service.find_ended() == []


def test_an_end_that_was_announced_before_the_device_was_removed_is_not_announced_again(
    service: Service, phone: Registered
) -> None:
    service.receive(push2(phone.client))
    deliver(Gorush(refusing("Unregistered")))
    service.note_announced(service.find_ended())
    unregister(service)
    assert service.find_ended() == []


def test_a_server_that_pushes_by_xep_0357_gets_the_end_with_its_next_push_only(
    service: Service, phone: Registered
) -> None:
    service.receive(publish(phone.node, phone.secret))
    deliver(Gorush(refusing("Unregistered")))
    ended = find_ended()
    assert (len(ended), service.write_ends(ended)) == (1, [])
    assert error_of(service.receive(publish(phone.node, phone.secret))) == ("cancel", "item-not-found")


def test_an_end_that_is_not_recorded_as_announced_is_announced_again(service: Service, phone: Registered) -> None:
    service.receive(push2(phone.client))
    Route.objects.update(state="disabled")
    assert len(service.write_ends(service.find_ended())) == len(service.write_ends(service.find_ended())) == 1


@pytest.mark.requirement("XB16", "X16")
def test_a_route_that_fails_for_72_hours_beside_others_that_work_is_disabled_and_announced(
    service: Service, phone: Registered
) -> None:
    service.receive(push2(phone.client))
    route, now = Route.objects.get(), timezone.now()
    for _ in range(14):
        now += timedelta(hours=6)
        disabling.note_failure([route.pk], channel_success_at=now - timedelta(minutes=1), now=now)
    assert Route.objects.get().disabled_reason == "failing"
    assert len(service.write_ends(service.find_ended())) == 1


@pytest.mark.requirement("XB16", "X16")
def test_an_outage_of_the_provider_disables_nobody(service: Service, phone: Registered) -> None:
    service.receive(push2(phone.client))
    route, start = Route.objects.get(), timezone.now()
    for hours in range(0, 24 * 10, 6):
        disabling.note_failure([route.pk], channel_success_at=start, now=start + timedelta(hours=hours, seconds=1))
    assert Route.objects.get().state == "active"


@pytest.mark.requirement("XB16", "X16")
def test_fewer_than_eight_failures_never_disable(service: Service, phone: Registered) -> None:
    """At most six hours count between two failures, so that 72 hours take thirteen failures."""
    service.receive(push2(phone.client))
    route, now = Route.objects.get(), timezone.now()
    for _ in range(8):
        now += timedelta(hours=30)
        disabling.note_failure([route.pk], channel_success_at=now - timedelta(minutes=1), now=now)
    assert Route.objects.get().state == "active"


def test_a_wrong_set_up_pauses_the_app_and_counts_against_no_route(service: Service, phone: Registered) -> None:
    service.receive(push2(phone.client))
    deliver(Gorush(refusing("InvalidProviderToken")))
    route = Route.objects.get()
    assert (route.state, route.failing_since) == ("active", None)
    assert Notification.objects.get().state == "retrying"
    assert Channel.objects.count() <= 1


def test_a_device_that_nobody_uses_for_90_days_expires_and_is_forgotten_later(
    service: Service, phone: Registered
) -> None:
    used = service.register(device_id="used")
    service.receive(push2(used.client))
    now, keep = timezone.now(), timedelta(days=90)
    Device.objects.update(registered_at=now - timedelta(days=91))
    assert sum(retention.expire(now=now, keep=keep)) == 1
    assert sorted(Device.objects.values_list("state", flat=True)) == ["active", "expired"]
    assert Route.objects.count() == 1
    answer = service.receive(push2(phone.client))
    assert answer is not None
    assert disabled_client(answer) == phone.client
    assert sum(retention.purge(now=now + timedelta(days=91), keep=keep)) == 1
    assert error_of(service.receive(push2(phone.client))) == ("cancel", "item-not-found")
