"""Tests of spans and errors: as a collector receives them, and what may be in them."""

import base64
import hashlib
import logging
import os
import subprocess
import sys
from time import time_ns

import pytest
import structlog

from kit import otlp, telemetry
from kit.otlp import EXPORTED, LOCATIONS, NAMES, is_allowed, sorted_out
from kit.processes.tasks import TaskFailed
from kit.telemetry import BatchTrace, Role, note, step, trace_of
from tests.rig.collector import attributes, collected

A, B = b"a" * 32, b"b" * 32


@pytest.fixture
def collecting(settings, monkeypatch):
    settings.OTLP_HEADERS = {"authorization": "Bearer abc"}
    with collected(settings, monkeypatch) as running:
        yield running


def test_steps_of_a_message_are_one_trace_below_its_first(collecting):
    began_ns = time_ns()
    step("read", A, {"node": "127.0.0.1:8645"}, began_ns=began_ns, role=Role.CONSUMER, is_first=True)
    step("send", A, {"outcome": "transient"}, began_ns=began_ns, role=Role.CLIENT, is_error=True)
    collecting.finish()
    first, second = collecting.spans
    trace = trace_of(A)
    assert (first.trace_id, first.span_id, first.parent_span_id) == (*trace, b"")
    assert (second.trace_id, second.parent_span_id) == (first.trace_id, first.span_id)
    assert second.span_id != first.span_id
    assert (first.kind, second.kind, second.status.code) == (5, 3, 2)
    assert attributes(first.attributes) == {"server.address": "127.0.0.1:8645"}
    assert first.start_time_unix_nano == began_ns <= first.end_time_unix_nano
    sent = [collecting.headers[0][name] for name in ("authorization", "content-type")]
    assert sent == ["Bearer abc", "application/x-protobuf"]
    assert collecting.resources[0]["service.name"] == "pushserver"


def test_a_batch_is_a_trace_with_its_steps_and_links_to_the_messages_and_back(collecting):
    batch = BatchTrace()
    with batch.step("Inbox"):
        note([(A, {"outcome": "accepted"}), (B, {"outcome": "accepted"})])
    with batch.step("Results"):
        note([])
    batch.committed()
    collecting.finish()
    by_name = {(span.name, span.trace_id): span for span in collecting.spans}
    (whole,) = [span for span in collecting.spans if span.name == "batch"]
    inbox, results = by_name["Inbox", whole.trace_id], by_name["Results", whole.trace_id]
    assert inbox.parent_span_id == results.parent_span_id == whole.span_id
    firsts = [trace_of(A), trace_of(B)]
    assert [(link.trace_id, link.span_id) for link in inbox.links] == firsts
    for trace_id, span_id in firsts:
        own = by_name["Inbox", trace_id]
        assert own.parent_span_id == span_id
        assert [(link.trace_id, link.span_id) for link in own.links] == [(whole.trace_id, inbox.span_id)]
    assert list(results.links) == []


def test_a_batch_that_was_rolled_back_or_had_no_traced_message_is_not_sent(collecting, settings):
    rolled_back, other = BatchTrace(), BatchTrace()
    with rolled_back.step("Inbox"):
        note([(A, {})])
    settings.TRACES_SHARE = 0.0
    with other.step("Inbox"):
        note([(B, {})])
    other.committed()
    collecting.finish()
    assert collecting.spans == []


def test_facts_outside_of_a_batch_or_while_tracing_is_off_are_not_read(settings):
    note(pytest.fail("looked at") for _ in range(1))
    settings.TRACES = False
    batch = BatchTrace()
    with batch.step("Inbox"):
        note(pytest.fail("looked at") for _ in range(1))
    batch.committed()


def test_a_span_with_an_attribute_that_is_not_allowed_does_not_leave(collecting, caplog):
    step("send", A, {"code": "ab" * 32}, began_ns=time_ns())
    step("send", A, {"device_token": "x"}, began_ns=time_ns())
    step("send", A, {"code": "fine"}, began_ns=time_ns())
    collecting.finish()
    assert [attributes(span.attributes) for span in collecting.spans] == [{"pushserver.code": "fine"}]
    assert "abab" not in caplog.text
    assert "pushserver.code" in caplog.text


