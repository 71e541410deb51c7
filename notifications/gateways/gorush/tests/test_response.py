"""Tests of the meaning of gorush's answers: shapes, statuses, and anything else that a peer may send."""

import json
from dataclasses import replace
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notifications.gateways.gorush.rules.file import shipped_rules
from notifications.gateways.gorush.sending import push_api
from notifications.gateways.gorush.tests.test_request import APPLE, FIREBASE
from notifications.messages import Outcome, Result

OK = b'{"success":"ok","counts":1,"logs":[]}'


def read_response(status, body, push, *, retry_after=""):
    return push_api.read_response(status, body, push, shipped_rules(), retry_after=retry_after)


def entry(error, **fields):
    return {"type": "failed-push", "platform": "ios", "token": "device-token", "message": "m", "error": error} | fields


def answer(*entries):
    return json.dumps({"success": "ok", "counts": 1, "logs": entries}).encode()


def test_no_entry_means_that_apple_or_google_took_it():
    assert read_response(200, OK, APPLE) == Result(Outcome.DELIVERED)
    assert read_response(200, b'{"success":"ok","logs":null}', FIREBASE) == Result(Outcome.DELIVERED)


@pytest.mark.parametrize("token", ["device-token", "**********", "**********-tok**********", ""])
def test_an_entry_is_about_the_one_token_sent_however_it_is_masked(token):
    assert read_response(200, answer(entry("Unregistered", token=token)), APPLE).outcome is Outcome.DEAD


def test_an_entry_is_about_the_attempt_whose_id_it_has_or_that_has_none():
    for its in ({"notif_id": "7-2"}, {"notif_id": ""}, {}):
        assert read_response(200, answer(entry("Unregistered", **its)), APPLE).outcome is Outcome.DEAD


@pytest.mark.parametrize(
    "its",
    [
        {"token": "another-token"},
        {"token": "device-token-of-somebody-else"},
        {"token": "**********another**********"},
        {"token": "another-token", "notif_id": "7-1"},
    ],
)
def test_an_error_of_another_token_means_that_ours_was_taken(its):
    """Another attempt would double the push."""
    foreign = entry("Unregistered", **its)
    assert read_response(200, answer(foreign), APPLE) == Result(Outcome.DELIVERED)
    assert read_response(200, answer(entry("BadPriority"), foreign), APPLE).code == "BadPriority"


@pytest.mark.parametrize(
    "its",
    [
        *({"token": ["device-token"]}, {"token": 7}, {"token": "another-token", "notif_id": "7-2"}),
        *({"notif_id": "7-1"}, {"notif_id": "8-2"}, {"notif_id": 7}),
    ],
)
def test_an_error_that_may_be_of_another_attempt_or_token_proves_nothing(its):
    """Above all, our token does not count as dead. The error is no proof of the opposite either."""
    other = entry("Unregistered", **its)
    assert read_response(200, answer(other), APPLE) == Result(Outcome.AMBIGUOUS, "not_understood")
    assert read_response(200, answer(entry("BadPriority"), other), APPLE).code == "BadPriority"


@pytest.mark.parametrize("counts", [1, 2, None, -1, 1.5, 0.0, True, False, "1", "", [], {"total": 1}, {"total": 0}])
def test_an_answer_without_errors_is_a_success_however_it_counts(counts):
    """A server that speaks gorush's protocol, and writes something else there, has sent the push all the same."""
    body = json.dumps({"success": "ok", "counts": counts, "logs": []}).encode()
    assert read_response(200, body, APPLE) == Result(Outcome.DELIVERED)


def test_a_count_of_zero_means_that_nothing_was_sent():
    assert read_response(200, b'{"success":"ok","counts":0,"logs":[]}', APPLE) == Result(Outcome.CONFIG, "dropped")


def test_an_error_is_read_in_the_words_of_its_platform():
    assert read_response(200, answer(entry("BadDeviceToken")), APPLE).outcome is Outcome.DEAD
    assert read_response(200, answer(entry("BadDeviceToken")), FIREBASE).outcome is Outcome.TRANSIENT


