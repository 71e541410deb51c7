"""Registration of XMPP devices over HTTP: the same as by command, for operators only, and no account is stored."""

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client
from django.utils import timezone

from pushserver.console.models import AccessRecord, ApiToken
from pushserver.console.xmpp import api
from registrations.models import Route
from xmpp_bridge import devices
from xmpp_bridge.devices import carry_out
from xmpp_bridge.limits import Rates
from xmpp_bridge.models import App, Device
from xmpp_bridge.tests.talking import (
    APN_TOKEN,
    CALL_TOKEN,
    FCM_TOKEN,
    JULIET,
    SERVICE,
    Registered,
    Service,
    make_app,
    push2,
)
from xmpp_bridge.tests.test_delivery import found, tables

REGISTER, UNREGISTER = "/api/v1/xmpp-devices/register/", "/api/v1/xmpp-devices/unregister/"
ACCOUNT = JULIET.partition("/")[0]
DEVICE = {"platform": "apns", "account": ACCOUNT, "device_id": "name-of-the-phone"}
ASKED = {**DEVICE, "token": APN_TOKEN}
pytestmark = pytest.mark.django_db
Post = Callable[..., Any]


@pytest.fixture(autouse=True)
def component(settings: Any) -> None:
    cache.clear()
    settings.XMPP_COMPONENT_JID = SERVICE
    make_app()


def poster(*scopes: str) -> Post:
    """Return a function that posts JSON with an API token of these scopes."""
    name = f"test {ApiToken.objects.count()}"
    text = ApiToken(name=name, scopes=scopes).issue(by="anna", now=timezone.now()).text
    client = Client(headers={"authorization": f"Bearer {text}"})
    return lambda path, asked: client.post(path, json.dumps(asked), "application/json")


@pytest.fixture
def post() -> Post:
    return poster("devices")


def refused(response: Any, status: int) -> Any:
    assert response.headers["Content-Type"] == "application/problem+json"
    assert (response.status_code, response.json()["status"]) == (status, status)
    return response.json()


def test_a_device_registered_over_http_gets_pushes(post: Post) -> None:
    response = post(REGISTER, {**ASKED, "voip_token": CALL_TOKEN, "environment": "development"})
    reported = response.json()
    device = Device.objects.get()
    assert (response.status_code, reported["outcome"], reported["id"]) == (200, "registered", str(device.pk))
    assert (reported["jid"], device.domain) == (SERVICE, "capulet.test")
    assert "no-store" in response.headers["Cache-Control"]
    assert Service().receive(push2(reported["client"])) is None  # accepted
    assert device.route.app_topic == "org.example.chat"


def test_the_answer_is_what_the_command_of_the_app_answers(post: Post) -> None:
    by_command = Service().register(device_id=DEVICE["device_id"])
    by_http = post(REGISTER, ASKED).json()
    assert by_http["outcome"] == "refreshed"
    assert Registered(*(by_http[name] for name in ("jid", "client", "node", "secret"))) == by_command
    assert (Device.objects.count(), Route.objects.get().generation) == (1, 2)


def test_one_of_several_apps_has_to_be_named_also_for_firebase(post: Post) -> None:
    make_app("talk")
    assert list(refused(post(REGISTER, ASKED), 400)["errors"]) == ["app"]
    reported = post(REGISTER, {**DEVICE, "platform": "fcm", "token": FCM_TOKEN, "app": "talk"}).json()
    device = Device.objects.get(pk=reported["id"])
    assert (device.app.slug, device.route.token_type) == ("talk", 2)


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"account": "capulet.test"}, "account"),
        ({"account": JULIET}, "account"),
        ({"account": "a\0@capulet.test"}, "account"),
        ({"account": None}, "account"),
        ({"device_id": ""}, "device_id"),
        ({"device_id": "x" * 256}, "device_id"),
        ({"device_id": "\ud800"}, "device_id"),
        ({"voip_token": "zz"}, "voip_token"),
        ({"platform": "hms"}, "platform"),
    ],
)
def test_a_wrong_field_is_named_and_nothing_is_stored(post: Post, fields: dict[str, Any], wrong: str) -> None:
    reported = refused(post(REGISTER, ASKED | fields), 400)
    assert (list(reported["errors"]), Device.objects.count()) == ([wrong], 0)


