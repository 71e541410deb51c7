"""The cost of hostile bytes: no payload makes the codec do more than five times the work of an honest request.

The tests count calls of Python functions and of functions in C, which are the same on every machine. The times are in
docs/measurements.md.
"""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import pytest

from notifications.messages import PushNotification, PushRequest
from waku_bridge.codec import keys, wire
from waku_bridge.codec.envelope import decode, encode
from waku_bridge.codec.errors import CodecError, NotAccepted, TooLarge
from waku_bridge.codec.keys import shared_key
from waku_bridge.codec.tests.examples import CLIENT, NOW_NS, SERVER, UUID, framed, sent_payload
from waku_bridge.messages import MessageType

ACCEPTED = {MessageType.REGISTRATION, MessageType.QUERY, MessageType.REQUEST}
MOST = wire.MAX_BODY_BYTES


def registration(body: bytes) -> bytes:
    key = shared_key(CLIENT.private_key, SERVER.private_key.public_key)
    return sent_payload(keys.seal_body(body, key, os.urandom), MessageType.REGISTRATION)


def many(entry: bytes, size: int = MOST) -> bytes:
    return entry * (size // len(entry))


HONEST = encode(
    PushRequest(b"m" * 32, (PushNotification(CLIENT.key_hash, UUID, UUID, 1, b"c" * 64, b"a" * 64, b"x" * 300),)),
    signer=CLIENT,
    recipient=SERVER.pub33,
    timestamp_ns=NOW_NS,
    random_bytes=os.urandom,
).message.payload
HOSTILE = {
    "answers to queries": sent_payload(many(b"\x0a\x00"), MessageType.QUERY_RESPONSE),
    "answers to requests": sent_payload(many(b"\x12\x00"), MessageType.RESPONSE),
    "contact codes": sent_payload(many(b"\x0a\x02\x22\x00"), MessageType.CONTACT_CODE_ADVERTISEMENT),
    "answers to registrations": sent_payload(b"\x1a\x80\x80\x04" + bytes(0x10000), MessageType.REGISTRATION_RESPONSE),
    "empty notifications": sent_payload(many(b"\x0a\x00"), MessageType.REQUEST),
    "notifications with a field": sent_payload(many(b"\x0a\x02\x2a\x00"), MessageType.REQUEST),
    "empty keys": sent_payload(many(b"\x0a\x00"), MessageType.QUERY),
    "unknown fields": sent_payload(many(b"\x78\x01"), MessageType.REQUEST),
    "groups": sent_payload(many(b"\x7b\x7c"), MessageType.REQUEST),
    "empty list entries": registration(many(b"\x3a\x00\x42\x00\x72\x00\x7a\x00")),
    "a body of zeros": registration(bytes(MOST)),
    "bundles": framed(many(b"\x1a\x00")),
    "a map": framed(many(b"\xaa\x06\x00")),
    "something like a segment": framed(many(b"\x08\x01")),
    "zeros": framed(bytes(MOST)),
}


@contextmanager
def calls() -> Iterator[Counter[str]]:
    counted: Counter[str] = Counter()

    def note(_frame: FrameType, event: str, _argument: Any) -> None:
        counted[event] += 1

    sys.setprofile(note)
    try:
        yield counted
    finally:
        sys.setprofile(None)


def cost(payload: bytes) -> int:
    with calls() as counted, suppress(CodecError):
        decode(payload, [SERVER], SERVER, accepted=ACCEPTED)
    return counted["call"] + counted["c_call"]


@pytest.mark.parametrize("payload", HOSTILE.values(), ids=HOSTILE.keys())
def test_no_payload_costs_more_than_five_honest_requests(payload: bytes) -> None:
    cost(HONEST)  # so that values that are computed once are in memory
    assert len(payload) <= wire.MAX_ENVELOPE_BYTES
    assert cost(payload) <= 5 * cost(HONEST)


def test_a_type_that_servers_do_not_accept_is_refused_before_its_signature_is_verified() -> None:
    for message_type in set(MessageType) - ACCEPTED:
        with pytest.raises(NotAccepted):
            decode(sent_payload(b"\xff not protobuf", message_type), [SERVER], SERVER, accepted=ACCEPTED)


@pytest.mark.parametrize("message_type", [MessageType.REQUEST, MessageType.QUERY])
def test_a_group_does_not_hide_the_entries_behind_it(message_type: MessageType) -> None:
    """The parser would refuse the end of this body, so TooLarge shows that it was not called."""
    body = b"\x7b\x7c" + many(b"\x0a\x00", 10_000) + b"\x07"
    with pytest.raises(TooLarge):
        decode(sent_payload(body, message_type), [SERVER], SERVER, accepted=ACCEPTED)
