"""Journeys of users, phones and servers through a real Prosody and a real ejabberd up to gorush."""

import asyncio
import itertools
import re
import socket
import ssl
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from xml.etree.ElementTree import Element

import psutil
import psycopg
import pytest

from embedded.load import PushRecord, judge_when_recorded
from embedded.stack.plan import manage
from embedded.supervisor.processes import StopOrder
from kit.http import Connections
from notifications.messages import Grade
from tests.interop.xmpp.peers import (
    SERVICE,
    TIMEOUT_SECONDS,
    USER_SERVER,
    USER_SERVER_SECRET,
    USERS,
    Peer,
    write_to_absent,
)
from tests.interop.xmpp.service import (
    ANSWER_SECONDS,
    BRIDGE,
    BUNDLE,
    Neighbour,
    Service,
    android,
    bridge,
    ciphertext,
    iphone,
    iv,
    until,
)
from tests.rig.load import Pushes
from tests.rig.network import OPEN_STATES
from tests.rig.peers import break_peer, mend_peer
from tests.rig.server import wait_until
from xmpp_bridge.client import registering
from xmpp_bridge.client.connections import new_id, register, unregister
from xmpp_bridge.client.elements import (
    CLIENT,
    COMMANDS,
    DISCO_INFO,
    DISCO_ITEMS,
    PING,
    PUSH,
    PUSH2,
    Refused,
    element,
    error,
    iq,
    refusal_of,
)
from xmpp_bridge.client.notifying import Notification
from xmpp_bridge.client.registering import Cancelled, Device, FormAsked, Platform, Registered, Unregistered
from xmpp_bridge.client.user_server import Disabled, Failed, Route, Stored
from xmpp_bridge.messages import Dialect

pytestmark = pytest.mark.xmpp

LOCAL = f"5891b5b522@{SERVICE}"
# The format of a ciphertext, as the app is told it.
FORMATS = {Dialect.DRAFT: "j", Dialect.MOD_PUSH2: "w", Dialect.XEP0357: "t"}
# What each server logs once it has read an error of ours in the answer to a push.
READ_WAIT = {"prosody": "NOT increasing error count", "ejabberd": "temporarily"}


async def enable_push(peer: Peer, jid: str, device: Device) -> Registered:
    """Install the app: register the device, make the user's own server push to it, go offline."""
    async with peer.account(jid) as account:
        answer = await register(account, SERVICE, device)
        assert isinstance(answer, Registered), answer
        await account.ask(registering.enable_xep0357(answer.service, answer.node, answer.secret, new_id()))
        return answer


async def write(peer: Peer, to: str, body: str = "Wherefore art thou, Romeo?") -> None:
    async with peer.account(peer.user("romeo"), "desk") as romeo:
        await write_to_absent(romeo, to, body)
        await romeo.ask(iq("get", USERS, new_id(), element("ping", PING)))  # the server has processed the message


async def refusal(server: Neighbour, route: Route, notification: Notification) -> Refused:
    """Push along a route, and return the refusal of the push."""
    server.core.enable(route)
    server.notify(route, notification)
    failed = await server.next_event()
    assert isinstance(failed, Failed), failed
    return failed.refusal


async def store(server: Neighbour, route: Route, *notifications: Notification) -> list[Element]:
    """Publish notifications by XEP-0357, and return their stanzas once the service has confirmed all of them."""
    sent = [stanza for each in notifications for stanza in server.notify(route, each)]
    assert [await server.next_event() for _ in sent] == [Stored(each.get("id", "")) for each in sent]
    return sent


def payload(size: int = 120) -> Notification:
    return Notification(Grade.NORMAL, ciphertext(size), iv())


# The service and its devices ------------------------------------------------------------------------------------------

FEATURES = {DISCO_INFO, DISCO_ITEMS, COMMANDS, PING, PUSH, PUSH2}
SILENT = [
    element("message", "", {"type": "error"}, error("cancel", "gone")),
    element("iq", "", {"type": "error"}, error("cancel", "item-not-found")),
    element("iq", "", {"type": "result"}),
    element("presence", "", {"type": "subscribe"}),
]