def test_a_body_that_is_no_json_object_is_refused(post: Post) -> None:
    for asked in ([], "x", 5, None):
        refused(post(REGISTER, asked), 400)
    text = ApiToken(name="own", scopes=["devices"]).issue(by="anna", now=timezone.now()).text
    client = Client(headers={"authorization": f"Bearer {text}"})
    refused(client.post(REGISTER, "{", "application/json"), 400)
    refused(client.post(REGISTER, ASKED), 415)
    refused(client.get(REGISTER), 405)


def test_every_refusal_says_why(post: Post, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    App.objects.all().delete()
    assert "app of this name" in refused(post(REGISTER, ASKED), 404)["detail"]
    make_app(takes_firebase=False)
    assert "platform" in refused(post(REGISTER, {**ASKED, "platform": "fcm", "token": FCM_TOKEN}), 404)["detail"]
    monkeypatch.setattr(devices, "RATES", Rates(devices_per_user=1))
    assert post(REGISTER, ASKED).status_code == 200
    assert "limit of devices" in refused(post(REGISTER, {**ASKED, "device_id": "another"}), 409)["detail"]
    assert post(REGISTER, ASKED).status_code == 200  # the same device again
    settings.XMPP_DENIED_DOMAINS = ["capulet.test"]
    assert "not served" in refused(post(REGISTER, ASKED), 403)["detail"]
    settings.XMPP_COMPONENT_JID = ""
    assert "XMPP_COMPONENT_JID" in refused(post(REGISTER, ASKED), 409)["detail"]


@pytest.mark.parametrize("path", [REGISTER, UNREGISTER])
def test_only_a_token_with_the_scope_devices_is_accepted(path: str) -> None:
    for scope in set(ApiToken.Scope.values) - {"devices"}:
        refused(poster(scope)(path, ASKED), 403)
    refused(Client().post(path, json.dumps(ASKED), "application/json"), 401)
    assert Device.objects.count() == 0


def test_registering_after_unregistering_makes_another_device_and_each_command_is_recorded(post: Post) -> None:
    first = post(REGISTER, ASKED).json()
    ended = post(UNREGISTER, DEVICE)
    assert (ended.status_code, ended.json()) == (200, {"id": first["id"], "outcome": "unregistered"})
    assert not Route.objects.exists()
    assert "no such device" in refused(post(UNREGISTER, DEVICE), 404)["detail"].lower()
    again = post(REGISTER, ASKED).json()
    assert again["client"] != first["client"]
    caller = f"API token {ApiToken.objects.get()}"
    assert list(AccessRecord.objects.order_by("pk").values_list("page", "object_id", "username")) == [
        ("api.xmpp_device.registered", first["id"], caller),
        ("api.xmpp_device.unregistered", first["id"], caller),
        ("api.xmpp_device.registered", again["id"], caller),
    ]


def test_neither_account_nor_secrets_are_stored_or_logged(post: Post, caplog: Any, capsys: Any) -> None:
    with caplog.at_level(logging.DEBUG):
        reported = post(REGISTER, {**ASKED, "voip_token": CALL_TOKEN}).json()
        post(REGISTER, {**ASKED, "token": "zz"})
        post(REGISTER, {**ASKED, "app": "nothing"})
    logged = caplog.text + "".join(capsys.readouterr())
    words = ("juliet", DEVICE["device_id"], APN_TOKEN, CALL_TOKEN, reported["client"], reported["secret"])
    assert [found(words, text) for text in (tables(), logged)] == [[], []]
    assert "capulet" not in logged


def test_a_collision_with_another_process_that_registers_the_same_device_is_retried(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def collide_once(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        done = carry_out(*arguments, **named)
        if len(calls) == 1:  # another process was first
            device = Device.objects.get()
            same = {"app": device.app, "device_key": device.device_key, "owner_key": device.owner_key}
            Device(domain=device.domain, registered_at=timezone.now(), **same).save()
        return done

    monkeypatch.setattr(api, "carry_out", collide_once)
    assert post(REGISTER, ASKED).json()["outcome"] == "registered"
    assert (len(calls), Device.objects.count()) == (2, 1)