def test_the_last_of_several_entries_counts():
    entries = [entry("ServiceUnavailable"), entry("Unregistered")]
    assert read_response(200, answer(*entries), APPLE).code == "Unregistered"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>welcome to our proxy</html>",
        b"null",
        b"[]",
        b'"ok"',
        b"{}",
        b'{"success":"ok","logs":{"error":"Unregistered"}}',
        b'{"success":"ok","logs":"none"}',
        b'{"success":"no","logs":[]}',
        b'{"success":true,"logs":[]}',
        b'{"logs":[]}',
        b'{"success":"ok","logs":[null]}',
        b'{"success":"ok","logs":[{}]}',
        b'{"success":"ok","logs":[{"error":null}]}',
        b'{"success":"ok","logs":["Unregistered"]}',
        OK[:-1],
        b"[" * 100_000,
    ],
)
def test_an_answer_that_cannot_be_read_is_ambiguous(body):
    assert read_response(200, body, APPLE).outcome is Outcome.AMBIGUOUS


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (400, Outcome.CONFIG),
        (429, Outcome.TRANSIENT),
        (500, Outcome.TRANSIENT),
        (502, Outcome.TRANSIENT),
        (503, Outcome.TRANSIENT),
        (504, Outcome.AMBIGUOUS),
        (301, Outcome.CONFIG),
        (401, Outcome.CONFIG),
        (404, Outcome.CONFIG),
        (204, Outcome.CONFIG),
    ],
)
def test_a_status_decides_whatever_the_body_says(status, outcome):
    assert read_response(status, OK, APPLE) == Result(outcome, f"http_{status}")


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        (b'{"code":400,"message":"Missing notifications field."}', Outcome.PAYLOAD),
        (b"Client sent an HTTP request to an HTTPS server.\n", Outcome.CONFIG),
        (b"<html><head><title>400 The plain HTTP request was sent to HTTPS port</title></head></html>", Outcome.CONFIG),
        (b"", Outcome.CONFIG),
        (b"400", Outcome.CONFIG),
        (b'{"message":"bad request"}', Outcome.CONFIG),
    ],
)
def test_only_gorush_itself_can_refuse_a_push_finally(body, outcome):
    """Any other server at its address gives this answer to every push."""
    assert read_response(400, body, APPLE) == Result(outcome, "http_400")


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("", 0),
        ("0", 0),
        ("120", 120),
        ("999999999", 3600),
        ("-1", 0),
        ("1.5", 0),
        ("soon", 0),
        ("²", 0),
        ("٣", 0),
        ("Wed, 21 Oct 2026 07:28:00 GMT", 0),
        ("9" * 5000, 3600),
    ],
)
def test_waits_for_the_requested_time_up_to_a_maximum(header, seconds):
    assert read_response(503, b"", APPLE, retry_after=header).retry_after_seconds == seconds


@given(st.integers(100, 599), st.binary(), st.text(max_size=20))
def test_reads_any_bytes_and_takes_none_for_success(status, body, retry_after):
    result = read_response(status, body, APPLE, retry_after=retry_after)
    assert result.outcome is not Outcome.DELIVERED


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
)
SHAPES = st.fixed_dictionaries(
    {}, optional={"success": JSON | st.just("ok"), "logs": JSON | st.lists(JSON), "counts": JSON | st.just(1)}
)


@given(SHAPES)
def test_any_shape_but_the_right_one_is_no_success(shape):
    result = read_response(200, json.dumps(shape).encode(), FIREBASE)
    counts, logs = shape.get("counts", 1), shape.get("logs")
    is_right = shape.get("success") == "ok" and not logs and not (type(counts) is int and counts == 0)
    assert (result.outcome is Outcome.DELIVERED) <= (shape.get("success") == "ok")
    if not logs:
        assert (result.outcome is Outcome.DELIVERED) == is_right


@pytest.mark.parametrize("push", [APPLE, FIREBASE])
def test_a_device_token_in_an_error_goes_nowhere(push):
    push = replace(push, address=b"secret-device-token")
    for error in (
        'Post "https://api.push.apple.com/3/device/secret-device-token": EOF',
        "Invalid value at 'message.token' (TYPE_STRING), \"secret-device-token\"",
        "secret-device-token",
    ):
        assert "secret-device-token" not in repr(read_response(200, answer(entry(error)), push))


@pytest.mark.parametrize(
    ("error", "is_guarded", "retry_base_seconds"),
    [
        ("BadDeviceToken", True, 0),
        ("Unregistered", False, 0),
        ("TooManyRequests", False, 60),
        ("TooManyProviderTokenUpdates", False, 1200),
        ("ServiceUnavailable", False, 0),
    ],
)
def test_the_guard_and_the_pause_of_a_rule_are_part_of_the_result(error, is_guarded, retry_base_seconds):
    result = read_response(200, answer(entry(error)), APPLE)
    assert (result.is_guarded, result.retry_base_seconds) == (is_guarded, retry_base_seconds)


def test_an_error_that_no_rule_matches_is_transient_and_has_a_signature():
    result = read_response(200, answer(entry("Teapot 418: device-token is short and stout")), APPLE)
    assert result == Result(Outcome.TRANSIENT, "unknown")
    assert result.error == "teapot <n>: <token> is short and stout"


@pytest.mark.parametrize("token", ["e", "n", "unre", "register", "unregistered", "BadDeviceToken", "baddevic", "o" * 7])
@pytest.mark.parametrize("error", ["Unregistered", "BadDeviceToken"])
def test_no_device_token_can_hide_its_own_death(token, error):
    """With every "e" of the answer gone no rule matched, and the push was sent again without end."""
    push = replace(APPLE, address=token.encode())
    assert read_response(200, answer(entry(error, token=token)), push).outcome is Outcome.DEAD


def test_an_unknown_error_shows_no_short_token():
    push = replace(APPLE, address=b"odd")
    assert read_response(200, answer(entry("Something odd", token="odd")), push).error == ""


@pytest.mark.parametrize(
    "token", ["x509:", "x509: certificate has expired", "bad certificate", 'a"b x509:', "%78509:x509:"]
)
def test_a_device_token_cannot_pass_for_words_of_apple_or_google(token):
    """Otherwise its owner could stop the channel of all users."""
    for path in (token, quote(token), quote(token, safe=""), json.dumps(token)[1:-1]):
        error = f'Post "https://api.push.apple.com/3/device/{path}": EOF'
        assert (
            read_response(200, answer(entry(error, token=token)), replace(APPLE, address=token.encode())).outcome
            is Outcome.AMBIGUOUS
        )
        error = f"timed out while making an http call: {path}"
        read = read_response(200, answer(entry(error, token=token)), replace(FIREBASE, address=token.encode()))
        assert read.outcome is Outcome.AMBIGUOUS
