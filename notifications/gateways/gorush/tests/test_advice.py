import pytest

from notifications.gateways.gorush.advice import ADVICE, FOREIGN, GORUSH, ONLY_WAIT, STOPPED, advice
from notifications.gateways.gorush.rules.file import seed_rules

FAILURES = {"transient", "ambiguous", "config"}
# What the client, the workers and `read_response` make without a rule.
OF_OUR_OWN = [
    *("unreachable", "timeout", "cut_off", "not_http", "not_json", "not_understood", "dropped", "tls"),
    *("worker_lost", "gateway_failed", "no_gateway", "unknown"),
]


def test_every_code_that_counts_as_a_failure_has_its_advice() -> None:
    codes = {rule.code for rule in seed_rules() if rule.outcome in FAILURES} | set(OF_OUR_OWN)

    assert {code for code in codes if not advice(code)} == set()


def test_no_advice_is_about_a_code_that_nothing_makes() -> None:
    assert set(ADVICE) <= {rule.code for rule in seed_rules()} | set(OF_OUR_OWN)


@pytest.mark.parametrize("code", OF_OUR_OWN)
def test_what_is_our_own_is_never_to_be_waited_for(code: str) -> None:
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
def test_what_to_do_depends_on_the_code(code: str, expected: str) -> None:
    assert advice(code) == expected
