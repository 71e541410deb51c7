"""Tests of the file of error rules, with real texts of Apple, Google and gorush; of its page, and of the advice."""

import re
from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notifications.gateways.gorush import errors
from notifications.gateways.gorush.errors import UNKNOWN, ErrorRule, Match, key_of, parse, seed_rules, shipped_rules
from notifications.gateways.gorush.models import GatewayErrorRule
from notifications.gateways.gorush.push_api import read_response
from notifications.gateways.gorush.tests import test_request
from notifications.messages import Outcome
from pushserver.console.gorush.advice import ADVICE, FOREIGN, GORUSH, ONLY_WAIT, SLOW, STOPPED, advice, page

IOS, ANDROID = 1, 2
ENTRY = "{platform: ios, match: exact, text: Gone, class: DEAD, code: gone}"
DEAD, CONFIG, PAYLOAD = Outcome.DEAD, Outcome.CONFIG, Outcome.PAYLOAD
TRANSIENT, AMBIGUOUS = Outcome.TRANSIENT, Outcome.AMBIGUOUS
# Apple's reasons, by class.
APPLE = {
    "dead": "Unregistered ExpiredToken BadDeviceToken DeviceTokenNotForTopic MissingDeviceToken",
    "config": "TopicDisallowed BadTopic MissingTopic BadCertificate BadCertificateEnvironment Forbidden "
    "InvalidProviderToken MissingProviderToken UnrelatedKeyIdInToken BadEnvironmentKeyIdInToken ExpiredProviderToken",
    "transient": "TooManyProviderTokenUpdates TooManyRequests IdleTimeout InternalServerError ServiceUnavailable "
    "Shutdown",
    "payload": "PayloadTooLarge PayloadEmpty BadCollapseId BadExpirationDate BadMessageId BadPriority InvalidPushType "
    "DuplicateHeaders BadPath MethodNotAllowed",
}
GOAWAY = (
    "http2: server sent GOAWAY and closed the connection; LastStreamID=0, ErrCode=NO_ERROR, "
    r'debug="{{\"reason\":\"{}\"}}"'
)
POST = 'Post "https://api.push.apple.com/3/device/0123abcd": '


def classify(token_type, error):
    return errors.classify(token_type, error, shipped_rules())


