"""Requests on the whole way: the envelope at the node, the push at gorush, the reports in the reply."""

import os
import re
import time
from dataclasses import replace
from itertools import chain

import pytest

from notifications.messages import Report, ReportError
from tests.rig.conversation import to_server
from tests.rig.network import APP_TOPIC, Network, android, iphone, new_identity, new_sender, unregistered_phone
from tests.rig.server import Fleet
from waku_bridge.client.registering import RegisteringClient
from waku_bridge.client.session import NoAnswer
from waku_bridge.codec.keys import author_hash
from waku_bridge.codec.wire import MAX_BODY_BYTES
from waku_bridge.messages import MessageType

CIPHERTEXT = b"what only the phone can read"


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


# Broken and foreign envelopes -----------------------------------------------------------------------------------------
CHAT_MESSAGE = 1  # a message type of Status that has nothing to do with push notifications


@pytest.mark.requirement("SR10")
def test_bad_envelopes_between_good_ones_are_dropped_with_their_reasons(fleet: Fleet, network: Network) -> None:
    address, sender, since_ns = android(), new_sender(), time.time_ns()
    logged = {name: len(text) for name, text in fleet.logs().items()}  # without the lines of tests that kill workers
    destinations = network.query(sender, network.phone(address))
    ids = [os.urandom(32) for _ in range(5)]
    good = [
        sender.request(destinations, sender.one_to_one(), message_id, timestamp_ns=time.time_ns()).message
        for message_id in ids
    ]
    bad = {
        "not_decryptable": replace(good[0], payload=os.urandom(len(good[0].payload)), timestamp_ns=time.time_ns()),
        "too_large": to_server(os.urandom(MAX_BODY_BYTES + 1), MessageType.REQUEST, new_identity()),
        "unknown_type": to_server(b"hello", CHAT_MESSAGE, new_identity()),
        "malformed_body": to_server(b"\xff" * 40, MessageType.REQUEST, new_identity()),
        "body_not_decryptable": to_server(b"\x01" * 99, MessageType.REGISTRATION, new_identity()),
    }
    hashes = network.publish(*chain(*zip(good, bad.values(), strict=True)))
    ended = sorted(network.how_it_ended(envelope_hash) for envelope_hash in hashes)
    assert ended == sorted([("dropped", reason) for reason in bad] + [("processed", "")] * len(good))
    assert len(network.pushes_to(address)) == len(good)
    network.wait_until_answered()
    assert {reply.message_id for reply in network.replies(sender, since_ns=since_ns)} == set(ids)
    new = {name: text[logged.get(name, 0) :] for name, text in fleet.logs().items()}
    assert [text for text in new.values() if "Traceback" in text] == []


def _success(phone: RegisteringClient) -> Report:
    return Report(phone.identity.key_hash, phone.installation_id, success=True)


def _failure(phone: RegisteringClient, error: ReportError) -> Report:
    return Report(phone.identity.key_hash, phone.installation_id, success=False, error=error)


def _collapse_id(push: dict) -> str:
    assert re.fullmatch("[0-9a-f]{32}", push["collapse_id"])
    return push["collapse_id"]
