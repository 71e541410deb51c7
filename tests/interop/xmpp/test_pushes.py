"""Pushes through a real server, from users and from the double, up to gorush (cases 6 to 9, 14, 15)."""

import uuid
from base64 import b64decode
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from notifications.messages import Grade
from tests.interop.xmpp import peers
from tests.interop.xmpp.peers import SERVICE, Peer, write_to_absent
from tests.interop.xmpp.service import Service, android, ciphertext, iphone, iv
from tests.rig.peers import break_peer, mend_peer
from xmpp_bridge.client import (
    ConnectionFailed,
    Device,
    Dialect,
    Failed,
    Notification,
    Registered,
    Route,
    Stored,
    register,
    registering,
)
from xmpp_bridge.client.elements import CLIENT, PUSH2, element
from xmpp_bridge.client.tests.test_notifying import encrypted, recorded

pytestmark = pytest.mark.xmpp

BODY = "Wherefore art thou, Romeo?"
HANGING_MS = 60_000


async def enable_push(peer: Peer, jid: str, device: Device) -> Registered:
    """Install the app: register the device, make the user's own server push to it, go offline."""
    async with peer.account(jid) as account:
        answer = await register(account, SERVICE, device)
        assert isinstance(answer, Registered), answer
        await account.ask_own_account(registering.enable_xep0357(answer.service, answer.node, answer.secret))
        return answer


async def write(peer: Peer, to: str, body: str = BODY) -> None:
    async with peer.account(peer.user("romeo"), "desk") as romeo:
        await write_to_absent(romeo, to, body)
        await romeo.ping()


@pytest.mark.requirement("X6")
async def test_a_message_to_somebody_who_is_offline_reaches_gorush(either_service: Service) -> None:
    peer, device = either_service.peer, android()
    juliet = peer.user("juliet")
    await enable_push(peer, juliet, device)
    await write(peer, juliet)
    push = await either_service.wait_for_push(device)
    assert push["platform"] == "android"
    assert push["data"]["k"] == "wake"
    assert push["data"]["v"] == "1"
    assert "e" not in push["data"]


@pytest.mark.requirement("X6")
async def test_an_iphone_is_shown_a_generic_text(push_service: Service) -> None:
    device, juliet = iphone(), push_service.peer.user("juliet")
    await enable_push(push_service.peer, juliet, device)
    await write(push_service.peer, juliet)
    push = await push_service.wait_for_push(device)
    assert push["platform"] == "ios"
    assert push["topic"] == "im.messenger.test"


@pytest.mark.requirement("X7", "X8")
@pytest.mark.parametrize("name", ["double-push2-draft-encrypted-chat.xml", "double-push2-draft-encrypted-voip.xml"])
async def test_a_payload_encrypted_by_the_draft_arrives_unchanged_and_opens(push_service: Service, name: str) -> None:
    device, notification = android(), encrypted(recorded(name), PUSH2)
    async with push_service.user_server() as server:
        server.notify(await server.route(device), notification)
    data = (await push_service.wait_for_push(device))["data"]
    assert (data["e"], data["i"], data["f"]) == (notification.ciphertext, notification.iv, "j")
    assert data["k"] == ("voip" if notification.grade is Grade.VOIP else "msg")
    plaintext = AESGCM(bytes(range(16))).decrypt(b64decode(data["i"]), b64decode(data["e"]), None)
    assert plaintext.startswith(b'{"id":')


@pytest.mark.requirement("X7")
@pytest.mark.parametrize("name", ["chat", "voip"])
async def test_a_payload_encrypted_by_mod_push2_arrives_unchanged(push_service: Service, name: str) -> None:
    device = android()
    payload = recorded(f"prosody13-push2-sce-rfc8291-{name}.xml")
    text = payload.findtext(".//{urn:xmpp:sce:rfc8291:0}payload", "")
    grade = Grade.VOIP if name == "voip" else Grade.NORMAL
    async with push_service.user_server() as server:
        server.notify(await server.route(device, Dialect.MOD_PUSH2), Notification(grade, text))
    data = (await push_service.wait_for_push(device))["data"]
    assert (data["e"], data["f"], data["k"]) == (text, "w", "voip" if name == "voip" else "msg")


@pytest.mark.requirement("X7")
@pytest.mark.parametrize("name", ["chat", "voip"])
async def test_a_payload_encrypted_for_xep0357_arrives_unchanged_and_opens(push_service: Service, name: str) -> None:
    device = android()
    payload = recorded(f"prosody13-xep0357-publish-encrypted-{name}.xml")
    notification = encrypted(payload, "tigase:push:encrypt:0")
    async with push_service.user_server() as server:
        server.notify(await server.route(device, Dialect.XEP0357), notification)
        assert isinstance(await server.next_event(), Stored)
    data = (await push_service.wait_for_push(device))["data"]
    assert (data["e"], data["i"], data["f"]) == (notification.ciphertext, notification.iv, "t")
    key = bytes.fromhex("30313233343536373839616263646566")
    assert b"sender" in AESGCM(key).decrypt(b64decode(data["i"]), b64decode(data["e"]), None)


