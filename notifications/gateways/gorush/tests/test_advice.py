from http import HTTPStatus

import pytest

from notifications.gateways.gorush.advice import ADVICE, FOREIGN, GORUSH, ONLY_WAIT, SLOW, STOPPED, advice
from notifications.gateways.gorush.answers.errors import classify
from notifications.gateways.gorush.rules.file import seed_rules, shipped_rules
from notifications.gateways.gorush.sending.push_api import read_response
from notifications.gateways.gorush.tests.test_request import APPLE

FAILURES = {"transient", "ambiguous", "config"}
# Codes that the client, the workers and `read_response` set without a rule.
OF_OUR_OWN = [
    *("unreachable", "timeout", "cut_off", "not_http", "not_json", "not_understood", "dropped", "tls"),
    *("worker_lost", "gateway_failed", "no_gateway", "no_connection", "unknown"),
]


def test_every_code_that_counts_as_a_failure_has_its_advice() -> None:
    codes = {rule.code for rule in seed_rules() if rule.outcome in FAILURES} | set(OF_OUR_OWN)

    assert {code for code in codes if not advice(code)} == set()


def test_all_advice_is_about_codes_that_exist() -> None:
    assert set(ADVICE) <= {rule.code for rule in seed_rules()} | set(OF_OUR_OWN)


@pytest.mark.parametrize("code", OF_OUR_OWN)
def test_advice_about_our_own_gorush_never_recommends_waiting(code: str) -> None:
    assert advice(code) != ONLY_WAIT


@pytest.mark.parametrize("status", [status for status in HTTPStatus if status.value // 100 != 2])
def test_advice_about_a_status_of_our_own_gorush_never_recommends_waiting(status: HTTPStatus) -> None:
    """The codes of Google's own statuses are others, although gorush passes on the same numbers."""
    found = read_response(status, b"", APPLE, shipped_rules())

    assert advice(found.code) in {FOREIGN, SLOW, STOPPED}
    google = f"unexpected http response with status: {status.value}"
    assert classify(2, google, shipped_rules()).code != found.code


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
def test_the_advice_depends_on_the_code(code: str, expected: str) -> None:
    assert advice(code) == expected
