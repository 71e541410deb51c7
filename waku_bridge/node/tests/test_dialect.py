"""The JSON of nwaku and go-waku, read into the same values."""

import base64
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waku_bridge.messages import WakuMessage
from waku_bridge.node import BadNodeMessage, StoreEntry, StorePage, from_json, to_json
from waku_bridge.node.dialect import read_base64, read_store_page
from waku_bridge.node.errors import NodeError

MESSAGE = WakuMessage(b"payload", "/waku/1/0x01020304/rfc26", 1_700_000_000_000_000_000)
SHARD = "/waku/2/rs/16/32"
DIGEST = bytes(
    range(0xE0, 0x100)
)  # in base64 with both signs that differ: 4OHi4+Tl5ufo6err7O3u7/Dx8vP09fb3+Pn6+/z9/v8=
STANDARD, URL_SAFE = base64.b64encode(DIGEST).decode(), base64.urlsafe_b64encode(DIGEST).decode()


def test_a_written_message_is_read_as_the_same():
    assert from_json(to_json(MESSAGE)) == MESSAGE


def test_fields_that_a_node_leaves_out_are_zero():
    assert from_json({"contentTopic": "t"}) == WakuMessage(b"", "t", 0, version=0)
    absent = dict.fromkeys(("payload", "timestamp", "version", "ephemeral", "meta"))
    assert from_json({"contentTopic": "t"} | absent) == WakuMessage(b"", "t", 0, version=0)


@pytest.mark.parametrize(
    "raw",
    [
        None,
        5,
        "text",
        [],
        {},
        {"contentTopic": None},
        {"contentTopic": 5},
        {"contentTopic": "t", "payload": "?"},
        {"contentTopic": "t", "payload": "Y Q=="},
        {"contentTopic": "t", "payload": "YWJjZ"},
        {"contentTopic": "t", "payload": "é"},
        {"contentTopic": "t", "payload": "\ud800"},
        {"contentTopic": "t", "payload": [1, 2]},
        {"contentTopic": "t", "payload": {"a": 1}},
        {"contentTopic": "t", "meta": "?"},
        {"contentTopic": "t", "timestamp": "1"},
        {"contentTopic": "t", "timestamp": 1.5},
        {"contentTopic": "t", "timestamp": 2**63},
        {"contentTopic": "t", "timestamp": True},
        {"contentTopic": "t", "version": "1"},
    ],
    ids=repr,
)
def test_refuses_an_object_that_is_no_message(raw):
    with pytest.raises(BadNodeMessage):
        from_json(raw)


@given(st.binary(max_size=20))
def test_base64_is_read_in_every_form(data):
    for encoded in (base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode()):
        assert read_base64(encoded) == read_base64(encoded.rstrip("=")) == data


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=3)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("contentTopic", "payload", "timestamp", "version"), JSON)))
def test_any_object_is_a_message_or_refused(raw):
    with contextlib.suppress(BadNodeMessage):
        assert from_json(raw).payload == read_base64(raw.get("payload") or "")


def test_unknown_fields_of_a_message_are_ignored():
    assert from_json(to_json(MESSAGE) | {"proof": "", "colour": [1]}) == MESSAGE


# The message that a real go-waku v0.10.0 answered a read with: no version and no timestamp, as its sender gave none.
def test_fields_that_go_waku_leaves_out_or_writes_as_null_are_zero():
    raw = {"payload": "aGFsbG///g==", "contentTopic": "/waku/1/0x75b8b8f6/rfc26", "meta": "bQ==", "ephemeral": None}
    assert from_json(raw) == WakuMessage(b"hallo\xff\xfe", raw["contentTopic"], 0, version=0, meta=b"m")


@pytest.mark.parametrize(
    "answer",
    [
        {
            "requestId": "",
            "statusCode": 200,
            "statusDesc": "OK",
            "messages": [{"messageHash": "0x" + DIGEST.hex(), "pubsubTopic": SHARD, "message": {"contentTopic": "t"}}],
            "paginationCursor": "0x" + DIGEST.hex(),
        },
        {
            "request_id": "7",
            "status_code": 200,
            "status_desc": "",
            "messages": [{"message_hash": STANDARD, "pubsub_topic": SHARD, "message": {"contentTopic": "t"}}],
            "pagination_cursor": STANDARD,
            "colour": 1,
        },
    ],
    ids=["nwaku", "go-waku"],
)
def test_a_page_of_the_store_in_both_dialects(answer):
    page = read_store_page(answer)
    assert page.entries == (StoreEntry(DIGEST, SHARD, {"contentTopic": "t"}),)
    assert page.cursor in ("0x" + DIGEST.hex(), URL_SAFE)


@pytest.mark.parametrize("cursor", ["\ud800", "\x00", "a b", "é", "0" * 1025], ids=ascii)
def test_a_cursor_that_cannot_be_sent_back_is_an_error_of_the_node(cursor):
    with pytest.raises(NodeError, match="cursor"):
        read_store_page({"messages": [], "paginationCursor": cursor})


@pytest.mark.parametrize("nothing", [{"messages": None}, {"messages": []}, {}])
def test_an_empty_page_of_the_store(nothing):
    assert read_store_page(nothing) == StorePage()


@pytest.mark.parametrize("text", [None, 5, "", "0x", "0x12", "zz", "e" * 63, STANDARD + "AAAA", "\ud800", "é" * 32])
def test_an_entry_of_the_store_without_a_usable_hash_stays_on_the_page(text):
    entry = {"messageHash": text, "message": {"contentTopic": "t"}}
    assert read_store_page({"messages": [entry]}).entries == (StoreEntry(b"", "", {"contentTopic": "t"}),)


@pytest.mark.parametrize("entry", [None, 5, "x", []])
def test_an_entry_that_is_no_object_stays_on_the_page(entry):
    assert read_store_page({"messages": [entry]}).entries == (StoreEntry(b"", "", entry),)