@pytest.mark.requirement("X3", "X13")
async def test_every_request_is_answered_and_nothing_else(service: Service) -> None:
    """An answer to an error would be answered by the other side, without end."""
    received: list[Element] = []
    async with service.user_server() as server:
        info = await server.component.ask(server.request("get", element("query", DISCO_INFO)))
        assert {feature.get("var") for feature in info.iter(f"{{{DISCO_INFO}}}feature")} == FEATURES
        unserved = await server.component.ask(server.request("set", element("query", "jabber:iq:roster")))
        assert str(refusal_of(unserved)) == "cancel/service-unavailable"
    async with service.peer.component(USER_SERVER, USER_SERVER_SECRET, received.append) as component:
        for stanza in SILENT:
            stanza.attrib.update({"id": "silent", "from": USER_SERVER, "to": SERVICE})
            component.send(stanza)
        # The service answers in order, so its answer to the ping shows that these stanzas got none.
        assert (await component.ask(server.request("get", element("ping", PING)))).get("type") == "result"
    assert received == []


@pytest.mark.requirement("X4", "X6")
async def test_an_app_registers_moves_is_woken_and_leaves_through_the_account_of_its_user(service: Service) -> None:
    device, peer = android(), service.peer
    moved, jid = replace(device, token=android().token), peer.user("juliet")
    async with peer.account(jid) as juliet:
        asked = [
            registering.read_answer(await juliet.ask(registering.ask_for_form(SERVICE, Platform.FCM, new_id())))
            for _ in range(2)
        ]
        sessions = [form.session_id for form in asked if isinstance(form, FormAsked) and "token" in form.fields]
        cancelled = await juliet.ask(registering.cancel(SERVICE, Platform.FCM, new_id(), sessions[0]))
        assert registering.read_answer(cancelled) == Cancelled()
        completed = await juliet.ask(registering.register(SERVICE, device, new_id(), session_id=sessions[1]))
        first = registering.read_answer(completed)
        assert await register(juliet, SERVICE, moved) == first
        refused = await register(juliet, SERVICE, replace(device, token="short"))
        assert isinstance(refused, Refused)
        assert (str(refused), refused.text.partition(":")[0]) == ("modify/bad-request", "token")
        assert isinstance(first, Registered)
        await juliet.ask(registering.enable_xep0357(first.service, first.node, first.secret, new_id()))
    await write(peer, jid)
    push = await service.wait_for_push(moved)
    assert (push["platform"], push["data"]["k"], "e" in push["data"]) == ("android", "wake", False)
    assert service.pushes(device) == []
    async with peer.account(jid) as juliet:
        assert await unregister(juliet, SERVICE, device) == Unregistered()
        assert str(await unregister(juliet, SERVICE, device)) == "cancel/item-not-found"
        again = await register(juliet, SERVICE, device)
    assert isinstance(again, Registered)
    assert again.client != first.client


# Pushes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("X7", "X8", "X18")
async def test_ciphertexts_of_every_dialect_arrive_unchanged_and_all_else_is_a_wake_up(service: Service) -> None:
    caller, body = iphone(), f"secret {uuid.uuid4()}"
    forwarded = element("message", CLIENT, {"from": "juliet@capulet.test"}, element("body", CLIENT, text=body))
    wakes = [(None, Notification()), (None, Notification(forwarded=forwarded)), ("truncated", payload(3500))]
    async with service.user_server() as server:
        for (dialect, known_as), grade in itertools.product(FORMATS.items(), (Grade.NORMAL, Grade.VOIP)):
            sent = Notification(grade, ciphertext(), "" if dialect is Dialect.MOD_PUSH2 else iv())
            server.notify(await server.route(device := android(), dialect), sent)
            data = (await service.wait_for_push(device))["data"]
            kind = "voip" if grade is Grade.VOIP else "msg"
            assert (data["k"], data["e"], data["f"], data.get("i", "")) == (kind, sent.ciphertext, known_as, sent.iv)
        server.notify(await server.route(caller), Notification(Grade.VOIP, ciphertext(), iv()))
        push = await service.wait_for_push(caller)
        assert (push["token"], push["topic"]) == (caller.voip_token, f"{BUNDLE}.voip")
        for mark, sent in wakes:
            server.notify(await server.route(device := android(), to=LOCAL), sent)
            push = await service.wait_for_push(device)
            assert (push["data"]["k"], push["data"].get("x"), "e" in push["data"]) == ("wake", mark, False)
            assert body not in str(push)


