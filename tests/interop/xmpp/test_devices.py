"""Devices that are registered by commands, through a real server (case 4)."""

import uuid
from dataclasses import replace

import pytest

from tests.interop.xmpp.peers import SERVICE, USER_SERVER
from tests.interop.xmpp.service import Service, android, iphone
from xmpp_bridge.client import (
    Cancelled,
    Device,
    FormAsked,
    Notification,
    Platform,
    Refused,
    Registered,
    Unregistered,
    new_id,
    register,
    registering,
)
from xmpp_bridge.client.elements import DISCO_ITEMS, element

pytestmark = pytest.mark.xmpp

CLIENT_LENGTH = 44


@pytest.mark.requirement("X4")
@pytest.mark.parametrize("make", [android, iphone])
async def test_an_app_registers_through_the_account_of_its_user(push_service: Service, make: type[Device]) -> None:
    device = make()
    async with push_service.peer.account(push_service.peer.user("juliet")) as juliet:
        answer = await register(juliet, SERVICE, device)
    assert isinstance(answer, Registered)
    assert answer.service == SERVICE
    assert len(answer.client) == CLIENT_LENGTH
    assert answer.node
    assert answer.secret


@pytest.mark.requirement("X4")
async def test_a_device_that_registers_again_keeps_its_names_and_changes_its_token(push_service: Service) -> None:
    device = android()
    moved = replace(device, token=android().token)
    async with push_service.user_server() as server:
        first = await server.register("juliet-again", SERVICE, device)
        assert await server.register("juliet-again", SERVICE, moved) == first
        route = await server.route(android())  # another user's route, for its other fields
        route = replace(route, client=first.client)
        server.core.enable(route)
        server.notify(route, Notification())
        await push_service.wait_for_push(moved)
        assert push_service.pushes(device) == []


@pytest.mark.requirement("X4")
@pytest.mark.parametrize("change", ["device", "account", "app"])
async def test_another_device_account_or_app_is_another_route(push_service: Service, change: str) -> None:
    if change == "app" and not push_service.fleet.rows("SELECT 1 FROM xmpp_bridge_app WHERE slug = 'other'"):
        push_service.add_app("other")
    device, user = android(), f"user-{uuid.uuid4().hex}"
    other = {
        "device": replace(device, device_id=uuid.uuid4().hex),
        "account": device,
        "app": replace(device, app="other"),
    }[change]
    async with push_service.user_server() as server:
        first = await server.register(user, SERVICE, device)
        second = await server.register(f"{user}-2" if change == "account" else user, SERVICE, other)
    assert isinstance(first, Registered)
    assert isinstance(second, Registered)
    assert first.client != second.client
    assert first.node != second.node


@pytest.mark.requirement("X4")
async def test_an_unregistered_device_gets_no_push_and_another_client_string_later(push_service: Service) -> None:
    device, user = android(), f"user-{uuid.uuid4().hex}"
    async with push_service.user_server() as server:
        first = await server.register(user, SERVICE, device)
        assert await server.unregister(user, SERVICE, device) == Unregistered()
        assert await server.unregister(user, SERVICE, device) == Refused("cancel", "item-not-found", _any_text(server))
        again = await server.register(user, SERVICE, device)
    assert again.client != first.client


def _any_text(_server: object) -> str:
    class Any(str):
        __slots__ = ()

        def __eq__(self, _other: object) -> bool:
            return True

        __hash__ = str.__hash__

    return Any()


@pytest.mark.requirement("X4")
async def test_a_client_without_fields_gets_a_form_and_fills_it_in(push_service: Service) -> None:
    device = android()
    async with push_service.peer.account(push_service.peer.user("juliet")) as juliet:
        asked = registering.read_answer(await juliet.ask(registering.ask_for_form(SERVICE, Platform.FCM, new_id())))
        assert isinstance(asked, FormAsked)
        assert {"token", "device-id"} <= set(asked.fields)
        assert asked.session_id
        request = registering.register(SERVICE, device, new_id(), session_id=asked.session_id)
        assert isinstance(registering.read_answer(await juliet.ask(request)), Registered)


