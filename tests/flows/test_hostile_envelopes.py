"""Envelopes that are broken, foreign or old, between good ones: each is dropped with its reason and affects
no other.
"""

import os
import time
from dataclasses import replace

import pytest

from notifications.messages import PushRequest
from tests.rig.network import Network, android, new_identity, new_sender, unregistered_phone
from tests.rig.server import Fleet
from waku_bridge.codec import topics
from waku_bridge.codec.envelope import encode, encode_payload
from waku_bridge.codec.limits import MAX_BODY_BYTES
from waku_bridge.messages import MessageType, PushResponse, WakuMessage

CHAT_MESSAGE = 1  # a message type of Status that has nothing to do with push notifications


@pytest.mark.requirement("SR10")
def test_bad_envelopes_between_good_ones_are_dropped_with_their_reasons(fleet: Fleet, network: Network) -> None:
    address, sender, since_ns = android(), new_sender(), time.time_ns()
    logged = {name: len(text) for name, text in fleet.logs().items()}  # without the lines of tests that kill workers
    destinations = network.query(sender, network.phone(address))
    ids = [os.urandom(32) for _ in range(9)]
    good = [
        sender.request(destinations, sender.one_to_one(), message_id, timestamp_ns=time.time_ns()).message
        for message_id in ids
    ]
    bad = {
        "not_decryptable": [_garbage(good[0]), _flipped(good[0]), _for_somebody_else(network)],
        "too_large": [_oversized(network)],
        "unknown_type": [_signed(network, b"hello", CHAT_MESSAGE)],
        "malformed_body": [_signed(network, b"\xff" * 40, MessageType.REQUEST)],
        "empty_payload": [_signed(network, b"", MessageType.REQUEST)],
        "body_not_decryptable": [_signed(network, b"\x01" * 99, MessageType.REGISTRATION)],
        "not_for_servers": [_answer_to_the_server(network)],
        "no_message_id": [_request_without_id(network)],
    }
    expected = [reason for reason, messages in bad.items() for _ in messages]
    hashes = network.publish(*_mixed(good, [message for messages in bad.values() for message in messages]))
    ended = sorted(network.how_it_ended(envelope_hash) for envelope_hash in hashes)
    assert ended == sorted([("dropped", reason) for reason in expected] + [("processed", "")] * len(good))
    assert len(network.pushes_to(address)) == len(good)
    network.wait_until_answered()
    assert {reply.message_id for reply in network.replies(sender, since_ns=since_ns)} == set(ids)
    new = {name: text[logged.get(name, 0) :] for name, text in fleet.logs().items()}
    assert [text for text in new.values() if "Traceback" in text] == []


def test_a_message_on_a_foreign_topic_is_never_stored(network: Network) -> None:
    foreign = WakuMessage(os.urandom(500), topics.content_topic("some other chat"), time.time_ns())
    (foreign_hash,) = network.publish(foreign)
    network.phone()  # its answer shows that earlier messages were read
    assert network.rows("SELECT 1 FROM waku_bridge_inboundenvelope WHERE hash = %s", foreign_hash) == []


@pytest.mark.parametrize("version", [0, 2])
def test_another_version_of_waku_is_passed_over(network: Network, version: int) -> None:
    sender = new_sender()
    phone = network.phone()
    request = sender.request(
        network.query(sender, phone), sender.one_to_one(), os.urandom(32), timestamp_ns=time.time_ns()
    )
    (envelope_hash,) = network.publish(replace(request.message, version=version))
    network.phone()
    assert network.rows("SELECT 1 FROM waku_bridge_inboundenvelope WHERE hash = %s", envelope_hash) == []


def test_a_replayed_envelope_is_answered_again_and_changes_nothing(network: Network) -> None:
    """An old message under a new timestamp has a new hash, so only its content shows that it was here before."""
    old, new, since_ns = android(), android(), time.time_ns()
    phone, sender = unregistered_phone(), new_sender()
    phone.change(old)
    phone.use([network.server])
    (registration,) = phone.tick(time.time_ns()).messages
    network.how_it_ended(*network.publish(registration))
    request = sender.request(
        network.query(sender, phone), sender.one_to_one(), os.urandom(32), timestamp_ns=time.time_ns()
    )
    network.how_it_ended(*network.publish(request.message))
    assert len(network.pushes_to(old)) == 1
    phone.change(new)
    network.register(phone)
    replayed = [replace(message, timestamp_ns=time.time_ns()) for message in (registration, request.message)]
    ended = [network.how_it_ended(envelope_hash) for envelope_hash in network.publish(*replayed)]
    assert ended == [("processed", "stale_version"), ("processed", "")]
    assert len(network.pushes_to(old) + network.pushes_to(new)) == 1
    network.wait_until_answered()
    assert len(network.replies(sender, since_ns=since_ns)) == 2


def _mixed(good: list[WakuMessage], bad: list[WakuMessage]) -> list[WakuMessage]:
    pairs = zip(good, bad, strict=False)
    rest = good[len(bad) :] + bad[len(good) :]
    return [message for pair in pairs for message in pair] + rest


def _garbage(like: WakuMessage) -> WakuMessage:
    return replace(like, payload=os.urandom(len(like.payload)), timestamp_ns=time.time_ns())


def _flipped(message: WakuMessage) -> WakuMessage:
    payload = bytearray(message.payload)
    payload[200] ^= 1
    return replace(message, payload=bytes(payload))


def _for_somebody_else(network: Network) -> WakuMessage:
    """Return a message for another key on our topic: one in 5000 keys shares a partitioned topic."""
    request = PushRequest(os.urandom(32), ())
    return _to(network, request, recipient=new_identity().pub33)


def _oversized(network: Network) -> WakuMessage:
    return _signed(network, os.urandom(MAX_BODY_BYTES + 1), MessageType.REQUEST)


def _answer_to_the_server(network: Network) -> WakuMessage:
    return _to(network, PushResponse(os.urandom(32)), recipient=network.server)


def _request_without_id(network: Network) -> WakuMessage:
    sender = new_sender()
    destinations = network.query(sender, network.phone())
    return sender.request(destinations, sender.one_to_one(), b"", timestamp_ns=time.time_ns()).message


def _signed(network: Network, payload: bytes, message_type: int) -> WakuMessage:
    return encode_payload(
        payload,
        message_type,
        signer=new_identity(),
        topic_name=topics.partitioned_name(network.server),
        timestamp_ns=time.time_ns(),
        random_bytes=os.urandom,
        recipient=network.server,
    ).message


def _to(network: Network, body: PushRequest | PushResponse, *, recipient: bytes) -> WakuMessage:
    return encode(
        body,
        signer=new_identity(),
        topic_name=topics.partitioned_name(network.server),
        timestamp_ns=time.time_ns(),
        random_bytes=os.urandom,
        recipient=recipient,
    ).message
