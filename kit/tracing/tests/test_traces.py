"""Tests of trace ids: which messages are traced, and that the id of a trace reveals nothing about its message."""

import hashlib
import os

import pytest

from kit.tracing.spans import trace_of

KEYS = [hashlib.sha256(number.to_bytes(4)).digest() for number in range(4000)]


@pytest.fixture(autouse=True)
def on(settings):
    settings.TRACES, settings.TRACES_SHARE = True, 1.0


def test_a_message_has_the_same_trace_in_every_process():
    assert trace_of(KEYS[0]) == trace_of(bytes(bytearray(KEYS[0])))


def test_no_two_messages_share_a_trace_or_a_first_span():
    traces = [trace_of(key) for key in KEYS]
    assert len({trace.id for trace in traces}) == len({trace.first_span_id for trace in traces}) == len(KEYS)


def test_the_trace_of_a_message_cannot_be_computed_without_the_key(settings):
    before = trace_of(KEYS[0])
    settings.TRACES_KEY = os.urandom(32)
    assert trace_of(KEYS[0]) != before


def test_the_same_share_of_the_messages_is_always_traced(settings):
    settings.TRACES_SHARE = 0.1
    traced = {key for key in KEYS if trace_of(key)}
    assert 0.08 < len(traced) / len(KEYS) < 0.12
    assert traced == {key for key in KEYS if trace_of(key)}
    settings.TRACES_SHARE = 0.2
    assert traced < {key for key in KEYS if trace_of(key)}


def test_nothing_is_traced_at_a_share_of_zero_or_while_tracing_is_off(settings):
    settings.TRACES_SHARE = 0.0
    assert not any(map(trace_of, KEYS))
    settings.TRACES, settings.TRACES_SHARE = False, 1.0
    assert not any(map(trace_of, KEYS))
