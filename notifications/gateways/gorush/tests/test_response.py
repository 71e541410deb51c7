"""Tests of the meaning of gorush's answers: shapes, statuses, and anything else that a peer may send."""

import json
import string
from dataclasses import replace
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notifications.gateways.gorush import push_api
from notifications.gateways.gorush.errors import (
    MAX_ERROR_LENGTH,
    MAX_SIGNATURE_LENGTH,
    mask,
    shipped_rules,
    signature,
    without_token,
)
from notifications.gateways.gorush.tests.test_request import APPLE, FIREBASE
from notifications.messages import Outcome, Result
from pushserver.console.gorush.admin import longest_literal

OK = b'{"success":"ok","counts":1,"logs":[]}'


def read_response(status, body, push, *, retry_after=""):
    return push_api.read_response(status, body, push, shipped_rules(), retry_after=retry_after)


def entry(error, **fields):
    return {"type": "failed-push", "platform": "ios", "token": "device-token", "message": "m", "error": error} | fields


def answer(*entries):
    return json.dumps({"success": "ok", "counts": 1, "logs": entries}).encode()


DEAD, TAKEN, UNKNOWN = (Outcome.DEAD, "Unregistered"), (Outcome.DELIVERED, ""), (Outcome.AMBIGUOUS, "not_understood")


@pytest.mark.parametrize(
    ("its", "read_as"),
    [
        *(({"token": token}, DEAD) for token in ("device-token", "**********", "**********-tok**********", "")),
        *(({"notif_id": notif_id}, DEAD) for notif_id in ("7-2", "")),
        # The error of another token means that ours was taken. Another attempt would double the push.
        *(({"token": token}, TAKEN) for token in ("another-token", "device-token-of-another", "***another***")),
        ({"token": "another-token", "notif_id": "7-1"}, TAKEN),
        # The error may be of another attempt. Above all, our token does not count as dead.
        *(({"token": token}, UNKNOWN) for token in (["device-token"], 7)),
        *(({"notif_id": notif_id}, UNKNOWN) for notif_id in ("7-1", "8-2", 7)),
        ({"token": "another-token", "notif_id": "7-2"}, UNKNOWN),
    ],
)
def test_an_error_is_of_this_attempt_or_of_another_token_or_proves_nothing(its, read_as):
    foreign = entry("Unregistered", **its)
    result = read_response(200, answer(foreign), APPLE)
    assert (result.outcome, result.code) == read_as
    if read_as != DEAD:
        assert read_response(200, answer(entry("BadPriority"), foreign), APPLE).code == "BadPriority"


@pytest.mark.parametrize("counts", [1, 2, None, -1, 1.5, 0.0, True, False, "1", "", [], {"total": 1}, {"total": 0}])
def test_an_answer_without_errors_is_a_success_however_it_counts(counts):
    """A server that speaks gorush's protocol, and writes something else there, has sent the push all the same."""
    body = json.dumps({"success": "ok", "counts": counts, "logs": []}).encode()
    assert read_response(200, body, APPLE) == Result(Outcome.DELIVERED)
    assert read_response(200, b'{"success":"ok","logs":null}', FIREBASE) == Result(Outcome.DELIVERED)


def test_a_count_of_zero_means_that_nothing_was_sent():
    assert read_response(200, b'{"success":"ok","counts":0,"logs":[]}', APPLE) == Result(Outcome.CONFIG, "dropped")