@pytest.mark.requirement("X8")
async def test_a_call_rings_an_iphone_by_its_own_token(push_service: Service) -> None:
    device = iphone()
    async with push_service.user_server() as server:
        server.notify(await server.route(device), Notification(Grade.VOIP, ciphertext(), iv()))
    push = await push_service.wait_for_push(device)
    assert push["token"] == device.voip_token
    assert push["topic"] == "im.messenger.test.voip"


@pytest.mark.requirement("X8")
async def test_a_push_without_payload_wakes_the_app(push_service: Service) -> None:
    device = android()
    async with push_service.user_server() as server:
        server.notify(await server.route(device), Notification())
    assert (await push_service.wait_for_push(device))["data"]["k"] == "wake"


@pytest.mark.requirement("X8")
async def test_of_a_forwarded_stanza_only_a_wake_up_is_left(push_service: Service) -> None:
    device = android()
    body = f"secret {uuid.uuid4()}"
    message = element("message", CLIENT, {"from": "juliet@capulet.test"}, element("body", CLIENT, text=body))
    async with push_service.user_server() as server:
        server.notify(await server.route(device), Notification(forwarded=message))
    push = await push_service.wait_for_push(device)
    assert push["data"]["k"] == "wake"
    assert body not in str(push)


@pytest.mark.requirement("X8")
async def test_an_app_may_refuse_forwarded_stanzas(push_service: Service) -> None:
    if not push_service.fleet.rows("SELECT 1 FROM xmpp_bridge_app WHERE slug = 'strict'"):
        push_service.add_app("strict", refuses_texts=True)
    device = android(app="strict")
    message = element("message", CLIENT, {}, element("body", CLIENT, text=BODY))
    async with push_service.user_server() as server:
        server.notify(await server.route(device), Notification(forwarded=message))
        failed = await server.next_event()
        assert isinstance(failed, Failed)
        assert str(failed.refusal) == "cancel/policy-violation"
    assert await push_service.has_no_more(device)


async def test_the_local_part_of_the_service_is_answered_from(push_service: Service) -> None:
    device = android()
    async with push_service.user_server() as server:
        route = await server.route(device, to=f"5891b5b522@{SERVICE}")
        server.notify(route, Notification())
        await push_service.wait_for_push(device)


# A sender without a right to a route learns nothing about it ----------------------------------------------------------


def forgeries(route: Route) -> dict[str, Route]:
    other = "B" if route.client[10] != "B" else "C"
    tail = "AAAA" if not route.secret.endswith("AAAA") else "BBBB"
    return {
        "wrong mac": replace(route, dialect=Dialect.DRAFT, client=route.client[:10] + other + route.client[11:]),
        "unknown": replace(route, dialect=Dialect.DRAFT, client="bmVvdmdlbmVsIHB5dnJhZyBxbmduIHRicmYgdXJlcg=="),
        "wrong secret": replace(route, dialect=Dialect.XEP0357, secret=route.secret[:-4] + tail),
        "unknown node": replace(route, dialect=Dialect.XEP0357, node="AAAAAAAAAAAAAAAAAAAAAA"),
        "no secret": replace(route, dialect=Dialect.XEP0357, secret=""),
    }


@pytest.mark.requirement("X9")
@pytest.mark.parametrize("name", ["wrong mac", "unknown", "wrong secret", "unknown node", "no secret"])
async def test_a_forged_name_is_answered_as_an_unknown_one(push_service: Service, name: str) -> None:
    device = android()
    async with push_service.user_server() as server:
        forged = forgeries(await server.route(device))[name]
        server.core.enable(forged)
        server.notify(forged, Notification(Grade.NORMAL, ciphertext(), iv()))
        failed = await server.next_event()
        assert isinstance(failed, Failed)
        assert str(failed.refusal) == "cancel/item-not-found"
        assert failed.refusal.disabled_client == ""
    assert await push_service.has_no_more(device)


@pytest.mark.requirement("X9")
@pytest.mark.parametrize("dialect", [Dialect.DRAFT, Dialect.XEP0357])
async def test_another_domain_is_answered_the_same(push_service: Service, dialect: Dialect) -> None:
    """The route belongs to a user of Prosody's domain, and the double has all of its secrets."""
    device, juliet = android(), push_service.peer.user("juliet")
    known = await enable_push(push_service.peer, juliet, device)
    async with push_service.user_server() as server:
        route = Route(SERVICE, dialect, known.client, known.node, known.secret)
        server.core.enable(route)
        server.notify(route, Notification(Grade.NORMAL, ciphertext(), iv()))
        failed = await server.next_event()
        assert isinstance(failed, Failed)
        assert str(failed.refusal) == "cancel/item-not-found"
        assert failed.refusal.disabled_client == ""
    assert await push_service.has_no_more(device)


