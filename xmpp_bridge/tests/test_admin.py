"""Admin pages of apps and devices: editable fields, the log of changes, and the privacy of users."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.utils import timezone

from notifications.models import Notification
from pushserver.models import AccessRecord
from registrations.models import Route
from tests import factories
from xmpp_bridge.console import operator_actions
from xmpp_bridge.models import App, Device
from xmpp_bridge.tests.talking import APN_TOKEN, T0, Service, error_of, make_app, push2

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
    used, unused = factories.make_device().app, factories.make_xmpp_app()

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
    phone, other = Service().register(), factories.make_device()

    response = admin_client.post("/admin/search/xmpp_bridge/device/", {"q": getattr(phone, way)}, follow=True)

    device = Device.objects.exclude(pk=other.pk).get()
    assert response.redirect_chain[-1][0] == f"{DEVICES}?q={device.pk}"
    assert (str(device.pk) in response.content.decode(), str(other.pk) in response.content.decode()) == (True, False)


@pytest.mark.parametrize("query", ["", "?state__exact=expired", "?app__id__exact={app}"])
def test_every_list_of_devices_is_read_by_an_index(admin_client: Client, query: str) -> None:
    """PostgreSQL plans a forbidden scan or sort only if no index serves the query."""
    app = factories.make_xmpp_app()
    for number in range(4):
        factories.make_device(app=app, at=timezone.now() - timedelta(days=number))
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off; SET LOCAL enable_bitmapscan = off")
        conditions = {"": "TRUE", "?state__exact=expired": "state = 'expired'"}.get(query, f"app_id = {app.pk}")
        cursor.execute(
            f"EXPLAIN SELECT registered_at, id FROM xmpp_bridge_device WHERE {conditions} "
            "ORDER BY registered_at DESC, id DESC LIMIT 51"
        )
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert admin_client.get(f"{DEVICES}{query.format(app=app.pk)}").status_code == 200
    assert "Seq Scan" not in plan, plan
    assert "Sort" not in plan, plan


# Operator actions -----------------------------------------------------------------------------------------------------


def make_waiting(device: Device) -> Notification:
    push = {"public_key_hash": b"", "installation_id": str(device.pk), "grade": "normal"}
    return factories.make_notification(state="retrying", route=device.route, **push)


def registered() -> tuple[Service, Any, Device]:
    make_app()
    service = Service()
    return service, service.register(), Device.objects.get()


def test_a_removed_device_leaves_no_address_and_its_server_gets_gone() -> None:
    service, phone, device = registered()
    waiting = make_waiting(device)

    assert operator_actions.remove([device.pk], now=T0) == 1

    waiting.refresh_from_db()
    assert (waiting.state, Route.objects.exists()) == ("withdrawn", False)
    assert error_of(service.receive(push2(phone.client))) == ("cancel", "gone")
    assert operator_actions.remove([device.pk], now=T0) == 0


def test_a_removed_device_that_registers_again_gets_another_row() -> None:
    service, phone, device = registered()
    operator_actions.remove([device.pk], now=T0)

    again = service.register()

    assert again.client != phone.client
    assert Device.objects.filter(state="active").exclude(pk=device.pk).count() == 1


def test_each_end_of_a_device_that_was_enabled_again_is_announced() -> None:
    service, phone, device = registered()
    assert service.receive(push2(phone.client)) is None  # sets the address that announces its end

    ends = []
    for _ in range(2):
        assert operator_actions.disable([device.pk], now=T0) == 1
        ended = service.find_ended()
        ends.append(len(service.write_ends(ended)))
        service.note_announced(ended)
        assert operator_actions.enable([device.pk], now=T0) == 1

    assert ends == [1, 1]
    assert service.receive(push2(phone.client, stanza_id="another")) is None


def test_a_disabled_device_is_enabled_when_its_app_registers_again() -> None:
    service, phone, device = registered()
    operator_actions.disable([device.pk], now=T0)

    assert service.register().client == phone.client

    assert Route.objects.get().state == "active"
    assert operator_actions.enable([device.pk], now=T0) == 0
