"""The inbox: every envelope is stored once."""

from datetime import UTC, datetime

import pytest

from waku_bridge.inbox import inbox
from waku_bridge.messages import Envelope, WakuMessage
from waku_bridge.models import InboundEnvelope

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SHARD = "/waku/2/rs/16/32"
State = InboundEnvelope.State


def envelope(number, **fields):
    message = {"payload": b"payload", "content_topic": "/waku/1/0x01020304/rfc26", "timestamp_ns": 5} | fields
    return Envelope(bytes([number]) * 32, SHARD, WakuMessage(**message))


def store(*envelopes, source="http://one"):
    return inbox.store(envelopes, source=source, now=NOW)


@pytest.mark.django_db
def test_an_envelope_is_stored_as_it_came():
    assert store(envelope(1, timestamp_ns=-(2**63))) == [b"\x01" * 32]
    row = InboundEnvelope.objects.get()
    assert (bytes(row.hash), row.pubsub_topic, row.content_topic) == (b"\x01" * 32, SHARD, "/waku/1/0x01020304/rfc26")
    assert (bytes(row.payload), row.timestamp_ns, row.source) == (b"payload", -(2**63), "http://one")
    assert (row.state, row.received_at) == (State.RECEIVED, NOW)


@pytest.mark.django_db
def test_returns_only_the_hashes_of_new_envelopes():
    store(envelope(1))
    assert store(envelope(1), envelope(2), envelope(2), source="http://two") == [b"\x02" * 32]
    assert InboundEnvelope.objects.get(hash=b"\x01" * 32).source == "http://one"


@pytest.mark.django_db
@pytest.mark.parametrize(("size", "statements"), [(0, 0), (200, 1)])
def test_a_page_costs_one_statement_and_an_empty_one_none(size, statements, django_assert_num_queries):
    with django_assert_num_queries(statements):
        assert len(store(*map(envelope, range(size)))) == size
