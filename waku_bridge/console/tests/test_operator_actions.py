"""Operator actions on failed envelopes and dead letters."""

import base64
import json
import time
from datetime import timedelta
from functools import partial

import pytest
from django.utils import timezone

from tests.rig import rows
from waku_bridge.console import operator_actions
from waku_bridge.identity import own_content_topics
from waku_bridge.inbound import inbound
from waku_bridge.models import DeadLetter, InboundEnvelope

pytestmark = pytest.mark.django_db
State = InboundEnvelope.State
LONG_AGO = timedelta(minutes=5)


def make_letter(*, payload: bytes = b"x" * 100, **fields):
    """Make a dead letter that can be read by now, unless ``fields`` change that."""
    raw = {
        "payload": base64.b64encode(payload).decode(),
        "contentTopic": min(own_content_topics()),
        "version": 1,
        "timestamp": time.time_ns(),
    } | fields.pop("raw_fields", {})
    text = json.dumps(raw)
    return rows.make_dead_letter(**{"raw": text, "size_bytes": len(text)} | fields)


def twice(action, *names):
    return [action(names) for _ in "12"]


def test_a_failed_envelope_is_processed_again_once():
    at = timezone.now() - LONG_AGO
    failed = rows.make_envelope(state=State.FAILED, reason="KeyError", at=at)
    done = rows.make_envelope(state=State.PROCESSED, at=at)
    assert twice(operator_actions.process_again, failed.hash, done.hash) == [1, 0]
    assert [envelope.hash for envelope in inbound.take(10).envelopes] == [failed.hash]


def test_a_dropped_envelope_keeps_its_hash_only_and_a_dropped_letter_nothing():
    assert twice(operator_actions.drop_envelopes, rows.make_envelope(state=State.FAILED).hash) == [1, 0]
    row = InboundEnvelope.objects.get()
    assert (row.state, row.reason, row.payload) == (State.DROPPED, "operator", None)
    assert twice(operator_actions.drop_letters, make_letter().digest) == [1, 0]


@pytest.mark.parametrize("is_query", [False, True])
def test_a_letter_that_can_be_read_by_now_goes_into_the_inbox(is_query):
    topic = f"/waku/1/0x{rows.make_topic_key().topic:08x}/rfc26"
    letter = make_letter(raw_fields={"contentTopic": topic} if is_query else {})
    read_again = partial(operator_actions.read_again, now=timezone.now())
    assert twice(read_again, letter.digest) == [operator_actions.ReadAgain(1, 0), operator_actions.ReadAgain(0, 0)]
    assert (DeadLetter.objects.count(), InboundEnvelope.objects.get().state) == (0, State.RECEIVED)


@pytest.mark.parametrize(
    "fields",
    [
        {"raw": "{", "size_bytes": 1},
        {"raw": "{}", "size_bytes": 9000},
        {"raw": "[[[", "size_bytes": 3},
        {"raw": '"text"', "size_bytes": 6},
        {"raw_fields": {"contentTopic": "/waku/1/0x00000000/rfc26"}},
        {"raw_fields": {"contentTopic": 7}},
        {"raw_fields": {"version": 0}},
        {"raw_fields": {"timestamp": 1}},
        {"payload": b""},
    ],
)
def test_a_letter_that_still_cannot_be_read_stays(fields):
    letter = make_letter(**fields)
    assert operator_actions.read_again([letter.digest], now=timezone.now()) == operator_actions.ReadAgain(0, 1)
    assert (DeadLetter.objects.count(), InboundEnvelope.objects.count()) == (1, 0)