def test_spans_for_a_collector_that_refuses_them_are_dropped_and_logged_once(collecting, caplog):
    collecting.status = 400
    for _ in range(2):
        step("send", A, {}, began_ns=time_ns())
        telemetry.exporter().flush()
    assert collecting.spans == []
    assert caplog.text.count("collector_takes_nothing") == 1


def test_a_process_that_ends_sends_its_spans_but_does_not_wait_for_an_unreachable_collector(
    collecting, settings, monkeypatch
):
    step("send", A, {}, began_ns=time_ns())
    telemetry.close()
    assert [span.name for span in collecting.spans] == ["send"]
    settings.OTLP_URL = "http://127.0.0.1:1"
    exporter = otlp.Exporter()
    monkeypatch.setattr(telemetry, "exporter", lambda: exporter)
    for _ in range(otlp.MAX_WAITING + 10):
        step("send", A, {}, began_ns=time_ns())
    telemetry.close()
    assert not exporter._spans


def test_an_error_does_not_wait_until_all_spans_are_sent(collecting, monkeypatch):
    """A collector that hangs takes seconds for each batch, and new spans come faster."""
    monkeypatch.setattr(otlp, "MAX_IN_A_BATCH", 1)
    for _ in range(3):
        step("send", A, {}, began_ns=time_ns())
    telemetry.exporter().error("late", {}, at_ns=time_ns(), severity="ERROR", trace=None)
    collecting.finish()
    assert [error.event_name for error in collecting.errors] == ["late"]
    assert b"late" in b"".join(collecting.bodies[:2])  # the thread of the exporter may have sent a span before


def test_an_error_of_tracing_does_not_reach_the_caller(settings, monkeypatch, caplog):
    settings.TRACES, settings.TRACES_SHARE = True, 1.0
    monkeypatch.setattr(telemetry, "exporter", lambda: 1 / 0)
    step("send", A, {}, began_ns=time_ns())
    assert "ZeroDivisionError" in caplog.text


def reported(collecting, say):
    """Return the record that the collector receives of an error that ``say`` logs."""
    handler = telemetry.ErrorHandler()
    logging.getLogger().addHandler(handler)
    try:
        say()
    finally:
        logging.getLogger().removeHandler(handler)
    collecting.finish()
    return collecting.errors


def fail(error):
    raise error


def test_an_error_is_sent_with_its_words_and_the_trace_of_its_envelope(collecting):
    log = structlog.get_logger("waku_bridge.inbox.processing")
    (error,) = reported(collecting, lambda: log.error("envelope_failed", envelope_hash=A.hex(), error="KeyError"))
    assert (error.body.string_value, error.event_name, error.severity_text) == ("envelope_failed",) * 2 + ("ERROR",)
    assert error.trace_id == trace_of(A).id
    assert attributes(error.attributes)["error.type"] == "KeyError"
    assert A.hex() not in str(error)
    assert attributes(error.attributes)["pushserver.logger"] == "waku_bridge.inbox.processing"


@pytest.mark.parametrize(
    ("error", "name", "stack"),
    [
        (ValueError("token " + "ab" * 32), "ValueError", "in fail"),
        (TaskFailed("KeyError at tasks.py:3 > rows.py:7"), "TaskFailed", "KeyError at tasks.py:3 > rows.py:7"),
    ],
)
def test_an_exception_is_sent_with_its_place_and_without_its_text(collecting, error, name, stack):
    def say():
        try:
            fail(error)
        except (ValueError, TaskFailed):
            logging.getLogger("some.library").exception("Cannot store %s", "5ecret")

    (record,) = reported(collecting, say)
    shown = attributes(record.attributes)
    assert (record.body.string_value, shown["exception.type"]) == (telemetry.LIBRARY_ERROR, name)
    assert shown["exception.stacktrace"].endswith(stack)
    assert not [word for word in ("5ecret", "abab", "Cannot store") if word in str(record)]


def test_warnings_and_errors_of_the_exporter_are_not_sent(collecting):
    def say():
        structlog.get_logger("kit.otlp").error("span_refused")
        structlog.get_logger("kit.batches.batch").warning("batch_split")

    assert reported(collecting, say) == []


STARTED = """
import sys
import django
django.setup()
import notifications.tasks, waku_bridge.reading.stores, xmpp_bridge.inbound, waku_bridge.bridge, pushserver.celery
print(sorted(name for name in sys.modules if name.startswith("opentelemetry.proto")))
"""