def forgeries(route: Route) -> list[Route]:
    other = "B" if route.client[10] != "B" else "C"
    tail = "AAAA" if not route.secret.endswith("AAAA") else "BBBB"
    return [
        replace(route, client=route.client[:10] + other + route.client[11:]),
        replace(route, client="bmVvdmdlbmVsIHB5dnJhZyBxbmduIHRicmYgdXJlcg=="),
        replace(route, dialect=Dialect.XEP0357, secret=route.secret[:-4] + tail),
        replace(route, dialect=Dialect.XEP0357, node="AAAAAAAAAAAAAAAAAAAAAA"),
        replace(route, dialect=Dialect.XEP0357, secret=""),
    ]


@pytest.mark.requirement("X9")
async def test_a_sender_without_a_right_to_a_route_learns_nothing_and_wakes_nobody(service: Service) -> None:
    """Another domain has all secrets of the route, and a user claims to be the server. Prosody writes the user's JID
    into that stanza, and ejabberd ends the stream.
    """
    device, other, peer = android(), android(), service.peer
    known = await enable_push(peer, peer.user("juliet"), device)
    stolen = [
        Route(SERVICE, dialect, known.client, known.node, known.secret) for dialect in (Dialect.DRAFT, Dialect.XEP0357)
    ]
    async with service.user_server() as server:
        for forged in (*forgeries(await server.route(other)), *stolen):
            refused = await refusal(server, forged, payload())
            assert (str(refused), refused.disabled_client) == ("cancel/item-not-found", "")
    async with peer.account(peer.user("mallory"), "laptop") as mallory:
        push = element("notification", PUSH2, {}, element("client", PUSH2, text=known.client))
        stanza = element("message", "", {"to": SERVICE, "from": USERS, "id": uuid.uuid4().hex}, push)
        if peer.name == "prosody":
            assert str(refusal_of(await mallory.ask(stanza))) == "auth/forbidden"
        else:
            mallory.send(stanza)
            await asyncio.wait_for(mallory.ended.wait(), TIMEOUT_SECONDS)
    assert await service.has_no_more(device)
    assert await service.has_no_more(other)


@pytest.mark.requirement("X14", "X15")
async def test_repetitions_are_one_push_and_answers_come_while_gorush_hangs(service: Service) -> None:
    """mod_push2 sends one push for each enabled resource of a device, each with an id of its own."""
    same, waking, calling, hanging = android(), android(), android(), android()
    async with service.user_server() as server:
        route, content = await server.route(same, Dialect.XEP0357), payload()
        first, *others = [stanza for _ in range(3) for stanza in server.notify(route, content)]
        again = asyncio.create_task(server.component.ask(first))  # at once, as two seconds later it is another push
        stored = {await server.next_event() for _ in range(3)}
        assert stored == {Stored(each.get("id", "")) for each in (first, *others)}
        assert (await again).get("type") == "result"
        await store(server, await server.route(waking, Dialect.XEP0357), *[Notification()] * 3)
        calls = await server.route(calling, Dialect.XEP0357)
        await store(server, calls, *(Notification(Grade.VOIP, ciphertext(), iv()) for _ in range(6)))
        refused = await refusal(server, calls, Notification(Grade.VOIP, ciphertext(), iv()))
        assert str(refused) == "wait/resource-constraint"
        for device, count in ((same, 1), (waking, 1), (calling, 6)):
            await service.wait_for_pushes(device, count)
            assert await service.has_no_more(device, count)
    async with service.user_server() as server:
        break_peer(service.gorush_url, delay_ms=60_000)
        try:
            await store(server, await server.route(hanging, Dialect.XEP0357), payload(), payload())
            assert service.pushes(hanging) == []
        finally:
            mend_peer(service.gorush_url)


# Ends and outages -----------------------------------------------------------------------------------------------------

DEAD = """
    SELECT 1 FROM registrations_route AS route JOIN xmpp_bridge_device AS device ON device.route_id = route.id
    WHERE route.state = 'disabled' AND device.id = %s
"""


