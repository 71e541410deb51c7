"""Behaviour of real XMPP servers towards a push service: the facts behind the conformance suite and the server's
answers.

The push service is a double that answers as each test needs it, so these tests are about the servers.
"""

import asyncio
from collections.abc import Callable
from xml.etree.ElementTree import Element

import pytest
from slixmpp.xmlstream import tostring

from tests.interop.xmpp import peers
from tests.interop.xmpp.peers import DOUBLE_SECRET, DOUBLES, USERS, Peer, PushService, enable, write_to_absent
from xmpp_bridge.client import ConnectionFailed, registering
from xmpp_bridge.client.elements import PUBSUB, PUSH, element, error, reply_to, values_of

pytestmark = pytest.mark.xmpp

ITEM = f"{{{PUBSUB}}}pubsub/{{{PUBSUB}}}publish/{{{PUBSUB}}}item/{{{PUSH}}}notification"
OPTIONS = f"{{{PUBSUB}}}pubsub/{{{PUBSUB}}}publish-options"
FORM = "{jabber:x:data}x"
MESSAGES = 20
# mod_cloud_notify removes a route after this many errors that are not `wait`. By then one more push is under way.
PROSODY_GIVES_UP_AFTER = 16


def accept(push: Element) -> Element:
    return reply_to(push, "result")


def refuse(kind: str, condition: str) -> Callable[[Element], Element]:
    return lambda push: reply_to(push, "error", error(kind, condition))


def stay_silent(_push: Element) -> None:
    """Send no answer to a push."""


def has_body(push: Element) -> bool:
    return values_of(push.find(f"{ITEM}/{FORM}")).get("last-message-body", "") != ""


async def send_chats(peer: Peer, to: str, count: int = 1) -> None:
    """Send messages, and wait after each until the server has it, so that it has processed answers to the
    pushes, too.
    """
    async with peer.account(peer.user("romeo"), "desk") as romeo:
        for _ in range(count):
            await write_to_absent(romeo, to)
            await romeo.ping()


@pytest.mark.requirement("X6")
async def test_a_message_to_an_offline_user_becomes_a_push_from_the_domain(peer: Peer) -> None:
    async with (service := PushService(peer, accept)).connection:
        juliet = peer.user("juliet")
        await enable(peer, juliet, service.domain)
        await send_chats(peer, juliet)
        push = await service.next_push()
        assert (push.tag, push.get("type"), push.get("from"), push.get("to")) == ("iq", "set", USERS, service.domain)
        summary = values_of(push.find(f"{ITEM}/{FORM}"))
        assert summary["FORM_TYPE"] == "urn:xmpp:push:summary"
        assert summary["last-message-body"].lower().startswith("new message")
        assert values_of(push.find(f"{OPTIONS}/{FORM}"))["secret"] == "s3c-r1"
        assert not [part for part in (juliet, "Wherefore") if part in tostring(push)]


async def test_a_disabled_route_gets_no_push(peer: Peer) -> None:
    async with (service := PushService(peer, accept)).connection:
        juliet = peer.user("juliet")
        await enable(peer, juliet, service.domain)
        async with peer.account(juliet) as account:
            answer = await account.ask_own_account(registering.disable_xep0357(service.domain, "node-A"))
        assert answer.get("type") == "result"
        await send_chats(peer, juliet)
        assert await service.has_silence()


async def test_twenty_waits_remove_no_route(peer: Peer) -> None:
    """No push is repeated, either: a push that is answered with `wait` is lost."""
    async with (service := PushService(peer, refuse("wait", "resource-constraint"))).connection:
        juliet = peer.user("juliet")
        await enable(peer, juliet, service.domain)
        await send_chats(peer, juliet, MESSAGES)
        pushes = [await service.next_push() for _ in range(MESSAGES)]
        assert len({push.get("id") for push in pushes}) == MESSAGES
        assert await service.has_silence()


async def test_a_service_that_does_not_answer_keeps_its_routes(peer: Peer) -> None:
    async with (service := PushService(peer, stay_silent)).connection:
        juliet = peer.user("juliet")
        await enable(peer, juliet, service.domain)
        await send_chats(peer, juliet, MESSAGES)
        assert len([await service.next_push() for _ in range(MESSAGES)]) == MESSAGES


async def test_ejabberd_removes_a_route_at_the_first_cancel(real_ejabberd: Peer) -> None:
    async with (service := PushService(real_ejabberd, refuse("cancel", "item-not-found"))).connection:
        juliet = real_ejabberd.user("juliet")
        await enable(real_ejabberd, juliet, service.domain)
        await send_chats(real_ejabberd, juliet)
        await service.next_push()
        await peers.let_answers_arrive(service)
        await send_chats(real_ejabberd, juliet, 3)
        assert await service.has_silence()


