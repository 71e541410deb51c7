"""Envelopes that are broken or foreign, between good ones: each is dropped with its reason and affects no other."""

import os
import time
from dataclasses import replace
from itertools import chain

import pytest

from tests.rig.network import Network, android, new_identity, new_sender
from tests.rig.server import Fleet
from waku_bridge.codec import topics
from waku_bridge.codec.envelope import encode_payload
from waku_bridge.codec.limits import MAX_BODY_BYTES
from waku_bridge.messages import MessageType, WakuMessage

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
        "not_decryptable": _garbage(good[0]),
        "too_large": _signed(network, os.urandom(MAX_BODY_BYTES + 1), MessageType.REQUEST),
        "unknown_type": _signed(network, b"hello", CHAT_MESSAGE),
        "malformed_body": _signed(network, b"\xff" * 40, MessageType.REQUEST),
        "body_not_decryptable": _signed(network, b"\x01" * 99, MessageType.REGISTRATION),
    }
    hashes = network.publish(*chain(*zip(good, bad.values(), strict=True)))
    ended = sorted(network.how_it_ended(envelope_hash) for envelope_hash in hashes)
    assert ended == sorted([("dropped", reason) for reason in bad] + [("processed", "")] * len(good))
    assert len(network.pushes_to(address)) == len(good)
    network.wait_until_answered()
    assert {reply.message_id for reply in network.replies(sender, since_ns=since_ns)} == set(ids)
    new = {name: text[logged.get(name, 0) :] for name, text in fleet.logs().items()}
    assert [text for text in new.values() if "Traceback" in text] == []


def _garbage(like: WakuMessage) -> WakuMessage:
    return replace(like, payload=os.urandom(len(like.payload)), timestamp_ns=time.time_ns())


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