def test_the_last_of_several_errors_counts_in_the_words_of_its_platform():
    errors = answer(entry("ServiceUnavailable"), entry("BadDeviceToken"))
    assert read_response(200, errors, APPLE).code == "BadDeviceToken"
    assert read_response(200, errors, FIREBASE).outcome is Outcome.TRANSIENT


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>welcome to our proxy</html>",
        b"null",
        b"{}",
        b'{"success":"ok","logs":{"error":"Unregistered"}}',
        b'{"success":"no","logs":[]}',
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
    ("status", "body", "outcome"),
    [
        *((status, OK, Outcome.CONFIG) for status in (204, 301, 400, 401, 404)),
        *((status, OK, Outcome.TRANSIENT) for status in (429, 500, 502, 503)),
        (504, OK, Outcome.AMBIGUOUS),
        # Only gorush itself refuses a push finally. Any other server at its address gives its answer to every push.
        (400, b'{"code":400,"message":"Missing notifications field."}', Outcome.PAYLOAD),
        (400, b"Client sent an HTTP request to an HTTPS server.\n", Outcome.CONFIG),
        (400, b"400", Outcome.CONFIG),
        (400, b'{"message":"bad request"}', Outcome.CONFIG),
    ],
)
def test_a_status_decides_and_the_body_only_about_a_bad_request(status, body, outcome):
    assert read_response(status, body, APPLE) == Result(outcome, f"http_{status}")


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("", 0),
        ("0", 0),
        ("120", 120),
        ("999999999", 3600),
        ("1.5", 0),
        ("²", 0),
        ("٣", 0),
        ("Wed, 21 Oct 2026 07:28:00 GMT", 0),
        ("9" * 5000, 3600),
    ],
)
def test_waits_for_the_requested_time_up_to_a_maximum(header, seconds):
    assert read_response(503, b"", APPLE, retry_after=header).retry_after_seconds == seconds


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
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


def test_an_error_that_no_rule_matches_is_transient_and_has_a_signature_without_the_token():
    result = read_response(200, answer(entry("Teapot 418: device-token is short and stout")), APPLE)
    assert result == Result(Outcome.TRANSIENT, "unknown")
    assert result.error == "teapot <n>: <token> is short and stout"
    short = replace(APPLE, address=b"odd")
    assert read_response(200, answer(entry("Something odd", token="odd")), short).error == ""


@pytest.mark.parametrize("token", ["e", "n", "unre", "register", "unregistered", "BadDeviceToken", "baddevic", "o" * 7])
@pytest.mark.parametrize("error", ["Unregistered", "BadDeviceToken"])
def test_no_device_token_can_hide_its_own_death(token, error):
    """With every "e" of the answer gone no rule matched, and the push was sent again without end."""
    push = replace(APPLE, address=token.encode())
    assert read_response(200, answer(entry(error, token=token)), push).outcome is Outcome.DEAD


@pytest.mark.parametrize(
    "token", ["x509:", "x509: certificate has expired", "bad certificate", 'a"b x509:', "%78509:x509:"]
)
def test_a_device_token_cannot_pass_for_words_of_apple_or_google(token):
    """Otherwise its owner could stop the app of all users."""
    for path in (token, quote(token), quote(token, safe=""), json.dumps(token)[1:-1]):
        error = f'Post "https://api.push.apple.com/3/device/{path}": EOF'
        read = read_response(200, answer(entry(error, token=token)), replace(APPLE, address=token.encode()))
        assert read.outcome is Outcome.AMBIGUOUS
        error = f"timed out while making an http call: {path}"
        read = read_response(200, answer(entry(error, token=token)), replace(FIREBASE, address=token.encode()))
        assert read.outcome is Outcome.AMBIGUOUS


# Redacted errors: nothing of one device is left, and no word from its token; and gorush's own mask --------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
TOKENS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1) | st.text(
    string.ascii_letters + string.digits + ":_-%/+", min_size=1, max_size=200
)
SHOWN_AS = [
    str,
    quote,
    quote_plus,
    lambda token: quote(token, safe=""),
    lambda token: quote(token, safe="").lower(),
    lambda token: token.upper(),
    lambda token: f'Post "https://api.push.apple.com/3/device/{quote(token)}": EOF',
    lambda token: f"{token} and {mask(token)}",
]


