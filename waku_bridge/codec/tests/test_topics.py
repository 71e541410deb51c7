from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waku_bridge.codec import wire
from waku_bridge.messages import WakuMessage

RFC_TOPIC = "/waku/2/default-waku/proto"
RFC_MESSAGE = WakuMessage(
    bytes.fromhex("010203045445535405060708"),
    "/waku/2/default-content/proto",
    0x175789BFA23F8400,
    meta=b"super-secret",
)
STATUS_MESSAGE = WakuMessage(b"abc", "/waku/1/0x75b8b8f6/rfc26", 1_700_000_000_000_000_000)


RFC_HASHES = [
    ({}, "64cce733fed134e83da02b02c6f689814872b1a0ac97ea56b76095c3c72bfe05"),
    ({"meta": bytes(range(64))}, "7158b6498753313368b9af8f6e0a0a05104f68f972981da42a43bc53fb0c1b27"),
    ({"meta": b""}, "a2554498b31f5bcdfcbf7fa58ad1c2d45f0254f3f8110a85588ec3cf10720fd8"),
    ({"payload": b""}, "483ea950cb63f9b9d6926b262bb36194d3f40a0463ce8446228350bd44e96de4"),
]
STATUS_HASHES = [
    ({}, "112db40e8e207f9d8dc64a8744c2e75d397695c534f679d00b84140fd7fed5b6"),
    ({"timestamp_ns": 0}, "0dc373bfa9dce7bc3ab5691fcba4aa9fe6d6c003e82ca693c9fa6b29eda27b04"),
    ({"timestamp_ns": -1}, "9e8149b6dd6b578bfa2a73fcbaa9ef141b41446477b35ad7563e8933db20d6aa"),
]


@pytest.mark.requirement("W4")
@pytest.mark.parametrize(
    ("topic", "message", "expected"),
    [(RFC_TOPIC, replace(RFC_MESSAGE, **fields), expected) for fields, expected in RFC_HASHES]
    + [("/waku/2/rs/16/32", replace(STATUS_MESSAGE, **fields), expected) for fields, expected in STATUS_HASHES],
)
def test_hashes_the_messages_of_rfc_14_and_timestamps_as_signed_big_endian(topic, message, expected):
    assert wire.message_hash(topic, message).hex() == expected


def test_the_hash_depends_on_the_pubsub_topic_and_neither_on_version_nor_on_ephemeral():
    changed = replace(STATUS_MESSAGE, version=0, ephemeral=True)
    assert wire.message_hash("topic", changed) == wire.message_hash("topic", STATUS_MESSAGE)
    assert wire.message_hash("32", STATUS_MESSAGE) != wire.message_hash("64", STATUS_MESSAGE)


# Content topics -------------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1))
def test_reads_the_number_that_it_writes(topic):
    assert wire.topic_number(wire.topic_of_number(topic)) == topic


def test_the_content_topic_of_a_name_has_the_number_of_its_hash():
    assert wire.content_topic("a name") == wire.topic_of_number(int.from_bytes(wire.topic("a name")))


@pytest.mark.parametrize(
    "other",
    [
        "",
        "/waku/1/0x0123abcd/rfc27",
        "/waku/2/0x0123abcd/rfc26",
        "/waku/1/0x0123ABCD/rfc26",
        "/waku/1/0x+123abcd/rfc26",
        "/waku/1/0x-123abcd/rfc26",
        "/waku/1/0x 123abcd/rfc26",
        "/waku/1/0x1_23_4_5/rfc26",
        "/waku/1/0x\u0660123abcd/rfc26",
        "/waku/1/0x0123abcd/rfc26/",
        "/waku/1/0x123abcd/rfc26",
    ],
)
def test_another_spelling_is_another_topic(other):
    assert wire.topic_number(other) is None