async def kill(service: Service, server: Neighbour, dialect: Dialect = Dialect.DRAFT) -> Route:
    """Push to a phone whose token Google calls dead, and return its route once the service has recorded that."""
    route = await server.route(android("expired-"), dialect, to=LOCAL)
    [(device,)] = service.fleet.rows("SELECT id FROM xmpp_bridge_device ORDER BY registered_at DESC LIMIT 1")
    server.notify(route, payload())
    await until(lambda: service.fleet.rows(DEAD, device), what="the route is disabled")
    return route


@pytest.mark.requirement("X10")
async def test_the_end_of_a_phone_is_announced_and_then_answers_each_push(service: Service) -> None:
    """Prosody's mod_push2 ignores both and goes on pushing, so that it gets the error once a minute."""
    async with service.user_server() as server:
        route = await kill(service, server)
        assert await server.next_event() == Disabled(route)
        refused = await refusal(server, route, Notification())
        assert (str(refused), refused.disabled_client) == ("cancel/gone", route.client)
        assert await server.next_event() == Disabled(route)
        server.core.enable(route)
        server.notify(route, Notification())
        await server.wait_for_service()  # its answer comes after the push, which got none
        with pytest.raises(TimeoutError):
            await server.next_event(timeout_seconds=0.2)
        published = await kill(service, server, Dialect.XEP0357)
        assert isinstance(await server.next_event(), Stored)
        refusals = [str(await refusal(server, published, Notification())) for _ in range(2)]
        assert refusals == ["cancel/item-not-found"] * 2


