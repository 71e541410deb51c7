"""Registration of devices by command: the answers to apps, the stored rows, and every refusal."""

from datetime import timedelta

import pytest
from django.conf import LazySettings
from django.utils import timezone

from notifications.models import Notification
from registrations.encryption import Purpose, keyring
from registrations.messages import DeviceAddress
from registrations.models import RegistrationEvent, Route
from tests.rig.statements import statements
from xmpp_bridge.codec.elements import NS
from xmpp_bridge.identity import client_keys, verify_client, verify_node
from xmpp_bridge.limits import Rates
from xmpp_bridge.models import App, Device
from xmpp_bridge.rules import Domains
from xmpp_bridge.tests.talking import (
    APN_TOKEN,
    CALL_TOKEN,
    FCM_TOKEN,
    JULIET,
    SERVICE,
    Service,
    error_of,
    make_app,
    push2,
    result_of,
)

pytestmark = pytest.mark.django_db
ROMEO = "romeo@verona.test/x"
GOOD = {"token": APN_TOKEN, "device-id": "phone"}


@pytest.fixture(autouse=True)
def _app() -> None:
    make_app()


@pytest.fixture
def service() -> Service:
    return Service()


def address_of(route: Route) -> bytes:
    return keyring().decrypt(Purpose.ADDRESS, route.address_encrypted)


def test_an_app_registers_and_gets_its_credentials(service: Service) -> None:
    before = timezone.now()
    reported = service.register(voip_token=CALL_TOKEN.upper(), environment="development")
    device = Device.objects.get()
    assert reported.jid == SERVICE
    assert verify_client(reported.client, client_keys()) == device.pk
    assert verify_node(reported.node, reported.secret, client_keys()) == device.pk
    assert (device.domain, device.state, device.route.gateway) == ("capulet.test", "active", "gorush")
    assert device.registered_at >= before
    assert (device.route.token_type, device.route.app_topic) == (1, "org.example.chat")
    assert address_of(device.route) == DeviceAddress(APN_TOKEN, CALL_TOKEN, "development").encode()


def test_a_device_of_firebase_has_one_token_and_no_topic(service: Service) -> None:
    service.register(platform="fcm")
    route = Route.objects.get()
    assert (route.token_type, route.app_topic, address_of(route)) == (2, "", FCM_TOKEN.encode())


@pytest.mark.requirement("XB4", "X4")
def test_the_same_device_keeps_its_client_string_and_gets_the_new_token(service: Service) -> None:
    first = service.register()
    again = service.register(token="ef" * 32, sender="juliet@CAPULET.test/another")
    assert again == first
    older = {"token": "ef" * 32, "android-id": "phone"}  # the older name of the field
    assert result_of(service.command("register-push-apns", older))["client"] == first.client
    assert Route.objects.get().generation == 3
    assert address_of(Route.objects.get()) == DeviceAddress("ef" * 32, environment="production").encode()


def test_another_device_account_or_app_is_another_route(service: Service) -> None:
    make_app("talk")
    reported = [
        service.register(app="chat"),
        service.register(app="talk"),
        service.register(app="chat", device_id="tablet"),
        service.register(app="chat", sender="romeo@capulet.test/x"),
        service.register(app="chat", sender="juliet@montague.test/x"),
    ]
    assert len({each.client for each in reported}) == Route.objects.count() == 5


@pytest.mark.requirement("XB20")
def test_registering_again_enables_a_disabled_route(service: Service) -> None:
    first = service.register()
    Route.objects.update(state="disabled", disabled_reason="Unregistered", is_end_awaited=False)
    assert service.register() == first
    route = Route.objects.get()
    assert (route.state, route.is_end_awaited) == ("active", True)


def test_unregistering_forgets_the_address_and_a_new_registration_has_another_client_string(service: Service) -> None:
    first = service.register()
    service.receive(push2(first.client))
    assert result_of(service.command("unregister-push-apns", {"device-id": "phone"})) == {}
    assert Route.objects.count() == 0
    assert Notification.objects.get().state == "withdrawn"
    assert Device.objects.get().state == "unregistered"
    assert service.register().client != first.client
    assert Device.objects.count() == 2


@pytest.mark.parametrize(
    ("node", "fields", "sender"),
    [
        ("unregister-push-apns", {"device-id": "other"}, JULIET),
        ("unregister-push-apns", {"device-id": "phone"}, "romeo@capulet.test/x"),
        ("unregister-push-fcm", {"device-id": "phone"}, JULIET),
        ("register-push-huawei", GOOD, JULIET),
        ("register-push-apns", GOOD | {"app": "none"}, JULIET),
    ],
)
def test_an_unknown_command_app_or_device_is_not_found(
    service: Service, node: str, fields: dict[str, str], sender: str
) -> None:
    service.register()
    assert error_of(service.command(node, fields, sender=sender)) == ("cancel", "item-not-found")
    assert Device.objects.get().state == "active"


