"""Admin pages of apps and devices, operator actions on devices, and the recorded history of devices."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.utils import timezone

from notifications.queues import breakers
from pushserver.console.models import AccessRecord
from pushserver.console.notifications.operations import enable_routes
from pushserver.console.xmpp.operations import DisableDevice, EnableDevice
from registrations.models import RegistrationEvent, Route
from tests.rig import rows
from xmpp_bridge import devices
from xmpp_bridge.models import App, Device
from xmpp_bridge.tests.talking import APN_TOKEN, FCM_TOKEN, T0, Service, make_app, push2

pytestmark = pytest.mark.django_db
APPS, DEVICES = "/admin/xmpp_bridge/app/", "/admin/xmpp_bridge/device/"
FORM = {"slug": "chat", "app_topic": "org.example.chat", "style": "tigase", "text": "New message", "sound": ""}


def test_an_app_that_was_added_can_be_registered_in(admin_client: Client) -> None:
    before = timezone.now()
    assert admin_client.post(f"{APPS}add/", FORM).status_code == 302
    app = App.objects.get()
    assert (app.slug, app.style, app.takes_firebase, app.created_at >= before) == ("chat", "tigase", False, True)
    assert "slug: 'chat', app_topic: 'org.example.chat'" in LogEntry.objects.get().get_change_message()
    assert Service().register().client
    listed = admin_client.get(APPS).content.decode()
    assert f"{DEVICES}?app__id__exact={app.pk}" in listed
    assert str(Device.objects.get().pk) in admin_client.get(f"{DEVICES}?app__id__exact={app.pk}").content.decode()


@pytest.mark.parametrize(
    "fields",
    [
        *({"slug": ""}, {"slug": "No Blanks"}, {"text": "x" * 41}, {"sound": "x" * 41}, {"style": "loud"}),
        {"passes_texts": "on", "refuses_texts": "on"},
    ],
)
def test_an_invalid_app_is_refused_and_not_stored(admin_client: Client, fields: dict[str, str]) -> None:
    response = admin_client.post(f"{APPS}add/", FORM | fields)
    assert (response.status_code, App.objects.count()) == (200, 0)
    assert "errornote" in response.content.decode() or "correct the error" in response.content.decode()


def test_a_change_is_logged_and_the_slug_stays(admin_client: Client) -> None:
    app = make_app(takes_firebase=False)
    sent = FORM | {"slug": "renamed", "style": "generic", "sound": "default", "is_retired": "on"}
    assert admin_client.post(f"{APPS}{app.pk}/change/", sent).status_code == 302
    app.refresh_from_db()
    assert (app.slug, app.is_retired) == ("chat", True)
    assert LogEntry.objects.get().get_change_message() == "is_retired: False → True"


def test_only_an_app_that_never_had_a_device_is_deleted(admin_client: Client) -> None:
    used, unused = rows.make_device().app, rows.make_xmpp_app()
    refused = admin_client.post(f"{APPS}{used.pk}/delete/", {"post": "yes"})
    deleted = admin_client.post(f"{APPS}{unused.pk}/delete/", {"post": "yes"})
    assert (refused.status_code, deleted.status_code) == (403, 302)
    assert App.objects.get() == used


def test_no_page_shows_who_has_a_device(admin_client: Client) -> None:
    make_app()
    phone = Service().register(device_id="name-of-the-phone")
    device = Device.objects.get()
    page = admin_client.get(f"{DEVICES}{device.pk}/change/").content.decode()
    listed = admin_client.get(DEVICES).content.decode()
    secrets = ("juliet", "balcony", "name-of-the-phone", phone.client, phone.secret, phone.node, APN_TOKEN)
    digests = [bytes(key).hex()[:16] for key in (device.device_key, device.owner_key, device.route.address_digest)]
    assert [word for word in (*secrets, *digests) if word in page + listed] == []
    assert ("capulet.test" in page, "capulet.test" in listed) == (True, False)
    assert AccessRecord.objects.get().page == "xmpp_bridge.device"


@pytest.mark.parametrize("way", ["client", "node"])
def test_a_device_is_found_in_its_list_by_its_credentials(admin_client: Client, way: str) -> None:
    make_app()
    phone, other = Service().register(), rows.make_device()
    response = admin_client.post("/admin/search/xmpp_bridge/device/", {"q": getattr(phone, way)}, follow=True)
    device = Device.objects.exclude(pk=other.pk).get()
    assert response.redirect_chain[-1][0] == f"{DEVICES}?q={device.pk}"
    assert (str(device.pk) in response.content.decode(), str(other.pk) in response.content.decode()) == (True, False)


# Operator actions -----------------------------------------------------------------------------------------------------


def registered() -> tuple[Service, Any, Device]:
    make_app()
    service = Service()
    return service, service.register(), Device.objects.get()


def test_each_end_of_a_device_that_was_enabled_again_is_announced() -> None:
    service, phone, device = registered()
    assert service.receive(push2(phone.client)) is None  # sets the address that announces its end
    ends = []
    for _ in range(2):
        assert DisableDevice().run([device], by="ann").is_change
        ended = service.find_ended()
        ends.append(len(service.write_ends(ended)))
        service.note_announced(ended)
        assert EnableDevice().run([device], by="ann").is_change
    assert ends == [1, 1]
    assert service.receive(push2(phone.client, stanza_id="another")) is None
    assert not EnableDevice().run([device], by="ann").is_change


# History of devices, from which the churn reports are made ------------------------------------------------------------


def history() -> list[tuple[str, int, str]]:
    """Return the recorded events. All of them are of this bridge."""
    events = RegistrationEvent.objects.order_by("pk")
    assert {event.bridge for event in events} <= {"xmpp"}
    return [(event.kind, event.token_type, event.app_topic) for event in events]


def test_each_registration_and_the_end_are_recorded_under_one_pseudonym_until_the_device_ends(service: Service) -> None:
    service.register()
    service.register()
    yesterday = timezone.now() - timedelta(days=1)
    Device.objects.update(registered_at=yesterday)
    service.register()
    service.register()
    service.register(token="ef" * 32)
    service.register(platform="fcm")
    service.command("unregister-push-fcm", {"device-id": "phone"})
    apple, firebase = (1, "org.example.chat"), (2, "")
    events = [
        ("registered", *apple),
        ("refreshed", *apple),
        ("token_changed", *apple),
        ("token_changed", *firebase),
        ("unregistered", *firebase),
    ]
    assert history() == events
    [pseudonym] = set(RegistrationEvent.objects.values_list("pseudonym", flat=True))
    assert pseudonym != Device.objects.get().pk
    assert not Route.objects.exists()  # so that nothing leads from the pseudonym to the device any more
    service.register()
    assert history() == [*events, ("registered", *apple)]
    assert RegistrationEvent.objects.exclude(pseudonym=pseudonym).count() == 1


def test_the_death_the_revival_and_the_expiry_of_a_token_are_recorded(service: Service) -> None:
    service.register()
    route = Route.objects.get()
    breakers.disable_dead(route.pk, route.generation, route.address_digest, "device_gone", now=T0)
    enable_routes([route.pk], now=T0)
    breakers.disable_dead(route.pk, route.generation, route.address_digest, "device_gone", now=T0)
    service.register()
    registered_at = Device.objects.get().registered_at
    assert sum(devices.expire(now=registered_at + timedelta(days=91), keep=timedelta(days=90))) == 1
    kinds = [kind for kind, *_ in history()]
    assert kinds == ["registered", "token_died", "revived", "token_died", "refreshed", "expired"]


def test_a_device_without_history_begins_one_with_its_next_registration(service: Service) -> None:
    service.register(platform="fcm")
    Route.objects.update(pseudonym=None)
    RegistrationEvent.objects.all().delete()
    route = Route.objects.get()
    breakers.disable_dead(route.pk, route.generation, route.address_digest, "device_gone", now=T0)
    assert history() == []
    service.register(platform="fcm", token=FCM_TOKEN)
    assert history() == [("registered", 2, "")]


def test_the_page_of_a_device_leads_to_its_history(service: Service, admin_client: Client) -> None:
    service.register()
    page = admin_client.get(f"/admin/xmpp_bridge/device/{Device.objects.get().pk}/change/").content.decode()
    link = f"/admin/registrations/registrationevent/?q={Route.objects.get().pseudonym}"
    assert link in page
    assert "registered" in admin_client.get(link).content.decode()
