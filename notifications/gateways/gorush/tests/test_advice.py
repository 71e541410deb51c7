import pytest

from notifications.gateways.gorush.advice import ADVICE, FOREIGN, GORUSH, ONLY_WAIT, STOPPED, advice
from notifications.gateways.gorush.rules.file import seed_rules

FAILURES = {"transient", "ambiguous", "config"}
# Codes that the client, the workers and `read_response` set without a rule.
OF_OUR_OWN = [
    *("unreachable", "timeout", "cut_off", "not_http", "not_json", "not_understood", "dropped", "tls"),
    *("worker_lost", "gateway_failed", "no_gateway", "unknown"),
]


def test_every_code_that_counts_as_a_failure_has_its_advice() -> None:
    codes = {rule.code for rule in seed_rules() if rule.outcome in FAILURES} | set(OF_OUR_OWN)

    assert {code for code in codes if not advice(code)} == set()


def test_all_advice_is_about_codes_that_exist() -> None:
    assert set(ADVICE) <= {rule.code for rule in seed_rules()} | set(OF_OUR_OWN)


@pytest.mark.parametrize("code", OF_OUR_OWN)
def test_advice_about_our_own_gorush_never_recommends_waiting(code: str) -> None:
    assert advice(code) != ONLY_WAIT


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("unreachable", GORUSH),
        ("http_502", STOPPED),
        ("http_301", FOREIGN),
        ("unavailable", ONLY_WAIT),
        ("", ""),
    ],
)
def test_the_advice_depends_on_the_code(code: str, expected: str) -> None:
    assert advice(code) == expected