@pytest.mark.parametrize(("outcome", "reason"), [(o, r) for o, text in APPLE.items() for r in text.split()])
def test_apples_reasons_have_the_meaning_in_apples_documentation_and_keep_their_names(outcome, reason):
    rule = classify(IOS, reason)
    assert (rule.outcome, rule.code) == (outcome, reason)
    assert classify(IOS, f"something {reason}").outcome is not DEAD


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        ("", TRANSIENT),
        (POST + "tls: failed to verify certificate: x509: certificate signed by unknown authority", CONFIG),
        (POST + "x509: certificate has expired or is not yet valid", CONFIG),
        (POST + "remote error: tls: revoked certificate", CONFIG),
        (POST + "tls: failed to verify certificate", CONFIG),
        (POST + "dial tcp: lookup api.push.apple.com: no such host", TRANSIENT),
        (POST + "dial tcp 127.0.0.1:443: connect: connection refused", TRANSIENT),
        (POST + "Bad Gateway", TRANSIENT),
        (POST + "Service Unavailable", TRANSIENT),
        (POST + "Gateway Timeout", TRANSIENT),
        (POST + "Proxy Authentication Required", CONFIG),
        (POST + "Forbidden", CONFIG),
        (POST + "net/http: TLS handshake timeout", TRANSIENT),
        (POST + "proxyconnect tcp: EOF", TRANSIENT),
        (POST + "tls: first record does not look like a TLS handshake", CONFIG),
        (POST + "http: server gave HTTP response to HTTPS client", CONFIG),
        (POST + GOAWAY.format("BadCertificateEnvironment"), CONFIG),
        (POST + GOAWAY.format("BadCertificate"), CONFIG),
        (POST + GOAWAY.format("ExpiredProviderToken"), CONFIG),
        (POST + GOAWAY.format("SomethingNew"), AMBIGUOUS),
        (POST + "context deadline exceeded (Client.Timeout exceeded while awaiting headers)", AMBIGUOUS),
        (POST + "http2: server sent GOAWAY and closed the connection", AMBIGUOUS),
        (POST + "http2: client connection lost", AMBIGUOUS),
        (POST + "EOF", AMBIGUOUS),
        (POST + "read: connection reset by peer", AMBIGUOUS),
        (POST + "something new", AMBIGUOUS),
    ],
)
def test_other_errors_of_ios(error, outcome):
    assert classify(IOS, error).outcome is outcome


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        ("is NotRegistered somewhere", TRANSIENT),
        ("The device was uninstalled or unregistered", DEAD),
        ("Invalid registration", DEAD),
        ("Invalid value at 'message.data'", PAYLOAD),
        ("Invalid data payload key: from", PAYLOAD),
        ("Firebase Cloud Messaging API has not been used in project 1 before or it is disabled", CONFIG),
        ("The caller does not have permission", CONFIG),
        ("Request had insufficient authentication scopes.", CONFIG),
        ("Permission denied: Consumer 'project_number:100000000001' has been suspended.", CONFIG),
        ("Request had invalid authentication credentials.", CONFIG),
        ("Request is missing required authentication credential.", CONFIG),
        ("UNAUTHENTICATED", CONFIG),
        ('oauth2: cannot fetch token: 400 Bad Request\nResponse: {"error":"invalid_grant"}', CONFIG),
        ("oauth2: cannot fetch token: 401 Unauthorized", CONFIG),
        ("oauth2: cannot fetch token: 429 Too Many Requests", TRANSIENT),
        ("oauth2: cannot fetch token: 503 Service Unavailable", TRANSIENT),
        ("private key should be a PEM or plain PKCS1 or PKCS8", CONFIG),
        ("Resource has been exhausted (e.g. check quota).", TRANSIENT),
        ("Message rate exceeded", TRANSIENT),
        ("unexpected http response with status: 429\n", TRANSIENT),
        ("unexpected http response with status: 404\n<html>Not Found</html>", CONFIG),
        ("unexpected http response with status: 400\n", CONFIG),
        ("unexpected http response with status: 404\nRequested entity was not found", CONFIG),
        ("multiple sound specifications", PAYLOAD),
        ("failed to establish a connection: dial tcp: connection refused", TRANSIENT),
        ("failed to establish a connection: read tcp: read: connection reset by peer", AMBIGUOUS),
        ("failed to establish a connection: " + POST + "remote error: tls: expired certificate", CONFIG),
        ("failed to establish a connection: " + POST + "Proxy Authentication Required", CONFIG),
        ("failed to establish a connection: " + POST + "net/http: TLS handshake timeout", TRANSIENT),
        ("unknown error while making an http call: something new", AMBIGUOUS),
        ("timed out while making an http call: i/o timeout", AMBIGUOUS),
        ("unknown error while making an http call: EOF", AMBIGUOUS),
        ("context deadline exceeded", AMBIGUOUS),
        ("error while parsing response: unexpected EOF", AMBIGUOUS),
        ("exactly one of token, topic or condition must be specified", PAYLOAD),
        ("priority must be 'normal' or 'high'", PAYLOAD),
        ("malformed topic name", PAYLOAD),
        ("invalid image URL: 'x'", PAYLOAD),
        ("invalid message at index 0", PAYLOAD),
        ("you can specify up to 500 device registration tokens", PAYLOAD),
        ("please provide at least one device token", PAYLOAD),
        ("max capacity reached", TRANSIENT),
        ("", TRANSIENT),
    ],
)
def test_errors_of_android(error, outcome):
    """The texts of `embedded/gorush/outcomes.py` are in `tests/interop/test_cases.py`."""
    assert classify(ANDROID, error).outcome is outcome
    assert classify(ANDROID, f"  {error.upper()}\n").outcome is outcome


@given(st.sampled_from([IOS, ANDROID]), st.text())
def test_no_error_means_success_and_no_code_quotes_one(token_type, error):
    rule = classify(token_type, error)
    assert rule.outcome is not Outcome.DELIVERED
    assert rule is UNKNOWN or rule in shipped_rules()


@given(st.text())
def test_an_unknown_text_never_kills_a_token(error):
    dead = [rule for rule in shipped_rules() if rule.outcome is DEAD and rule.token_type in {None, ANDROID}]
    if not any(rule.matches(error.casefold().strip()) for rule in dead):
        assert classify(ANDROID, error).outcome is not DEAD


@pytest.mark.parametrize(
    ("rule", "token_type", "matching", "other"),
    [
        (ErrorRule("code", DEAD, "gone", Match.EXACT), IOS, ["gone", " GONE\n"], ["gone.", ""]),
        (ErrorRule("code", DEAD, "gone", Match.PREFIX), IOS, ["gone", "Gone away"], ["is gone"]),
        (ErrorRule("code", DEAD, "gone", Match.CONTAINS), ANDROID, ["gone", "is Gone away"], ["go ne"]),
        (ErrorRule("code", DEAD, "gone", token_type=IOS), IOS, ["gone"], []),
        (ErrorRule("code", DEAD, "gone", token_type=IOS), ANDROID, [], ["gone"]),
    ],
)
def test_rules_match_the_whole_the_beginning_or_a_part_on_their_platform(rule, token_type, matching, other):
    assert [errors.classify(token_type, error, [rule]) for error in matching] == [rule] * len(matching)
    assert [errors.classify(token_type, error, [rule]) for error in other] == [UNKNOWN] * len(other)