async def test_prosody_removes_a_route_after_sixteen_cancels(real_prosody: Peer) -> None:
    async with (service := PushService(real_prosody, refuse("cancel", "item-not-found"))).connection:
        juliet = real_prosody.user("juliet")
        await enable(real_prosody, juliet, service.domain)
        for _ in range(PROSODY_GIVES_UP_AFTER):
            await send_chats(real_prosody, juliet)
            await service.next_push()
        await peers.let_answers_arrive(service)
        await send_chats(real_prosody, juliet, 3)
        assert await service.has_silence()


@pytest.mark.requirement("X12")
async def test_prosody_counts_an_error_in_the_wrong_namespace_as_a_failure(real_prosody: Peer) -> None:
    """Even a `wait` counts, so errors in answers must not have `xmlns='jabber:client'`."""

    def refuse_wrongly(push: Element) -> Element:
        answer = refuse("wait", "resource-constraint")(push)
        answer[0].tag = "{jabber:client}error"
        return answer

    async with (service := PushService(real_prosody, refuse_wrongly)).connection:
        juliet = real_prosody.user("juliet")
        await enable(real_prosody, juliet, service.domain)
        await send_chats(real_prosody, juliet)
        await service.next_push()
        await peers.let_answers_arrive(service)
    assert "Got error <(nil):(nil):>" in real_prosody.log()


async def test_ejabberd_removes_a_route_while_the_service_is_away_and_prosody_does_not(peer: Peer) -> None:
    juliet = peer.user("juliet")
    domain = next(peers.UNUSED)
    await enable(peer, juliet, domain)
    await send_chats(peer, juliet)
    async with (service := PushService(peer, accept, domain)).connection:
        assert await service.has_silence()  # the server repeats nothing after the service is back
        await send_chats(peer, juliet)
        if peer.name == "ejabberd":
            assert await service.has_silence()
        else:
            assert (await service.next_push()).get("from") == USERS


async def test_a_hibernating_session_gets_one_push_for_a_burst(real_prosody: Peer) -> None:
    async with (service := PushService(real_prosody, accept)).connection:
        juliet = real_prosody.user("juliet")
        phone = real_prosody.account(juliet)
        await phone.connect()
        await phone.ask_own_account(registering.enable_xep0357(service.domain, "node-A", "s3c-r1"))
        phone.be_available()
        phone.send("<enable xmlns='urn:xmpp:sm:3' resume='true'/>")
        await phone.ping()
        phone.abort()
        await phone.ended.wait()
        async with real_prosody.account(real_prosody.user("romeo"), "desk") as romeo:
            for _ in range(3):
                romeo.send(peers.chat(juliet))
                await romeo.ping()
        # A stanza that the phone had not acknowledged when it vanished may cause a push, too, but one without a body.
        assert len([push for push in await service.pushes_until_silence() if has_body(push)]) == 1


@pytest.mark.requirement("X9")
async def test_a_user_cannot_speak_for_the_domain(peer: Peer) -> None:
    """Prosody stamps the user's full JID, and ejabberd ends the stream."""
    mallory = peer.account(peer.user("mallory"), "laptop")
    async with (service := PushService(peer, stay_silent)).connection, mallory:
        notification = element("notification", "urn:xmpp:push2:0")
        mallory.send(element("message", "", {"to": service.domain, "from": USERS, "id": "spoof"}, notification))
        if peer.name == "ejabberd":
            await asyncio.wait_for(mallory.ended.wait(), peers.TIMEOUT_SECONDS)
            assert await service.has_silence()
        else:
            assert (await service.next_push()).get("from", "").endswith("/laptop")


@pytest.mark.requirement("X1")
@pytest.mark.parametrize(
    ("domain", "secret", "sent_by_prosody", "sent_by_ejabberd"),
    [
        (DOUBLES[0], "wrong", "not-authorized", "not-authorized"),
        ("nobody.test", "s3cret", "host-unknown", "not-authorized"),
    ],
    ids=["wrong secret", "unknown domain"],
)
async def test_an_unknown_component_gets_a_stream_error(
    peer: Peer, domain: str, secret: str, sent_by_prosody: str, sent_by_ejabberd: str
) -> None:
    with pytest.raises(ConnectionFailed, match=sent_by_prosody if peer.name == "prosody" else sent_by_ejabberd):
        await peer.component(domain, secret).connect()


async def test_prosody_refuses_a_second_component_of_one_name_and_ejabberd_takes_it(peer: Peer) -> None:
    domain = next(peers.UNUSED)
    async with peer.component(domain, DOUBLE_SECRET):
        second = peer.component(domain, DOUBLE_SECRET)
        if peer.name == "ejabberd":
            await second.connect()
            await second.close()
        else:
            with pytest.raises(ConnectionFailed, match="conflict"):
                await second.connect()