@pytest.mark.parametrize(
    ("node", "fields", "named"),
    [
        ("register-push-apns", {"device-id": "phone"}, "token"),
        ("register-push-apns", GOOD | {"token": "ab" * 31}, "token"),
        ("register-push-apns", GOOD | {"token": "xy" * 32}, "token"),
        ("register-push-apns", GOOD | {"token": f" {APN_TOKEN}"}, "token"),
        ("register-push-apns", GOOD | {"voip-token": "x"}, "voip-token"),
        ("register-push-apns", GOOD | {"environment": "staging"}, "environment"),
        ("register-push-apns", {"token": APN_TOKEN}, "device-id"),
        ("register-push-apns", GOOD | {"device-id": "x" * 256}, "device-id"),
        ("register-push-fcm", {"token": "short", "device-id": "phone"}, "token"),
        ("register-push-fcm", {"token": "x y" * 20, "device-id": "phone"}, "token"),
        ("unregister-push-fcm", {}, "device-id"),
    ],
)
def test_a_bad_field_is_named_and_never_repeated(
    service: Service, node: str, fields: dict[str, str], named: str
) -> None:
    answer = service.command(node, fields)
    assert error_of(answer) == ("modify", "bad-request")
    text = answer.findtext("error/{urn:ietf:params:xml:ns:xmpp-stanzas}text") or ""
    assert text.startswith(f"{named}:")
    assert [value for value in fields.values() if len(value) > 3 and value in text] == []
    assert Device.objects.count() == 0


def test_of_several_apps_one_has_to_be_named_in_the_form_or_by_the_address(service: Service) -> None:
    make_app("talk", app_topic="")
    make_app("word")
    assert error_of(service.command("register-push-apns", GOOD)) == ("modify", "bad-request")
    result_of(service.command("register-push-apns", GOOD, to=f"word@{SERVICE}"))
    assert Device.objects.get().app.slug == "word"
    assert error_of(service.command("register-push-apns", GOOD | {"app": "talk"})) == ("cancel", "item-not-found")
    App.objects.update(is_retired=True)
    assert error_of(service.command("register-push-apns", GOOD)) == ("cancel", "item-not-found")


@pytest.mark.parametrize(
    ("domains", "sender"),
    [
        *((Domains(), sender) for sender in ("capulet.test", "juliet@capulet.test", "capulet.test/server", "no jid/x")),
        *((domains, JULIET) for domains in (Domains(denied={"capulet.test"}), Domains(allowed={"montague.test"}))),
    ],
)
def test_only_a_client_of_an_account_in_a_domain_that_is_served_registers(domains: Domains, sender: str) -> None:
    answer = Service(domains=domains).command("register-push-apns", GOOD, sender=sender)
    assert error_of(answer) == ("auth", "forbidden")


def test_a_command_beyond_a_limit_costs_the_database_nothing() -> None:
    service = Service(Rates(commands_per_hour=1))
    service.register()
    with statements() as sent:
        assert error_of(service.command("register-push-apns", GOOD)) == ("wait", "resource-constraint")
        assert error_of(service.command("nonsense", GOOD)) == ("cancel", "item-not-found")
    assert list(sent) == []


def test_beyond_the_limit_of_all_devices_known_ones_are_registered_and_new_ones_replace_what_was_never_reached(
    service: Service, settings: LazySettings
) -> None:
    settings.XMPP_MAX_DEVICES = 3
    for name in ("one", "two", "three"):
        service.register(device_id=name)
    proven = Route.objects.order_by("pk")[0]
    Route.objects.filter(pk=proven.pk).update(delivered_digest=proven.address_digest)
    new = GOOD | {"device-id": "four"}
    assert error_of(service.command("register-push-apns", new, sender=ROMEO)) == ("wait", "resource-constraint")
    service.register(device_id="two")
    Route.objects.update(created_at=timezone.now() - timedelta(hours=2))
    service.register(device_id="four", sender=ROMEO)
    service.command("unregister-push-apns", {"device-id": "four"}, sender=ROMEO)
    service.register(device_id="five", sender=ROMEO)
    assert Device.objects.count() == Route.objects.count() == 3
    assert Device.objects.filter(route=proven).exists()
    assert RegistrationEvent.objects.filter(kind="expired").count() == 1


@pytest.mark.requirement("XB4", "X4")
def test_a_generic_client_gets_a_form_first(service: Service) -> None:
    make_app("talk")
    answer = service.command("register-push-apns", None, action="execute")
    [command] = answer
    assert command.get("status") == "executing"
    session = command.get("sessionid") or ""
    names = [each.get("var") for each in command.iter(f"{{{NS.DATA_FORM}}}field")]
    assert names == ["token", "device-id", "voip-token", "environment", "app"]
    filled_in = GOOD | {"app": "talk", "voip-token": "", "environment": ""}
    completed = service.command("register-push-apns", filled_in, action="complete", sessionid=session)
    assert completed[0].get("sessionid") == session
    assert result_of(completed)["client"]


def test_a_session_belongs_to_one_client_and_one_command_can_be_cancelled_and_has_no_previous_step(
    service: Service,
) -> None:
    [form] = service.command("register-push-apns", None)
    session = form.get("sessionid") or ""
    others = [
        service.command("register-push-apns", GOOD, sessionid="made-up"),
        service.command("register-push-apns", GOOD, sessionid=session, sender="romeo@verona.test/x"),
        service.command("unregister-push-apns", GOOD, sessionid=session),
        service.command("register-push-apns", GOOD, action="prev"),
    ]
    assert [error_of(each) for each in others] == [("modify", "bad-request")] * 4
    [command] = service.command("register-push-apns", None, action="cancel", sessionid=session)
    assert (command.get("status"), command.get("sessionid")) == ("canceled", session)
    assert Device.objects.count() == 0
    assert result_of(service.command("register-push-apns", GOOD, sessionid=session))["client"]
