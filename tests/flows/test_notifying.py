"""Requests on the whole way: the envelope at the node, the push at gorush, the reports in the reply."""

import os
import re
import time
from dataclasses import replace

import pytest

from notifications.messages import NotificationType, Report, ReportError
from tests.rig.network import APP_TOPIC, Network, android, iphone, new_identity, new_sender, unregistered_phone
from tests.rig.server import wait_until
from waku_bridge.client import Content, NoAnswer, Preferences, RegisteringClient
from waku_bridge.codec.keys import author_hash, chat_hash
from waku_bridge.messages import MessageType

CHAT, OTHER_CHAT = chat_hash("a group"), chat_hash("another group")
CIPHERTEXT = b"what only the phone can read"
OPEN_REPLIES = "SELECT count(*) FROM waku_bridge_outboundreply WHERE state IN ('pending', 'published')"
STATES_OF_REPLIES = """
    SELECT DISTINCT message_type, state, payload IS NULL FROM waku_bridge_outboundreply WHERE created_at >= %s
"""


@pytest.mark.requirement("SN2")
def test_two_installations_are_pushed_to_once_each_and_reported_in_the_order_asked(network: Network) -> None:
    apple, google = iphone(), android()
    first = network.phone(apple)
    second = unregistered_phone(first.identity)
    second.change(google)
    network.register(second)
    sender = new_sender()
    found = {destination.installation_id: destination for destination in network.query(sender, first)}
    asked = [found[second.installation_id], found[first.installation_id]]
    reports = network.notify(sender, asked, sender.one_to_one(CIPHERTEXT))
    assert reports == (_success(second), _success(first))
    (to_apple,), (to_google,) = network.pushes_to(apple), network.pushes_to(google)
    data = {
        "encryptedMessage": "0x" + CIPHERTEXT.hex(),
        "chatId": "0x" + author_hash(sender.identity.pub33).hex(),
        "publicKey": "0x" + first.identity.key_hash.hex(),
    }
    assert re.fullmatch(r"\d+-1", to_apple["notif_id"])
    assert to_apple["notification"] == {
        "notif_id": to_apple["notif_id"],
        "tokens": [apple.device_token],
        "platform": 1,
        "message": "New message in Messenger",
        "topic": APP_TOPIC,
        "collapse_id": _collapse_id(to_apple),
        "content_available": True,
        "sound": "default",
        "priority": "high",
        "push_type": "alert",
        "data": {**data, "deepLink": "status-app://chats"},
    }
    assert to_google["notification"] == {
        "notif_id": to_google["notif_id"],
        "tokens": [google.device_token],
        "platform": 2,
        "message": "New message in Messenger",
        "android": {
            "notification": {"tag": _collapse_id(to_google)},
        },
        "data": data,
    }


@pytest.mark.requirement("SN1")
def test_a_wrong_access_token_and_an_unregistered_phone_are_reported_and_not_notified(network: Network) -> None:
    address, sender = android(), new_sender()
    phone = network.phone(address)
    (destination,) = network.query(sender, phone)
    wrong = replace(destination, access_token=unregistered_phone().access_token)
    assert network.notify(sender, [wrong]) == (_failure(phone, ReportError.WRONG_TOKEN),)
    phone.unregister()
    network.register(phone)
    assert network.notify(sender, [destination]) == (_failure(phone, ReportError.NOT_REGISTERED),)
    assert network.pushes_to(address) == []


def test_a_muted_chat_gets_no_push_and_its_sender_gets_success(network: Network) -> None:
    address, sender = android(), new_sender()
    phone = network.phone(address, Preferences(muted_chats=(CHAT,)))
    for chat, pushes in ((CHAT, 0), (OTHER_CHAT, 1)):
        content = Content(NotificationType.MESSAGE, chat_id=chat, author=author_hash(new_identity().pub33))
        assert network.notify(sender, network.query(sender, phone), content) == (_success(phone),)
        assert len(network.pushes_to(address)) == pushes


def test_a_repeated_request_is_answered_as_before_and_delivered_once(network: Network) -> None:
    address, sender, message_id, since_ns = android(), new_sender(), os.urandom(32), time.time_ns()
    phone = network.phone(address)
    destinations = network.query(sender, phone)
    first = network.notify(sender, destinations, message_id=message_id)
    again = network.notify(sender, destinations, message_id=message_id)
    assert first == again == (_success(phone),)
    assert len(network.replies(sender, since_ns=since_ns)) == 2
    sql = "SELECT count(*) FROM notifications_notificationrequest WHERE message_id = %s"
    assert network.rows(sql, message_id) == [(1,)]
    assert len(network.pushes_to(address)) == 1


@pytest.mark.requirement("SN6")
@pytest.mark.parametrize("address", [iphone("dead-"), android("dead-")], ids=["APN", "Firebase"])
def test_a_dead_token_is_reported_and_its_phone_is_found_no_more(network: Network, address) -> None:
    sender = new_sender()
    phone = network.phone(address)
    assert network.notify(sender, network.query(sender, phone)) == (_failure(phone, ReportError.NOT_REGISTERED),)
    with pytest.raises(NoAnswer):
        network.query(sender, phone, timeout_seconds=1)
    assert len(network.pushes_to(address)) == 1


def test_a_gateway_that_is_busy_for_a_moment_delays_the_push_but_not_the_reply(network: Network) -> None:
    address, sender = android("flaky1-"), new_sender()
    phone = network.phone(address)
    assert network.notify(sender, network.query(sender, phone)) == (_success(phone),)
    refused, accepted = network.pushes_to(address)
    assert refused["error"]
    assert not accepted["error"]
    assert refused["collapse_id"] == accepted["collapse_id"]


def test_replies_are_confirmed_by_the_store_and_then_forgotten(network: Network) -> None:
    [(started_at,)] = network.rows("SELECT clock_timestamp()")
    sender = new_sender()
    network.notify(sender, network.query(sender, network.phone()))
    wait_until(lambda: network.rows(OPEN_REPLIES) == [(0,)], what="all replies are confirmed or given up")
    assert set(network.rows(STATES_OF_REPLIES, started_at)) == {
        (MessageType.REGISTRATION_RESPONSE, "confirmed", True),
        (MessageType.QUERY_RESPONSE, "unconfirmed", True),  # no store is asked for it
        (MessageType.RESPONSE, "confirmed", True),
    }


def _success(phone: RegisteringClient) -> Report:
    return Report(phone.identity.key_hash, phone.installation_id, success=True)


def _failure(phone: RegisteringClient, error: ReportError) -> Report:
    return Report(phone.identity.key_hash, phone.installation_id, success=False, error=error)


def _collapse_id(push: dict) -> str:
    assert re.fullmatch("[0-9a-f]{32}", push["collapse_id"])
    return push["collapse_id"]
