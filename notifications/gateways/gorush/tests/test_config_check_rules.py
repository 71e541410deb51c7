from dataclasses import replace
from pathlib import Path

import pytest

from notifications.gateways.gorush.config_check.readings import Config, Reading, read_config
from notifications.gateways.gorush.config_check.rules import ESSENTIAL, Expectations, complaints

RECOMMENDED = read_config(Path(__file__).with_name("gorush_config.yaml").read_bytes())
COUNTERS = {"ios": 10, "android": 10}
GOOD = Reading(is_reachable=True, config=RECOMMENDED, version=(1, 22, 0), counters=COUNTERS)
EXPECTED = Expectations(concurrency=256)


def found(reading: Reading = GOOD, expected: Expectations = EXPECTED) -> list[str]:
    return [complaint.id for complaint in complaints(reading, expected)]


def saying(**values: str | None) -> Reading:
    """Return the good configuration, changed in ``section__name``. A value of None removes it."""
    changed = {name.replace("__", ".", 1): value for name, value in values.items()}
    merged = {**RECOMMENDED.values, **changed}
    return replace(GOOD, config=Config({name: value for name, value in merged.items() if value is not None}))


def test_the_recommended_configuration_does_not_deviate() -> None:
    assert found() == []


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"core__sync": "false"}, "not_sync"),
        ({"queue__engine": "redis"}, "queue_engine"),
        ({"queue__engine": ""}, "queue_engine"),
        ({"ios__max_retry": "1"}, "max_retry_ios"),
        ({"android__max_retry": "2"}, "max_retry_android"),
        ({"ios__enabled": "false"}, "platform_off_ios"),
        ({"android__enabled": "false"}, "platform_off_android"),
        ({"core__worker_num": "255"}, "worker_num"),
        ({"core__worker_num": "0"}, "worker_num"),
        ({"ios__max_concurrent_pushes": "100"}, "max_concurrent_pushes"),
        ({"core__queue_num": "255"}, "queue_num"),
        ({"core__max_notification": "0"}, "max_notification"),
        ({"core__max_notification": "-1"}, "max_notification"),
        ({"log__hide_token": "false"}, "tokens_in_log"),
        ({"core__address": ""}, "open_address"),
        ({"core__address": "0.0.0.0"}, "open_address"),  # noqa: S104
        ({"core__address": "::"}, "open_address"),
        ({"grpc__enabled": "true"}, "grpc_open"),
        ({"core__feedback_hook_url": "http://push:8000/hooks/gorush"}, "hook_not_ours"),
        *[({name.replace(".", "__"): None}, "incomplete") for name in ESSENTIAL],
    ],
)
def test_each_wrong_setting_is_a_complaint_of_its_own(values: dict[str, str | None], complaint: str) -> None:
    assert found(saying(**values)) == [complaint]


@pytest.mark.parametrize(
    "values",
    [
        {"core__queue_num": "0"},
        {"core__worker_num": "10000"},
        {"core__worker_num": None},
        {"ios__max_concurrent_pushes": None},
        {"core__worker_num": "many"},
        {"core__queue_num": None},
        {"core__max_notification": None},
        {"core__address": "10.1.2.3"},
        {"core__address": None},
        {"log__hide_token": None},
        {"log__hide_messages": "true"},
        {"core__feedback_hook_url": None},
        {"huawei__enabled": "false"},
    ],
)
def test_a_right_or_missing_setting_is_no_complaint(values: dict[str, str | None]) -> None:
    assert found(saying(**values)) == []


def test_a_platform_that_nobody_uses_may_be_off() -> None:
    assert found(saying(ios__enabled="false"), replace(EXPECTED, platforms=frozenset({"android"}))) == []


def test_listening_on_every_interface_is_fine_behind_a_shield() -> None:
    assert found(saying(core__address=""), replace(EXPECTED, is_shielded=True)) == []


def test_the_hook_and_our_webhook_belong_together() -> None:
    is_open = replace(EXPECTED, is_hook_open=True)
    assert found(GOOD, is_open) == ["hook_unused"]
    assert found(saying(core__feedback_hook_url="http://push:8000/hooks/gorush"), is_open) == []


def test_a_gorush_that_does_not_answer_has_no_other_fault() -> None:
    assert found(Reading(is_reachable=False)) == ["unreachable"]


@pytest.mark.parametrize("missing", ["config", "counters"])
def test_an_answer_that_is_missing_is_named(missing: str) -> None:
    assert found(replace(GOOD, **{missing: None})) == ["unreadable"]


@pytest.mark.parametrize(
    ("version", "ids"),
    [((1, 21, 9), ["old_version"]), ((1, 22, 0), []), ((1, 100, 0), []), ((2, 0, 0), []), (None, [])],
)
def test_an_older_version_than_the_tested_one_is_named(version: tuple[int, ...] | None, ids: list[str]) -> None:
    assert found(replace(GOOD, version=version)) == ids


@pytest.mark.parametrize(
    ("previous", "failures", "ids"),
    [
        (None, {}, []),
        ({"ios": 10, "android": 10}, {}, []),
        ({"ios": 8, "android": 10}, {"ios": 2}, []),
        ({"ios": 8, "android": 10}, {"ios": 1, "android": 5}, ["hidden_failures_ios"]),
        ({"ios": 10, "android": 0}, {}, ["hidden_failures_android"]),
        ({"ios": 5000, "android": 5000}, {}, []),  # restarted
        ({"android": 10}, {}, []),
    ],
)
def test_failures_that_gorush_counted_and_did_not_report_are_a_complaint(
    previous: dict[str, int] | None, failures: dict[str, int], ids: list[str]
) -> None:
    assert found(GOOD, replace(EXPECTED, previous=previous, failures=failures)) == ids


def test_no_text_of_gorush_is_repeated() -> None:
    """A configuration contains secrets, and `/readyz` is public."""
    secretive = saying(**{name.replace(".", "__", 1): "secret-word" for name in RECOMMENDED.values})

    texts = repr(complaints(replace(secretive, version=(0, 1, 0)), EXPECTED))

    assert "queue_engine" in texts
    assert "secret-word" not in texts


def test_every_complaint_says_what_why_and_what_to_do() -> None:
    values = {"core__sync": "false", "queue__engine": "nats", "core__address": "", "core__worker_num": "2"}
    for complaint in complaints(saying(**values), EXPECTED):
        assert all([complaint.problem, complaint.why, complaint.action]), complaint
        assert complaint.action.endswith(".")