@pytest.mark.parametrize("endpoint", ["", "http://127.0.0.1:1"])
def test_a_process_imports_the_exporter_with_its_first_span(endpoint, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    ended = subprocess.run([sys.executable, "-c", STARTED], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout == "[]\n"


# What may leave: our own words, and nothing that identifies anybody or a message --------------------------------------
KEY = hashlib.sha256(b"any").digest()
SECRETS = {
    "token of Apple": KEY.hex(),
    "token of Firebase": "dQw4w9WgXcQ:APA91b" + base64.urlsafe_b64encode(3 * KEY).decode(),
    "access token": "0b8a1f7e-5c4d-4e9a-9b1c-7d2f3a4b5c6d",
    "key hash": hashlib.shake_256(b"key").hexdigest(64),
    "its first digits": hashlib.shake_256(b"key").hexdigest(8),
    "in capitals": KEY.hex().upper(),
    "chat key": "zQ3shYSHp7GoiXaauJMnDcjwU2yNjdzpXLosAWapPS4CFxc11",
    "private key in base64": base64.b64encode(KEY).decode(),
    "content topic": "/waku/1/0x9f2e3a4b/rfc26",
    "JID": "ann@example.org/phone",
    "message": "See you at eight!",
    "bytes": KEY,
    "list": ["word"],
}
WORDS = ["accepted", "request", "node-1.example.org:8645", "[::1]:8645", "unreachable", "waku", "", 3, 0.5, True]
FROM_THE_CODE = [
    "envelope.py:31 in decode\ntasks.py:7 in <lambda>",
    "ServerDisconnectedErrorOfSomeLibrary",
    "kit.batches.batch",
]


@pytest.mark.parametrize("what", SECRETS)
def test_no_secret_passes_under_any_name(what):
    assert not [name for name in NAMES.values() if is_allowed(name, SECRETS[what])]


@pytest.mark.parametrize("what", ["token of Apple", "access token", "key hash", "JID", "bytes"])
def test_no_secret_passes_as_a_place_in_the_code(what):
    assert not [name for name in LOCATIONS.values() if is_allowed(name, SECRETS[what])]


def test_words_figures_and_places_in_the_code_pass():
    assert all(is_allowed(name, word) for name in NAMES.values() for word in WORDS)
    assert all(is_allowed(name, place) for name in LOCATIONS.values() for place in FROM_THE_CODE)


def test_a_name_that_is_not_in_the_list_does_not_pass():
    allowed, refused = sorted_out({"outcome": "accepted", "key_hash": 1})
    assert (attributes(allowed), refused) == ({"pushserver.outcome": "accepted"}, ["key_hash"])


def test_no_name_in_the_list_is_for_a_secret():
    words = {"key", "hash", "token", "topic", "jid", "address_encrypted", "installation", "payload", "url", "id"}
    assert [name for name in EXPORTED if words & set(name.replace(".", "_").split("_"))] == []


# Traces ---------------------------------------------------------------------------------------------------------------

KEYS = [hashlib.sha256(number.to_bytes(4)).digest() for number in range(4000)]


@pytest.fixture
def traced(settings):
    """Return a function that returns the keys of which messages are traced at this share."""

    def at_share(share):
        settings.TRACES_SHARE = share
        return {key for key in KEYS if trace_of(key)}

    settings.TRACES, settings.TRACES_SHARE = True, 1.0
    return at_share


def test_a_message_has_a_trace_of_its_own_which_cannot_be_computed_without_the_key(traced, settings):
    traces = [trace_of(key) for key in KEYS]
    assert trace_of(bytes(bytearray(KEYS[0]))) == traces[0]  # as in every process
    assert len({trace.id for trace in traces}) == len({trace.first_span_id for trace in traces}) == len(KEYS)
    settings.TRACES_KEY = os.urandom(32)
    assert trace_of(KEYS[0]) != traces[0]


def test_the_same_share_of_the_messages_is_always_traced(traced, settings):
    tenth = traced(0.1)
    assert 0.08 < len(tenth) / len(KEYS) < 0.12
    assert tenth == traced(0.1)
    assert tenth < traced(0.2)
    assert traced(0.0) == set()
    settings.TRACES = False
    assert traced(1.0) == set()
