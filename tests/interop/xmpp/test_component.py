"""Component at a real server: its service discovery, its answers, and its reconnection (cases 1, 2, 3, 12, 13)."""

import asyncio

import pytest

from tests.interop.xmpp import peers
from tests.interop.xmpp.peers import SERVICE, USER_SERVER
from tests.interop.xmpp.service import BRIDGE, Service, android, ciphertext, iv, until
from tests.rig.peers import break_peer, mend_peer
from xmpp_bridge.client import Dialect, Failed, Grade, Notification, Stored
from xmpp_bridge.client.elements import (
    COMMANDS,
    DISCO_INFO,
    DISCO_ITEMS,
    PING,
    PUBSUB,
    PUSH,
    PUSH2,
    element,
    error,
    refusal_of,
)

pytestmark = pytest.mark.xmpp

FEATURES = {DISCO_INFO, DISCO_ITEMS, COMMANDS, PING, PUSH, PUSH2}
UNKNOWN = {"service-unavailable", "feature-not-implemented"}
UNSERVED = {"feature-not-implemented"}
NODES = {f"{verb}-push-{platform}" for verb in ("register", "unregister") for platform in ("apns", "fcm")}


@pytest.mark.requirement("X3")
async def test_service_discovery_lists_identity_and_features(push_service: Service) -> None:
    async with push_service.user_server() as server:
        answer = await server.component.ask(server.request("get", element("query", DISCO_INFO)))
        query = answer.find(f"{{{DISCO_INFO}}}query")
        identity = query.find(f"{{{DISCO_INFO}}}identity")
        assert (identity.get("category"), identity.get("type")) == ("pubsub", "push")
        assert {feature.get("var") for feature in query.findall(f"{{{DISCO_INFO}}}feature")} == FEATURES


@pytest.mark.requirement("X3")
async def test_lists_its_commands_with_a_description_of_each(push_service: Service) -> None:
    async with push_service.user_server() as server:
        items = await server.component.ask(server.request("get", element("query", DISCO_ITEMS, {"node": COMMANDS})))
        nodes = {item.get("node") for item in items.iter(f"{{{DISCO_ITEMS}}}item")}
        assert nodes == NODES
        for node in nodes:
            info = await server.component.ask(server.request("get", element("query", DISCO_INFO, {"node": node})))
            identity = next(info.iter(f"{{{DISCO_INFO}}}identity"))
            assert (identity.get("category"), identity.get("type")) == ("automation", "command-node")


@pytest.mark.requirement("X3")
async def test_answers_a_ping_with_nothing(push_service: Service) -> None:
    async with push_service.user_server() as server:
        answer = await server.component.ask(server.request("get", element("ping", PING)))
        assert (answer.get("type"), answer.get("from"), len(answer)) == ("result", SERVICE, 0)


@pytest.mark.requirement("X3")
@pytest.mark.parametrize(
    ("kind", "child", "conditions"),
    [
        ("get", element("query", "jabber:iq:version"), UNKNOWN),
        ("set", element("query", "jabber:iq:roster"), UNKNOWN),
        ("get", element("vCard", "vcard-temp"), UNKNOWN),
        (
            "set",
            element("pubsub", PUBSUB, {}, element("subscribe", PUBSUB, {"node": "n"})),
            UNSERVED,
        ),
        ("get", element("pubsub", PUBSUB, {}, element("items", PUBSUB, {"node": "n"})), UNSERVED),
        ("set", element("pubsub", PUBSUB, {}, element("create", PUBSUB, {"node": "n"})), UNSERVED),
    ],
    ids=["version", "roster", "vcard", "subscribe", "items", "create"],
)
async def test_answers_every_unknown_request(
    push_service: Service, kind: str, child: object, conditions: set[str]
) -> None:
    async with push_service.user_server() as server:
        refusal = refusal_of(await server.component.ask(server.request(kind, child)))
        assert refusal.kind == "cancel"
        assert refusal.condition in conditions


