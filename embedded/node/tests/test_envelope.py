"""Messages as JSON, read as nwaku reads them by its source, and as measured on v0.38.1 where it says so."""

from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedded.node.envelope import (
    InvalidMessageError,
    is_static_shard,
    parse_json,
    read_message,
    relay_fields,
    store_fields,
)
from waku_bridge.messages import WakuMessage

TOPIC = "/waku/1/0x75b8b8f6/rfc26"
NOW_NS = 1_700_000_000_000_000_000
MINIMAL = {"payload": "YWJj", "contentTopic": TOPIC}


def test_fills_in_fields_that_a_sender_may_omit():
    assert read_message(MINIMAL, now_ns=NOW_NS) == WakuMessage(b"abc", TOPIC, NOW_NS, version=0)


@pytest.mark.parametrize("timestamp", [1, -1, 2**53 + 1, 2**63 - 1, -(2**63)])
def test_keeps_any_timestamp_of_64_bits_exactly(timestamp):
    assert read_message(MINIMAL | {"timestamp": timestamp}, now_ns=NOW_NS).timestamp_ns == timestamp


@pytest.mark.parametrize(
    "change",
    [
        {"payload": ""},
        {"payload": "YWJj\n"},
        {"payload": "YWIxY"},
        {"payload": "-_-_"},  # the URL alphabet
        {"payload": "Y W I="},
        {"payload": "ä"},
        {"payload": None},
        {"payload": 3},
        {"contentTopic": ""},
        {"contentTopic": "  "},
        {"contentTopic": "\ud800"},
        {"contentTopic": None},
        {"version": -1},
        {"version": True},
        {"version": "1"},
        {"timestamp": 2**63},
        {"timestamp": 1.5},
        {"timestamp": "1"},
        {"meta": "?"},
        {"ephemeral": 1},
        {"proof": 7},
        {"colour": "red"},
        {"Payload": "YWJj"},
    ],
)
def test_refuses_a_message_with_a_faulty_field(change):
    with pytest.raises(InvalidMessageError):
        read_message(MINIMAL | change, now_ns=NOW_NS)


@pytest.mark.parametrize(
    ("change", "read"),
    [
        ({"payload": "YWI"}, WakuMessage(b"ab", TOPIC, NOW_NS, version=0)),
        ({"version": 2**32}, WakuMessage(b"abc", TOPIC, NOW_NS, version=0)),
        ({"meta": b64encode(bytes(65)).decode()}, WakuMessage(b"abc", TOPIC, NOW_NS, version=0, meta=bytes(65))),
    ],
)
def test_takes_what_nwaku_0_38_1_took_when_measured(change, read):
    assert read_message(MINIMAL | change, now_ns=NOW_NS) == read


@pytest.mark.parametrize("fields", [None, [], "text", {}, {"payload": "YWJj"}, {"contentTopic": TOPIC}])
def test_refuses_a_value_that_is_no_message(fields):
    with pytest.raises(InvalidMessageError):
        read_message(fields, now_ns=NOW_NS)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b'{"a": 1, "a": 1}', b'[{"b": {"a": 1, "a": 2}}]', b"[" * 100_000]
)
def test_refuses_json_that_is_broken_or_repeats_a_field(body):
    with pytest.raises(InvalidMessageError):
        parse_json(body)


def test_writes_meta_only_when_there_is_one_and_proof_only_for_relay():
    message = WakuMessage(b"abc", TOPIC, 5, version=1)
    fields = {"payload": "YWJj", "contentTopic": TOPIC, "version": 1, "timestamp": 5, "ephemeral": False}
    assert store_fields(message) == fields
    assert relay_fields(message) == fields | {"proof": ""}
    assert store_fields(WakuMessage(b"abc", TOPIC, 5, version=1, meta=b"m")) == fields | {"meta": "bQ=="}


messages = st.builds(
    WakuMessage,
    payload=st.binary(min_size=1),
    content_topic=st.text(min_size=1).filter(str.strip),
    timestamp_ns=st.integers(-(2**63), 2**63 - 1).filter(bool),
    version=st.integers(0, 2**32 - 1),
    ephemeral=st.booleans(),
    meta=st.binary(max_size=64),
)


@given(messages)
def test_reads_its_own_messages(message):
    assert read_message(relay_fields(message), now_ns=NOW_NS) == message


@pytest.mark.parametrize(
    ("topic", "is_one"),
    [
        ("/waku/2/rs/16/32", True),
        ("/waku/2/rs/65535/0", True),
        ("/waku/2/rs/65536/0", False),
        ("/waku/2/rs/16", False),
        ("/waku/2/rs/16/32/", False),
        ("/waku/2/rs/\u0661/2", False),
        ("/waku/2/default-waku/proto", False),
        ("/waku/1/0x75b8b8f6/rfc26", False),
        ("", False),
    ],
)
def test_recognises_a_static_shard(topic, is_one):
    assert is_static_shard(topic) is is_one
