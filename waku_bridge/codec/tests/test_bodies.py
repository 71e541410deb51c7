"""Every body, read and written: arbitrary values, unknown fields, unknown enum values."""

from contextlib import nullcontext, suppress
from dataclasses import fields, replace

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from notifications.messages import PushNotification, PushRequest, Report
from registrations.messages import QueryInfo, RegistrationMessage
from waku_bridge.codec import wire
from waku_bridge.codec.errors import MalformedBody, TooLarge
from waku_bridge.codec.pb import push_notifications_pb2 as pb
from waku_bridge.codec.tests.examples import BODIES, NOTIFICATION, REGISTRATION
from waku_bridge.messages import (
    ContactCodeAdvertisement,
    MessageType,
    PushResponse,
    Query,
    QueryResponse,
    RegistrationResponse,
)

TEXT = st.text(max_size=40)
HASH = st.binary(max_size=64)
HASHES = st.lists(HASH, max_size=4).map(tuple)
ENUM = st.integers(-(2**31), 2**31 - 1)
VERSION = st.integers(0, 2**64 - 1)

REGISTRATIONS = st.builds(
    RegistrationMessage, TEXT, VERSION, ENUM, TEXT, TEXT, TEXT, HASH, *[st.booleans()] * 4, *[HASHES] * 4
)
INFOS = st.lists(st.builds(QueryInfo, HASH, TEXT, VERSION, HASH, TEXT, HASHES, HASH), max_size=3).map(tuple)
NOTIFICATIONS = st.lists(st.builds(PushNotification, HASH, TEXT, TEXT, ENUM, HASH, HASH, HASH), max_size=3).map(tuple)
REPORTS = st.lists(st.builds(Report, HASH, TEXT, st.booleans(), ENUM), max_size=3).map(tuple)
PLAIN_BODIES = st.one_of(
    st.builds(RegistrationResponse, HASH, st.booleans(), ENUM),
    st.builds(Query, HASHES),
    st.builds(QueryResponse, HASH, st.booleans(), INFOS),
    st.builds(PushRequest, HASH, NOTIFICATIONS),
    st.builds(PushResponse, HASH, REPORTS),
    st.builds(ContactCodeAdvertisement, INFOS),
)
UNKNOWN_FIELD = b"\xa2\x06\x03new"  # field 100, bytes


def parse(message_type, payload):
    if message_type is MessageType.REGISTRATION:
        return wire.parse_registration(payload)
    return wire.parse(message_type, payload)


@pytest.mark.requirement("R6")
@given(PLAIN_BODIES | REGISTRATIONS)
def test_reads_every_body_it_writes(body):
    assert parse(*wire.serialize(body)) == body


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_skips_unknown_fields_and_refuses_every_truncation_or_reads_less(body):
    message_type, payload = wire.serialize(body)
    assert parse(message_type, payload + UNKNOWN_FIELD) == body
    for end in range(len(payload)):
        with suppress(MalformedBody):
            assert parse(message_type, payload[:end]) != body


@pytest.mark.parametrize(
    ("message_type", "payload"),
    [
        (MessageType.REGISTRATION, b"\x12\x01\xff"),
        (MessageType.QUERY_RESPONSE, b"\x0a\x03\x0a\x01\xff"),
        (MessageType.REQUEST, b"\x0a\x03\x22\x01\xff"),
        (MessageType.REQUEST, b"\x0a\x05\x22\x03\xed\xa0\x80"),  # a lone surrogate
        (MessageType.RESPONSE, b"\x12\x03\x22\x01\xff"),
        (MessageType.CONTACT_CODE_ADVERTISEMENT, b"\x0a\x03\x12\x01\xff"),
    ],
)
def test_refuses_strings_that_are_not_utf8(message_type, payload):
    with pytest.raises(MalformedBody):
        parse(message_type, payload)


@pytest.mark.parametrize(
    ("differences", "message_id", "is_taken"),
    [
        ({"public_key_hash": b"h" * 64, "installation_id": "i" * 256}, b"m" * 256, True),
        ({"public_key_hash": b"h" * 65}, b"m", False),
        ({"installation_id": "i" * 257}, b"m", False),
        ({"installation_id": "é" * 129}, b"m", False),  # 258 bytes
        ({}, b"m" * 257, False),
    ],
)
def test_refuses_a_request_with_an_id_that_is_too_long(differences, message_id, is_taken):
    request = PushRequest(message_id, (replace(NOTIFICATION, **differences), NOTIFICATION))
    with nullcontext() if is_taken else pytest.raises(TooLarge):
        assert wire.parse(*wire.serialize(request)) == request


def test_a_body_may_be_as_long_as_the_limit():
    def request(size):
        return PushRequest(b"m", (replace(NOTIFICATION, message=bytes(size)),))

    _, long = wire.serialize(request(100_000))
    message_type, longest = wire.serialize(request(100_000 + wire.MAX_BODY_BYTES - len(long)))
    assert len(longest) == wire.MAX_BODY_BYTES
    wire.parse(message_type, longest)


def test_a_malformed_body_does_not_show_in_the_error():
    with pytest.raises(MalformedBody) as caught:
        wire.parse_registration(b"\x12\x07secr\xffet")
    assert str(caught.value) == "malformed_body"
    assert isinstance(caught.value.__cause__, DecodeError)
    assert "secr" not in str(caught.value.__cause__)


def test_skips_the_chat_identity_of_a_contact_code():
    assert wire.parse(MessageType.CONTACT_CODE_ADVERTISEMENT, b"\x12\x02\x08\x01") == ContactCodeAdvertisement()


def test_every_field_of_a_registration_has_a_place():
    names = {field.name for field in fields(REGISTRATION)}
    on_the_wire = set(pb.PushNotificationRegistration.DESCRIPTOR.fields_by_name)
    assert names - {"app_topic"} == on_the_wire - {"apn_topic"}


# The count of fields. One that is skipped wrongly ends in 07, which begins no field.
WRONG = b"\x07"
FIELDS = {
    "varint": b"\x08\x01",
    "long varint": b"\x08" + b"\xff" * 9 + b"\x01",
    "fixed64": b"\x09" + WRONG * 8,
    "bytes": b"\x0a\x02" + WRONG * 2,
    "many bytes": b"\x0a\x81\x81\x01" + WRONG * (1 + (1 << 7) + (1 << 14)),
    "fixed32": b"\x0d" + WRONG * 4,
    "high number": b"\x82\x01\x00",  # the number of the field takes two bytes
    "begin of a group": b"\x0b",
    "end of a group": b"\x0c",
}


@pytest.mark.parametrize("field", FIELDS.values(), ids=FIELDS)
def test_counts_fields_of_every_wire_type(field):
    assert wire.has_more_fields(field * 3, 2)
    assert not wire.has_more_fields(field * 3, 3)


@pytest.mark.parametrize("rest", [WRONG, b"\x0e", b"\x08", b"\x08" + b"\xff" * 10 + b"\x01"])
def test_leaves_malformed_bodies_to_the_parser(rest):
    assert not wire.has_more_fields(b"\x08\x01" + rest, 1)
    assert not wire.has_more_fields(rest, 0)
    assert not wire.has_more_fields(b"", 0)