async def test_answers_from_the_address_that_was_written_to(push_service: Service) -> None:
    async with push_service.user_server() as server:
        request = server.request("get", element("ping", PING))
        request.set("to", f"{APP_ADDRESS}@{SERVICE}/there")
        assert (await server.component.ask(request)).get("from") == f"{APP_ADDRESS}@{SERVICE}/there"


APP_ADDRESS = "5891b5b522"
SILENT = {
    "an error": element("message", "", {"type": "error"}, error("cancel", "gone")),
    "an error about a push": element(
        "message",
        "",
        {"type": "error"},
        element("notification", PUSH2, {}, element("client", PUSH2, text="nobody")),
        error("wait", "resource-constraint"),
    ),
    "an answer to nothing": element("iq", "", {"type": "result"}),
    "an error of a request": element("iq", "", {"type": "error"}, error("cancel", "item-not-found")),
    "a chat message": element("message", "", {"type": "chat"}, element("body", text="Is anybody there?")),
    "presence": element("presence"),
    "a subscription": element("presence", "", {"type": "subscribe"}),
    "a probe": element("presence", "", {"type": "probe"}),
}


@pytest.mark.requirement("X13")
@pytest.mark.parametrize("name", SILENT)
async def test_a_stanza_that_needs_no_answer_gets_none(push_service: Service, name: str) -> None:
    """An answer to an error would be answered by the other side, without end."""
    received = []
    component = push_service.peer.component(USER_SERVER, peers.USER_SERVER_SECRET, received.append)
    async with component:
        stanza = SILENT[name]
        stanza.attrib.update({"id": "silent", "from": USER_SERVER, "to": SERVICE})
        component.send(stanza)
        # The ping is answered after the stanza, so its answer shows that the stanza got none.
        ping = element("iq", "", {"type": "get", "id": "p", "from": USER_SERVER, "to": SERVICE}, element("ping", PING))
        assert (await component.ask(ping)).get("type") == "result"
        assert received == []


@pytest.mark.parametrize("inside", ["<x xmlns='a}b'/>", "<xml:foo/>", "<x a:b='1' xmlns:a='c}d'/>"])
async def test_a_stanza_that_our_parser_refuses_ends_nothing(push_service: Service, inside: str) -> None:
    """The server forwards the stanza."""
    ping = element("iq", "", {"type": "get", "id": "ping", "to": SERVICE}, element("ping", PING))
    connected = push_service.fleet.log(BRIDGE).count("xmpp_connected")
    async with push_service.peer.account(push_service.peer.user("romeo")) as romeo:
        romeo.send(f"<message to='{SERVICE}'>{inside}</message>")
        assert (await romeo.ask(ping)).get("type") == "result"
    assert push_service.fleet.log(BRIDGE).count("xmpp_connected") == connected


@pytest.mark.requirement("X12")
async def test_errors_are_in_the_namespace_of_the_stream(push_service: Service) -> None:
    """Prosody does not recognise an error in `jabber:client` on this stream, and counts a `wait` as a failure of the
    route.
    """
    juliet = push_service.peer.user("juliet")
    async with push_service.peer.account(juliet) as account:
        await account.ask_own_account(
            peers.registering.enable_xep0357(SERVICE, "AAAAAAAAAAAAAAAAAAAAAA", "forged-secret-of-nobody0")
        )
    async with push_service.peer.account(push_service.peer.user("romeo")) as romeo:
        await peers.write_to_absent(romeo, juliet)
        await romeo.ping()
    await until(lambda: "Got error <cancel:item-not-found" in push_service.peer.log(), what="Prosody reads the error")
    assert "<(nil):(nil)" not in push_service.peer.log().rpartition(juliet)[2]