@pytest.mark.requirement("X9")
async def test_a_user_cannot_push_in_the_name_of_the_server(push_service: Service) -> None:
    device, mallory = android(), push_service.peer.user("mallory")
    async with push_service.peer.account(mallory, "laptop") as account:
        known = await register(account, SERVICE, device)
        assert isinstance(known, Registered)
        notification = element("notification", PUSH2, {}, element("client", PUSH2, text=known.client))
        stanza = element("message", "", {"to": SERVICE, "from": peers.USERS, "id": uuid.uuid4().hex}, notification)
        answer = await account.ask(stanza)
        assert [part.tag.rpartition("}")[2] for part in answer.find("error")] == ["forbidden"]
        assert answer.find("error").get("type") == "auth"
    assert await push_service.has_no_more(device)


@pytest.mark.parametrize(
    "inside",
    [
        [],
        [element("client", PUSH2)],
        [element("client", PUSH2, text="a" * 1025)],
        [element("client", PUSH2, text="a"), element("client", PUSH2, text="b")],
    ],
    ids=["no client", "empty client", "long client", "two clients"],
)
async def test_a_malformed_push_is_answered_with_bad_request(push_service: Service, inside: list[object]) -> None:
    async with push_service.user_server() as server:
        stanza = server.request("set", element("notification", PUSH2, {}, *inside))
        stanza.tag = "message"
        del stanza.attrib["type"]
        answer = await server.component.ask(stanza)
        assert answer.find("error").get("type") == "modify"
        assert answer.find("error")[0].tag.endswith("}bad-request")


# Limits ---------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("X15")
async def test_three_pushes_at_once_wake_the_app_at_once_and_once_more(push_service: Service) -> None:
    """mod_push2 sends one push for each enabled resource of a device. Each has its own id, so they are no
    repetition.
    """
    device = android()
    async with push_service.user_server() as server:
        route = await server.route(device, Dialect.XEP0357)
        for _ in range(3):
            server.notify(route, Notification())
        assert [type(await server.next_event()) for _ in range(3)] == [Stored] * 3
    await push_service.wait_for_push(device)
    assert await push_service.has_no_more(device, 1)


@pytest.mark.requirement("X15")
async def test_the_same_payload_three_times_within_fifty_milliseconds_is_delivered_once(push_service: Service) -> None:
    device, notification = android(), Notification(Grade.NORMAL, ciphertext(), iv())
    async with push_service.user_server() as server:
        route = await server.route(device, Dialect.XEP0357)
        for _ in range(3):
            server.notify(route, notification)
        assert [type(await server.next_event()) for _ in range(3)] == [Stored] * 3
    await push_service.wait_for_push(device)
    assert await push_service.has_no_more(device, 1)


@pytest.mark.requirement("X15")
async def test_a_stanza_that_is_sent_again_is_answered_alike_and_delivered_once(push_service: Service) -> None:
    device = android()
    async with push_service.user_server() as server:
        route = await server.route(device, Dialect.XEP0357)
        [stanza] = server.notify(route, Notification(Grade.NORMAL, ciphertext(), iv()))
        assert isinstance(await server.next_event(), Stored)
        assert (await server.component.ask(stanza)).get("type") == "result"
    await push_service.wait_for_push(device)
    assert await push_service.has_no_more(device, 1)


@pytest.mark.requirement("X15")
async def test_the_seventh_call_within_a_minute_gets_wait(push_service: Service) -> None:
    device = android()
    async with push_service.user_server() as server:
        route = await server.route(device, Dialect.XEP0357)
        for _ in range(6):
            server.notify(route, Notification(Grade.VOIP, ciphertext(), iv()))
            assert isinstance(await server.next_event(), Stored)
        server.notify(route, Notification(Grade.VOIP, ciphertext(), iv()))
        failed = await server.next_event()
        assert isinstance(failed, Failed)
        assert str(failed.refusal) == "wait/resource-constraint"
        server.core.disable(route)
    assert len(await push_service.wait_for_pushes(device, 6)) == 6


@pytest.mark.requirement("X18")
async def test_a_payload_too_large_for_the_phone_becomes_a_wake_up_that_reports_it(push_service: Service) -> None:
    device = android()
    async with push_service.user_server() as server:
        server.notify(await server.route(device), Notification(Grade.NORMAL, ciphertext(3500), iv()))
    data = (await push_service.wait_for_push(device))["data"]
    assert data["x"] == "truncated"
    assert "e" not in data


@pytest.mark.requirement("X14")
async def test_answers_come_while_gorush_hangs(push_service: Service) -> None:
    device = android()
    async with push_service.user_server() as server:
        route = await server.route(device, Dialect.XEP0357)
        break_peer(push_service.gorush_url, delay_ms=HANGING_MS)
        try:
            for _ in range(3):
                server.notify(route, Notification(Grade.NORMAL, ciphertext(), iv()))
                assert isinstance(await server.next_event(timeout_seconds=peers.TIMEOUT_SECONDS), Stored)
            assert push_service.pushes(device) == []
        finally:
            mend_peer(push_service.gorush_url)


async def test_two_services_of_one_name_do_not_both_connect(push_service: Service) -> None:
    with pytest.raises(ConnectionFailed, match="conflict"):
        await push_service.peer.component().connect()
    await push_service.wait_until_connected()