@given(TEXT, TOKENS, st.sampled_from(SHOWN_AS), TEXT)
def test_a_signature_never_holds_the_device_token(before, token, shown_as, after):
    found = signature(before + shown_as(token) + after, token)
    assert token not in found
    assert token.casefold() not in found
    assert quote(token, safe="").casefold() not in found


@given(TEXT, st.text(string.ascii_letters + string.digits, min_size=28), TEXT)
def test_a_signature_never_holds_what_gorushs_mask_leaves_of_the_token(before, token, after):
    found = signature(f"{before}{mask(token)}{after}", token)
    assert token[10:-10].casefold() not in found


@given(TEXT | st.binary().map(lambda raw: raw.decode("utf-8", "replace")), TOKENS)
def test_a_signature_is_short_printable_and_found_again(error, token):
    found = signature(error, token)
    assert len(found) <= MAX_SIGNATURE_LENGTH
    assert found.isprintable()
    assert found == signature(error, token)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("SomethingNew", "somethingnew"),
        ("  Something\n\tnew \x00", "something new"),
        ("the-token is odd", "<token> is odd"),
        ("THE-TOKEN is odd", "<token> is odd"),
        ("device 0123456789abcdef", "device <hex>"),
        ("device 0123456789ABCDEF0123", "device <hex>"),
        ("device 0x0123456789abcdef0", "device <hex>"),
        ("key QUJDREVGR0hJSktMTU5PUA== refused", "key <blob> refused"),
        ("ask somebody@example.org", "ask <email>"),
        ("error 12 of 345", "error <n> of <n>"),
        ("see https://firebase.google.com/docs/a?b=c#d now", "see https://firebase.google.com now"),
        ("see https://user:password@proxy.test:3128/x", "see https://proxy.test:<n>"),
        ('Get "https://api.test/3/device/a\\"b c": odd', 'get "https://api.test": odd'),
        ('Get "https://api.test/3/device/never closed', 'get "https://api.test"'),
        ("the-token", "<token>"),
        ("", ""),
    ],
)
def test_parts_that_differ_between_devices_are_replaced(error, expected):
    assert signature(error, "the-token") == expected


def test_the_token_leaves_a_gap_that_cannot_close():
    assert without_token("ExpiredProviderToken", "Provider") == "expired<token>token"


@given(st.text(string.printable, min_size=5).filter(lambda token: not set(token) <= set(' "\\')))
def test_a_url_adds_no_word_of_the_token(token):
    error = f'Post "https://api.push.apple.com/3/device/{quote(token)}": EOF'
    assert without_token(error, token + "?").startswith('post "https://api.push.apple.com": eof')


@pytest.mark.parametrize("part", ['"http://', "a@", "https://", "aaaa", "\\", "%", "0" * 15 + " "])
def test_a_huge_error_costs_no_time(part):
    """Each pattern is linear, and only the beginning of the error is read."""
    error = part * (20_000_000 // len(part))
    assert len(without_token(error, "the-token")) <= 2 * MAX_ERROR_LENGTH
    assert len(signature(error, "the-token")) <= MAX_SIGNATURE_LENGTH


@pytest.mark.parametrize(
    ("found", "literal"),
    [
        ("<token> is odd <n> times", "is odd"),
        ("teapot <n>: short and stout", ": short and stout"),
        ("<hex>", ""),
        ("plain", "plain"),
        ("", ""),
    ],
)
def test_a_rule_looks_for_the_longest_part_that_is_always_there(found, literal):
    assert longest_literal(found) == literal


HIDDEN = "*" * 10


@pytest.mark.parametrize(
    ("token", "masked"),
    [
        ("", ""),
        ("abc", "***"),
        ("a" * 19, "*" * 19),
        ("0123456789abcdefghij", HIDDEN * 2),
        ("0123456789-abcdefghij", f"{HIDDEN}-{HIDDEN}"),
        ("0123456789-0123456789-abcdefghij", f"{HIDDEN}-{HIDDEN}-{HIDDEN}"),
    ],
)
def test_masks_like_gorush(token, masked):
    assert mask(token) == masked