@pytest.mark.requirement("X2")
async def test_comes_back_after_the_server_and_loses_nothing_that_it_acknowledged(push_service: Service) -> None:
    device = android()
    async with push_service.user_server() as server:
        route = await server.route(device, Dialect.XEP0357)
        break_peer(push_service.gorush_url, down=True)
        sent = [Notification(Grade.NORMAL, ciphertext(), iv()) for _ in range(5)]
        for notification in sent:
            server.notify(route, notification)
            assert isinstance(await server.next_event(), Stored)
    try:
        await asyncio.to_thread(push_service.peer.stop)
        await asyncio.to_thread(push_service.peer.start)
    finally:
        mend_peer(push_service.gorush_url)
    await push_service.wait_until_connected()
    pushes = await push_service.wait_for_pushes(device, len(sent))
    assert sorted(push["data"]["e"] for push in pushes) == sorted(each.ciphertext for each in sent)
    async with push_service.user_server() as server:
        server.core.enable(route)
        server.notify(route, Notification(Grade.NORMAL, ciphertext(), iv()))
        assert isinstance(await server.next_event(), Stored)


@pytest.mark.requirement("X2")
async def test_a_bridge_that_is_replaced_loses_nothing_not_even_messages(push_service: Service) -> None:
    """Messages have no acknowledgement: nobody sends those again that the server has delivered by the end of the
    stream.
    """
    devices = [android() for _ in range(10)]
    sent: dict[str, list[str]] = {device.token: [] for device in devices}
    async with push_service.user_server() as server:
        routes = [await server.route(device) for device in devices]
        stopping = None
        for number in range(400):
            notification = Notification(Grade.NORMAL, ciphertext(), iv())
            server.notify(routes[number % len(routes)], notification)
            sent[devices[number % len(devices)].token].append(notification.ciphertext)
            await asyncio.sleep(0.003)
            if number == 200:
                stopping = asyncio.create_task(asyncio.to_thread(push_service.fleet.stop, BRIDGE))
        await stopping
        push_service.start_bridge()
        for device in devices:  # the double sends pushes again that came back because no component was connected
            pushes = await push_service.wait_for_pushes(device, len(sent[device.token]))
            assert sorted(push["data"]["e"] for push in pushes) == sorted(sent[device.token])


@pytest.mark.requirement("X1")
@pytest.mark.parametrize("secret", ["wrong"])
async def test_a_wrong_secret_is_reported(push_service: Service, secret: str) -> None:
    await asyncio.to_thread(push_service.fleet.stop, BRIDGE)
    push_service.start_bridge(XMPP_COMPONENT_SECRET=secret)
    try:
        await until(lambda: "not-authorized" in push_service.fleet.log(BRIDGE), what="the log names the reason")
    finally:
        await asyncio.to_thread(push_service.fleet.stop, BRIDGE)
        push_service.start_bridge()
    await push_service.wait_until_connected()
    assert secret not in push_service.fleet.log(BRIDGE).split()


@pytest.mark.requirement("X1")
async def test_a_domain_that_another_component_has_is_reported(push_service: Service) -> None:
    await asyncio.to_thread(push_service.fleet.stop, BRIDGE)
    async with push_service.peer.component():
        push_service.start_bridge()
        await until(lambda: "conflict" in push_service.fleet.log(BRIDGE), what="the log names the reason")
    await asyncio.to_thread(push_service.fleet.stop, BRIDGE)  # it would wait for a minute
    push_service.start_bridge()
    await push_service.wait_until_connected()


async def test_a_refusal_of_a_push_is_read_by_the_sender(push_service: Service) -> None:
    async with push_service.user_server() as server:
        route = await server.route(android())
        forged = type(route)(SERVICE, Dialect.DRAFT, client=route.client[:-2] + "AA")
        server.core.enable(forged)
        server.notify(forged, Notification())
        failed = await server.next_event()
        assert isinstance(failed, Failed)
        assert str(failed.refusal) == "cancel/item-not-found"
        assert failed.refusal.disabled_client == ""
