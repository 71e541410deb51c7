"""Tests of the rules' table, loaded from the file, changed by operators, applied by workers; and of unknown errors."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from django.core.management import call_command
from django.db import OperationalError

from notifications.gateways.gorush import models
from notifications.gateways.gorush.errors import ErrorRule, classify, seed_rules, shipped_rules
from notifications.gateways.gorush.models import (
    REFRESH_SECONDS,
    CurrentRules,
    GatewayErrorRule,
    UnknownErrors,
    UnknownGatewayError,
    load_rules,
    load_shipped,
)
from notifications.messages import Outcome
from tests.rig.logs import capture_logs
from tests.rig.statements import at_once, beside, other_session, statements

RULES = GatewayErrorRule.objects
OPERATOR = GatewayErrorRule.Origin.OPERATOR
OTHER = (ErrorRule("other", Outcome.CONFIG, "other"),)
IOS, ANDROID = 1, 2
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)


@pytest.fixture(autouse=True)
def _seeded(db):
    """Load the rules as after the migration, also when an earlier test emptied the table."""
    load_shipped()


def test_the_table_has_the_rules_of_the_file_also_when_it_is_empty_and_loading_again_changes_nothing():
    assert load_rules() == shipped_rules()
    before = list(RULES.values())
    load_shipped()
    assert list(RULES.values()) == before
    RULES.all().delete()
    assert load_rules() == shipped_rules()


def test_the_position_decides_between_two_rules_and_one_that_is_switched_off_matches_nothing():
    RULES.create(position=1, platform="ios", match="prefix", text="Unreg", outcome="config", code="mine")
    assert classify(IOS, "Unregistered", load_rules()).code == "mine"
    RULES.filter(code="mine").update(position=100_000)
    assert classify(IOS, "Unregistered", load_rules()).code == "Unregistered"
    RULES.filter(text__startswith="Unreg").update(is_enabled=False)
    assert classify(IOS, "Unregistered", load_rules()).code == "unknown"


def test_a_new_file_adds_refreshes_and_removes_rows_that_follow_it_and_keeps_those_of_operators():
    first, second, third, fourth, *rest = seed_rules()
    RULES.filter(text=third.text).update(text="Unregistered by us", outcome="transient", origin=OPERATOR)
    RULES.filter(text=fourth.text).update(is_enabled=False, origin=OPERATOR)
    RULES.create(position=5, platform="any", text="our own", outcome="config", code="ours", origin=OPERATOR)
    own = RULES.filter(origin=OPERATOR).order_by("pk")
    before = list(own.values_list("pk", "text", "outcome", "is_enabled"))
    new = replace(first, text="BrandNew", code="new")
    others = [third, replace(fourth, code="renamed")]
    load_shipped(shipped=[new, replace(second, code="renamed"), *others, *rest])
    assert RULES.get(text="BrandNew").origin == "seed"
    assert RULES.get(text=second.text).code == "renamed"
    assert not RULES.filter(text=first.text).exists()
    load_shipped(shipped=rest)  # a file without the earlier ones
    assert list(own.values_list("pk", "text", "outcome", "is_enabled")) == before


def test_an_operators_rule_comes_before_a_new_one_of_the_file_about_the_same_error():
    RULES.create(position=5, platform="ios", match="exact", text="New", outcome="config", code="ours")
    new = replace(seed_rules()[0], text="New", code="theirs")
    load_shipped(shipped=[*seed_rules(), new])
    assert RULES.get(text="New").code == "ours"


@pytest.mark.django_db(transaction=True)
def test_a_rule_that_an_operator_adds_while_the_file_is_loaded_stays():
    RULES.filter(text="Unregistered").delete()
    columns = "position, platform, match, text, outcome, code, is_guarded, retry_base_seconds, is_enabled, remark"
    with other_session() as operator:
        operator.execute(f"""
            INSERT INTO notifications_gatewayerrorrule ({columns}, origin, updated_at)
            VALUES (5, 'ios', 'exact', 'Unregistered', 'config', 'ours', false, 0, true, '', 'operator', now())
        """)
        loading = beside(load_shipped)
    loading.result()
    assert RULES.get(text="Unregistered").code == "ours"


def test_the_rules_of_the_file_come_with_a_migration_and_the_operators_stay():
    RULES.filter(text="Unregistered").delete()
    RULES.filter(text="ExpiredToken").update(code="changed", origin=OPERATOR)
    RULES.filter(text="BadDeviceToken").update(remark="outdated")
    call_command("migrate", verbosity=0)
    assert RULES.filter(text="Unregistered", origin="seed").exists()
    assert RULES.get(text="ExpiredToken").code == "changed"
    assert RULES.get(text="BadDeviceToken").remark != "outdated"


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_an_edit_is_loaded_within_the_interval_and_the_table_is_read_no_more_often(django_assert_num_queries):
    clock = Clock()
    rules = CurrentRules(clock=clock)
    rules.refresh()
    RULES.filter(text="Unregistered").update(outcome="config")
    with django_assert_num_queries(0):
        clock.now += REFRESH_SECONDS - 0.1
        rules.refresh()
    assert classify(IOS, "Unregistered", rules.rules).outcome is Outcome.DEAD
    with django_assert_num_queries(1):
        clock.now += 0.1
        rules.refresh()
        rules.refresh()
    assert classify(IOS, "Unregistered", rules.rules).outcome is Outcome.CONFIG


def test_the_old_rules_hold_while_the_database_is_unreachable():
    """They hold as well while a newer release has a rule there with a word that this one does not know."""
    clock, answers = Clock(), iter([OTHER, OperationalError("gone"), ValueError("unheard of"), shipped_rules()])

    def load():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    rules = CurrentRules(load, clock)
    assert rules.rules == shipped_rules()  # of the file, until the table was read
    seen = []
    for _ in range(4):
        rules.refresh()
        seen.append(rules.rules)
        clock.now += REFRESH_SECONDS
    assert seen == [OTHER, OTHER, OTHER, shipped_rules()]


# Unknown errors: none is lost or counted twice, and neither memory nor table grows without limit ---------------------


def stored():
    return {(row.platform, row.signature): row.count for row in UnknownGatewayError.objects.all()}


def test_sums_are_written_once_per_batch_and_an_error_is_logged_when_it_is_seen_first(django_assert_num_queries):
    errors = UnknownErrors()
    with django_assert_num_queries(0):
        for _ in range(3):
            errors.note(IOS, "new")
        errors.note(ANDROID, "new")
    with capture_logs() as logs:
        errors.record(now=NOW)
    assert stored() == {("ios", "new"): 3, ("android", "new"): 1}
    seen = {"event": "gateway_error_unknown", "log_level": "warning", "signature": "new"}
    assert sorted(logs, key=str) == [seen | {"platform": "android"}, seen | {"platform": "ios"}]
    errors.note(IOS, "new")
    with statements() as sent:
        errors.record(now=LATER)
        errors.record(now=LATER)
    assert len(sent) == 1
    row = UnknownGatewayError.objects.get(platform="ios")
    assert (row.count, row.first_seen_at, row.last_seen_at) == (4, NOW, LATER)


def test_the_counts_wait_while_the_database_is_unreachable(monkeypatch):
    errors = UnknownErrors()
    errors.note(IOS, "a")
    errors.note(IOS, "b")

    def fail(counts, *, now):
        raise OperationalError("gone")

    monkeypatch.setattr(models, "count_unknown", fail)
    errors.record(now=NOW)
    assert stored() == {}
    monkeypatch.undo()
    errors.record(now=NOW)
    assert stored() == {("ios", "a"): 1, ("ios", "b"): 1}


def test_ever_new_errors_fill_neither_memory_nor_table(monkeypatch):
    monkeypatch.setattr(models, "MAX_SIGNATURES_HELD", 3)
    monkeypatch.setattr(models, "MAX_SIGNATURES_STORED", 4)
    errors = UnknownErrors()
    for minute in range(3):
        for number in range(10):
            errors.note(IOS, f"{minute} {number}")
        errors.record(now=NOW + timedelta(minutes=minute))
    assert set(stored()) == {("ios", "1 2"), ("ios", "2 0"), ("ios", "2 1"), ("ios", "2 2")}


@pytest.mark.django_db(transaction=True)
def test_workers_that_count_the_same_errors_at_once_lose_none():
    def work(names):
        errors = UnknownErrors()
        for _ in range(10):
            for name in names:
                errors.note(IOS, name)
            errors.record(now=NOW)

    at_once(*(partial(work, names) for names in ("abc", "cba", "bca", "acb")))
    assert stored() == {("ios", name): 40 for name in "abc"}