async def test_a_command_can_be_cancelled(push_service: Service) -> None:
    async with push_service.peer.account(push_service.peer.user("juliet")) as juliet:
        asked = registering.read_answer(await juliet.ask(registering.ask_for_form(SERVICE, Platform.FCM, new_id())))
        request = registering.cancel(SERVICE, Platform.FCM, new_id(), asked.session_id)
        assert registering.read_answer(await juliet.ask(request)) == Cancelled()


@pytest.mark.requirement("X4")
@pytest.mark.parametrize(
    ("device", "shown", "named"),
    [
        (Device(Platform.FCM, "short", "d", "messenger"), "modify/bad-request", "token"),
        (Device(Platform.FCM, "t" * 40 + " ", "d", "messenger"), "modify/bad-request", "token"),
        (Device(Platform.APNS, "xy" * 32, "d", "messenger"), "modify/bad-request", "token"),
        (Device(Platform.APNS, "a" * 65, "d", "messenger"), "modify/bad-request", "token"),
        (Device(Platform.FCM, "t" * 40, "", "messenger"), "modify/bad-request", "device-id"),
        (Device(Platform.FCM, "t" * 40, "d" * 256, "messenger"), "modify/bad-request", "device-id"),
        (Device(Platform.FCM, "t" * 40, "d", "nobodys-app"), "cancel/item-not-found", ""),
        (Device(Platform.APNS, "ab" * 32, "d", "messenger", "staging"), "modify/bad-request", "environment"),
    ],
    ids=["short token", "space", "no hex", "odd", "no device id", "long device id", "unknown app", "environment"],
)
async def test_a_wrong_field_is_named(push_service: Service, device: Device, shown: str, named: str) -> None:
    async with push_service.user_server() as server:
        answer = await server.register(f"user-{uuid.uuid4().hex}", SERVICE, device)
    assert isinstance(answer, Refused)
    assert str(answer) == shown
    assert named in answer.text
    assert device.token not in answer.text


async def test_a_bare_domain_registers_nothing(push_service: Service) -> None:
    async with push_service.user_server() as server:
        request = registering.register(SERVICE, android(), new_id())
        request.set("from", USER_SERVER)
        answer = registering.read_answer(await server.component.ask(request))
    assert isinstance(answer, Refused)
    assert str(answer) == "auth/forbidden"


@pytest.mark.requirement("X4")
async def test_a_user_has_ten_devices_in_an_app(push_service: Service) -> None:
    user = f"user-{uuid.uuid4().hex}"
    async with push_service.user_server() as server:
        answers = [await server.register(user, SERVICE, android()) for _ in range(11)]
    assert all(isinstance(answer, Registered) for answer in answers[:10])
    assert str(answers[10]) == "wait/resource-constraint"


@pytest.mark.requirement("X4")
async def test_a_user_gives_twenty_commands_an_hour(push_service: Service) -> None:
    user, device = f"user-{uuid.uuid4().hex}", android()
    async with push_service.user_server() as server:
        answers = [await server.register(user, SERVICE, device) for _ in range(21)]
    assert all(isinstance(answer, Registered) for answer in answers[:20])
    assert str(answers[20]) == "wait/resource-constraint"


async def test_commands_are_listed_for_users_too(push_service: Service) -> None:
    async with push_service.peer.account(push_service.peer.user("juliet")) as juliet:
        query = element("query", DISCO_ITEMS, {"node": "http://jabber.org/protocol/commands"})
        answer = await juliet.ask(element("iq", "", {"type": "get", "to": SERVICE, "id": new_id()}, query))
    assert len(list(answer.iter(f"{{{DISCO_ITEMS}}}item"))) == 4