@asynccontextmanager
async def without_database(service: Service) -> AsyncIterator[None]:
    """End the connections to the service's database, and refuse new ones while the block runs."""
    url = service.fleet.environment["DATABASE_URL"]
    name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
    with psycopg.connect(url, dbname="postgres", autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        try:
            yield
        finally:
            connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


@pytest.mark.requirement("X11", "X12")
async def test_without_its_database_the_service_answers_wait_and_every_route_stays(service: Service) -> None:
    """Ejabberd removes a route at the first `cancel`, and Prosody counts errors outside the namespace of the stream."""
    peer, phone, message, published = service.peer, android(), android(), android()
    juliet = peer.user("juliet")
    await enable_push(peer, juliet, phone)
    async with service.user_server() as server:
        routes = [await server.route(message), await server.route(published, Dialect.XEP0357)]
        async with without_database(service):
            stanzas = [stanza for route in routes for stanza in server.notify(route, payload())]
            failed = [await server.next_event() for _ in stanzas]
            assert {str(each.refusal) for each in failed if isinstance(each, Failed)} == {"wait/internal-server-error"}
            await write(peer, juliet)
            await until(lambda: READ_WAIT[peer.name] in peer.log(), what="the server reads the error")
        # The same ids again, as the draft requires: the service does not remember what it answered with `wait`.
        event = failed[0]
        while event != Stored(stanzas[1].get("id", "")):
            event = await server.next_event()
        await service.wait_for_push(message)
        await service.wait_for_push(published)
    await write(peer, juliet, "And now?")
    await service.wait_for_push(phone)


@pytest.mark.requirement("X2")
async def test_what_was_acknowledged_is_pushed_after_a_restart_of_the_server(service: Service) -> None:
    device, sent = android(), [payload() for _ in range(5)]
    async with service.user_server() as server:
        route = await server.route(device, Dialect.XEP0357)
        break_peer(service.gorush_url, down=True)
        await store(server, route, *sent)
    try:
        await asyncio.to_thread(service.peer.stop)
        await asyncio.to_thread(service.peer.start)
    finally:
        mend_peer(service.gorush_url)
    await service.wait_until_connected()
    pushes = await service.wait_for_pushes(device, len(sent))
    assert sorted(push["data"]["e"] for push in pushes) == sorted(each.ciphertext for each in sent)
    async with service.user_server() as server:
        server.core.enable(route)
        await store(server, route, payload())


# While no component is connected, ejabberd answers `cancel` in place of `wait`, and such a push is not sent again.
@pytest.mark.requirement("X2")
@pytest.mark.parametrize("service", ["prosody"], indirect=True)
async def test_a_bridge_that_is_replaced_loses_nothing_not_even_messages(service: Service) -> None:
    """A message has no acknowledgement: nobody sends it again once the server has delivered it to the bridge. Those
    that came back because there was no component are sent again.
    """
    devices = [android() for _ in range(10)]
    sent: dict[str, list[str]] = {device.token: [] for device in devices}
    async with service.user_server() as server:
        routes = [await server.route(device) for device in devices]
        for number in range(400):
            notification = payload()
            server.notify(routes[number % len(routes)], notification)
            sent[devices[number % len(devices)].token].append(notification.ciphertext)
            await asyncio.sleep(0.003)
            if number == 200:
                stopping = asyncio.create_task(asyncio.to_thread(service.fleet.stop, BRIDGE))
        await stopping
        service.start_bridge()
        for device in devices:
            pushes = await service.wait_for_pushes(device, len(sent[device.token]))
            assert sorted(push["data"]["e"] for push in pushes) == sorted(sent[device.token])


REPEATS = 100


async def stored_after_repeats(server: Neighbour, route: Route) -> Notification:
    """Send a notification until one is stored, each with a payload of its own. Return that payload. A server answers
    with an error while no component is connected, and not at all if it wrote into the connection of a dead one.
    """
    for _ in range(REPEATS):
        server.core.enable(route)
        [stanza] = server.notify(route, sent := payload())
        with suppress(TimeoutError):
            if await server.next_event(timeout_seconds=ANSWER_SECONDS) == Stored(stanza.get("id", "")):
                return sent
        await asyncio.sleep(0.1)
    raise AssertionError(f"no notification of {REPEATS} was stored")


def pushed(service: Service, device: Device) -> list[str]:
    return [push["data"]["e"] for push in service.pushes(device)]


async def test_another_bridge_follows_one_that_is_killed(service: Service) -> None:
    """It stands by until then. A push that came back because no component was connected is sent again."""
    device = android()
    service.fleet.start(replace(bridge(), name="other"))
    await until(lambda: "component_started" in service.fleet.log("other"), what="another bridge stands by")
    async with service.user_server() as server:
        route = await server.route(device, Dialect.XEP0357)
        await store(server, route, payload())
        service.fleet.kill(BRIDGE)
        killed_at = time.monotonic()
        last = await stored_after_repeats(server, route)
        print(f"the other bridge works after {time.monotonic() - killed_at:.1f} s")  # noqa: T201 - a figure
        # A push whose answer was only late may have arrived, too, but none arrived twice.
        await until(lambda: last.ciphertext in pushed(service, device), what="the stored notification is pushed")
        assert len(pushed(service, device)) == len(set(pushed(service, device)))
    service.start_bridge()
    await asyncio.to_thread(service.fleet.stop, "other")
    await service.wait_until_connected()


OPEN = "SELECT 1 FROM notifications_notification WHERE state = ANY(%s)"


def notified_phones(service: Service) -> set[str]:
    """Return the tokens that gorush got. A push that it held up for a minute comes once more at any time."""
    return {push["token"] for push in service.all_pushes()}


@pytest.mark.requirement("X1")
async def test_the_canary_comes_back_through_the_server_and_a_wrong_secret_is_reported(service: Service) -> None:
    fleet, wrong = service.fleet, "not-the-secret"
    await until(lambda: not fleet.rows(OPEN, list(OPEN_STATES)), what="pushes of earlier tests have ended")
    phones = notified_phones(service)
    canary = manage("canary", "canary", "xmpp", stop_order=StopOrder.FRONT)
    code, printed = await asyncio.to_thread(fleet.run_to_end, canary)
    assert (code, notified_phones(service)) == (0, phones), printed
    await asyncio.to_thread(fleet.stop, BRIDGE)
    service.start_bridge(XMPP_COMPONENT_SECRET=wrong)
    try:
        await until(lambda: "not-authorized" in fleet.log(BRIDGE), what="the log names the reason")
    finally:
        await asyncio.to_thread(fleet.stop, BRIDGE)
        service.start_bridge()
    await service.wait_until_connected()
    assert wrong not in fleet.log(BRIDGE)


# Load -----------------------------------------------------------------------------------------------------------------

RATE, SECONDS = 100.0, 10.0
# Growth of a bridge's memory by its own counters, and by stanzas that wait for one commit.
MAX_GROWTH_BYTES = 32 * 2**20


@pytest.mark.requirement("X19")
async def test_a_thousand_notifications_in_ten_seconds_are_all_accounted_for(service: Service) -> None:
    bridge = psutil.Process(service.fleet.running[BRIDGE].pid)
    async with service.user_server() as server, Connections(silent_seconds=30) as client:
        sent, record, routes = Pushes(), PushRecord(service.gorush_url, client), await server.routes(100)
        await record.skip()
        before = bridge.memory_info().rss
        await sent.send(server, routes, per_second=RATE, is_enough=lambda number: number >= RATE * SECONDS)
        result = await judge_when_recorded(record, sent.result, deadline=time.monotonic() + 60)
        grown = bridge.memory_info().rss - before
    assert (result.requests, result.refused) == (RATE * SECONDS, {})
    assert result.is_clean, result
    assert grown < MAX_GROWTH_BYTES


# The demonstration ----------------------------------------------------------------------------------------------------

HAPPENED = (
    *(r"registered .*user=Benvolio", r"notified .*dialect=mod_push2", r"notified .*dialect=draft"),
    *(r"notified .*dialect=xep0357", r"stored", r"route_disabled .*user=Rosaline"),
)


@pytest.mark.parametrize("service", ["prosody"], indirect=True)
def test_users_of_the_demonstration_are_notified_in_each_dialect_and_a_dead_phone_is_forgotten(
    service: Service, tmp_path: Path
) -> None:
    fleet, secret, clients = service.fleet, tmp_path / "secret", "clients"
    secret.write_text(USER_SERVER_SECRET)
    arguments = [f"--server={USER_SERVER}", f"--secret-file={secret}", "--pause=0.07"]
    fleet.start(manage(clients, "demo_clients", *arguments, stop_order=StopOrder.FRONT))
    process = fleet.running[clients]
    for event in HAPPENED:
        wait_until(lambda event=event: re.search(event, fleet.log(clients)), what=event)
    fleet.stop(clients)
    assert process.returncode == 0
    assert "demo_stopped" in fleet.log(clients)
    assert not re.search("Traceback|@capulet.test", fleet.log(clients))


# The configuration of ejabberd in docs/xmpp.md ------------------------------------------------------------------------

HEADER = (
    "<stream:stream xmlns='jabber:server' xmlns:db='jabber:server:dialback' version='1.0' from='claimed.test' "
    f"xmlns:stream='http://etherx.jabber.org/streams' to='{USERS}'>"
)
EXTERNAL = "<auth xmlns='urn:ietf:params:xml:ns:xmpp-sasl' mechanism='EXTERNAL'>=</auth>"
CLAIM = f"<db:result from='claimed.test' to='{USERS}'>a key</db:result>"


def ask(connection: socket.socket, sent: str, answer: str) -> str:
    """Send a text, and return the answer once the pattern matches it or the other side closes the connection."""
    connection.sendall(sent.encode())
    seen = ""
    while not re.search(answer, seen) and (received := connection.recv(4096).decode()):
        seen += received
    return seen


@pytest.mark.parametrize("service", ["ejabberd"], indirect=True)
def test_a_peer_without_a_certificate_of_a_domain_cannot_claim_it(service: Service) -> None:
    with socket.create_connection(("127.0.0.1", service.peer.s2s_port), timeout=20) as connection:
        features = ask(connection, HEADER, "</stream:features>")
        assert "<required/>" in features
        ask(connection, "<starttls xmlns='urn:ietf:params:xml:ns:xmpp-tls'/>", "<proceed")
        encrypted = ssl._create_unverified_context().wrap_socket(connection)  # noqa: S323 - our own
        features = ask(encrypted, HEADER, "</stream:features>")
        assert "dialback" not in features.partition("<stream:features>")[2]
        assert "<not-authorized" in ask(encrypted, EXTERNAL, "<success|</failure>")
        assert "type='valid'" not in ask(encrypted, CLAIM, "</stream:stream>|type=")
        encrypted.close()