def test_errors_that_a_wrong_set_up_causes_too_are_guarded():
    guarded = {rule.text for rule in shipped_rules() if rule.is_guarded}
    assert guarded == {
        *("baddevicetoken", "devicetokennotfortopic", "requested entity was not found"),
        *("not a valid fcm registration token", "invalid registration", "senderid mismatch"),
        "auth error from apns or web push service",
    }


# The file, its page and the advice ------------------------------------------------------------------------------------


def test_each_entry_stands_alone_and_in_order_and_errors_of_quota_are_tried_again_late():
    seeds = seed_rules()
    assert len({key_of(seed) for seed in seeds}) == len(seeds) == len(shipped_rules())
    assert [seed.position for seed in seeds] == sorted({seed.position for seed in seeds})
    late = {seed.text: seed.retry_base_seconds for seed in seed_rules() if seed.retry_base_seconds}
    assert late.pop("TooManyProviderTokenUpdates") == 1200
    assert set(late.values()) == {60}
    assert {"TooManyRequests", "Quota exceeded", "Resource has been exhausted", "rate exceeded"} < set(late)


@pytest.mark.parametrize("seed", seed_rules(), ids=key_of)
def test_every_entry_would_pass_in_the_console(seed):
    names = ("platform", "match", "text", "outcome", "code", "is_guarded", "retry_base_seconds", "position", "remark")
    rule = GatewayErrorRule(**{name: getattr(seed, name) for name in names})
    rule.clean_fields()
    rule.clean()
    assert rule.text == seed.text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("platform: ios", "platform: huawei"),
        ("match: exact", "match: regex"),
        ("class: DEAD", "class: GONE"),
        ("class: DEAD, ", ""),
        (", code: gone", ""),
        ("code: gone", "code: gone, guardde: true"),
    ],
)
def test_an_entry_that_is_not_understood_is_refused(old, new):
    assert parse(f"- {ENTRY}")[0].code == "gone"
    with pytest.raises((KeyError, TypeError, ValueError)):
        parse(f"- {ENTRY.replace(old, new)}")


def test_the_page_has_each_rule_in_its_order_and_each_code_with_its_advice():
    rows = re.findall(r"^\| ((?:exact|prefix|contains) .*) \| `(\w+)` \| (?:`(\w+)`|its text) \|", page(), re.MULTILINE)
    rows = [(text, outcome, code or text) for texts, outcome, code in rows for text in re.findall(r"`(.*?)`", texts)]
    wanted = [(rule.text, rule.outcome, rule.code) for rule in seed_rules() if rule.text]
    assert sorted(rows) == sorted(wanted)
    assert rows[:20] == wanted[:20]
    advised = re.findall(r"^\| (`[^|]*`) \| ([^|]*\.) \|$", page(), re.MULTILINE)
    assert [key_of(rule) for rule in seed_rules() if re.search(r"[|`\n]", rule.text + rule.remark)] == []
    assert {code: advice for codes, advice in advised for code in re.findall(r"`(\w+)`", codes)} == ADVICE


# Codes that the client, the workers and `read_response` set without a rule.
OF_OUR_OWN = [
    *("unreachable", "timeout", "cut_off", "not_http", "not_json", "not_understood", "dropped", "tls"),
    *("worker_lost", "gateway_failed", "no_gateway", "unknown"),
]


def test_every_code_that_counts_as_a_failure_has_its_advice():
    failures = {rule.code for rule in seed_rules() if rule.outcome in {TRANSIENT, AMBIGUOUS, CONFIG}}
    assert [code for code in failures | set(OF_OUR_OWN) if not advice(code)] == []
    assert set(ADVICE) <= {rule.code for rule in seed_rules()} | set(OF_OUR_OWN)
    assert [code for code in OF_OUR_OWN if advice(code) == ONLY_WAIT] == []


@pytest.mark.parametrize("status", [status for status in HTTPStatus if status.value // 100 != 2])
def test_advice_about_a_status_of_our_own_gorush_never_recommends_waiting(status):
    """The codes of Google's own statuses are others, although gorush passes on the same numbers."""
    found = read_response(status, b"", test_request.APPLE, shipped_rules())
    assert advice(found.code) in {FOREIGN, SLOW, STOPPED}
    google = f"unexpected http response with status: {status.value}"
    assert classify(ANDROID, google).code != found.code


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("unreachable", GORUSH),
        ("http_502", STOPPED),
        ("http_500", SLOW),
        ("http_429", SLOW),
        ("http_301", FOREIGN),
        ("unavailable", ONLY_WAIT),
        ("google_429", ONLY_WAIT),
        ("", ""),
    ],
)
def test_the_advice_depends_on_the_code(code, expected):
    assert advice(code) == expected
