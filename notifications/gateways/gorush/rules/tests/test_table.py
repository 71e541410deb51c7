"""Tests of the rules' table: loaded from the file, changed by operators, and applied by workers within seconds."""

import threading
from dataclasses import replace
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import OperationalError

from notifications.gateways.gorush.answers.errors import ErrorRule, classify
from notifications.gateways.gorush.models import GatewayErrorRule
from notifications.gateways.gorush.rules.file import seed_rules, shipped_rules
from notifications.gateways.gorush.rules.table import REFRESH_SECONDS, CurrentRules, Loaded, load_rules, load_seed
from notifications.messages import Outcome

RULES = GatewayErrorRule.objects
OPERATOR = GatewayErrorRule.Origin.OPERATOR
OTHER = (ErrorRule("other", Outcome.CONFIG, "other"),)
IOS = 1


@pytest.fixture
def seeded(db):
    """Load the rules as after the migration, also when an earlier test emptied the table."""
    load_seed()


@pytest.mark.usefixtures("seeded")
def test_the_table_has_the_rules_of_the_file():
    assert load_rules() == shipped_rules()
    for error in ["Unregistered", "", "x509: unknown authority", "something new"]:
        assert classify(IOS, error, load_rules()) == classify(IOS, error, shipped_rules())


@pytest.mark.usefixtures("seeded")
def test_loading_again_changes_nothing():
    assert load_seed() == Loaded(added=0, refreshed=0, removed=0, kept=0)


@pytest.mark.django_db
def test_an_empty_table_counts_as_the_file():
    RULES.all().delete()
    assert load_rules() == shipped_rules()


@pytest.mark.usefixtures("seeded")
def test_a_rule_that_is_switched_off_matches_nothing():
    RULES.filter(text="Unregistered").update(is_enabled=False)
    assert classify(IOS, "Unregistered", load_rules()).code == "unknown"


@pytest.mark.usefixtures("seeded")
def test_the_position_decides_between_two_rules():
    RULES.create(position=1, platform="ios", match="prefix", text="Unreg", outcome="config", code="mine")
    assert classify(IOS, "Unregistered", load_rules()).code == "mine"
    RULES.filter(code="mine").update(position=100_000)
    assert classify(IOS, "Unregistered", load_rules()).code == "Unregistered"


@pytest.mark.usefixtures("seeded")
def test_a_new_file_adds_refreshes_and_removes_rows_that_follow_it():
    first, second, *rest = seed_rules()
    new = replace(first, text="BrandNew", code="new")
    seeds = [new, replace(second, code="renamed"), *rest]

    assert load_seed(seeds=seeds) == Loaded(added=1, refreshed=1, removed=1, kept=0)

    assert RULES.get(text="BrandNew").origin == "seed"
    assert RULES.get(text=second.text).code == "renamed"
    assert not RULES.filter(text=first.text).exists()


@pytest.mark.usefixtures("seeded")
def test_changes_of_operators_survive_the_next_load():
    first, second, third, *rest = seed_rules()
    RULES.filter(text=first.text).update(text="Unregistered by us", outcome="transient", origin=OPERATOR)
    RULES.filter(text=second.text).update(is_enabled=False, origin=OPERATOR)
    RULES.create(position=5, platform="any", text="our own", outcome="config", code="ours", origin=OPERATOR)
    before = set(RULES.values_list("pk", "text", "outcome", "is_enabled", "origin"))

    loaded = load_seed(seeds=[first, replace(second, code="renamed"), third, *rest])
    assert loaded == Loaded(added=0, refreshed=0, removed=0, kept=2)
    load_seed(seeds=[third, *rest])  # a file without the earlier ones

    assert set(RULES.values_list("pk", "text", "outcome", "is_enabled", "origin")) == before


@pytest.mark.usefixtures("seeded")
def test_an_operators_rule_comes_before_a_new_one_of_the_file_about_the_same_error():
    RULES.create(position=5, platform="ios", match="exact", text="New", outcome="config", code="ours")
    new = replace(seed_rules()[0], text="New", code="theirs")

    assert load_seed(seeds=[*seed_rules(), new]).added == 0
    assert RULES.get(text="New").code == "ours"


@pytest.mark.usefixtures("seeded")
def test_the_command_prints_its_changes():
    RULES.filter(text="Unregistered").delete()
    RULES.filter(text="ExpiredToken").update(code="changed", origin=OPERATOR)
    RULES.filter(text="BadDeviceToken").update(remark="outdated")

    call_command("load_error_rules", stdout=(out := StringIO()))

    assert out.getvalue() == "1 added, 1 refreshed, 0 removed, 1 left as operators changed them.\n"


@pytest.mark.usefixtures("seeded")
def test_every_deployment_brings_the_rules_of_the_file_and_keeps_the_operators():
    RULES.filter(text="Unregistered").delete()
    RULES.filter(text="ExpiredToken").update(code="changed", origin=OPERATOR)

    call_command("migrate", verbosity=0)

    assert RULES.filter(text="Unregistered", origin="seed").exists()
    assert RULES.get(text="ExpiredToken").code == "changed"


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_a_process_starts_with_the_rules_of_the_file_and_loads_the_table_first():
    rules = CurrentRules(lambda: OTHER, Clock())
    assert rules.rules == shipped_rules()
    rules.refresh()
    assert rules.rules == OTHER


@pytest.mark.usefixtures("seeded")
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
    clock, answers = Clock(), iter([OTHER, OperationalError("gone"), shipped_rules()])

    def load():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    rules = CurrentRules(load, clock)
    seen = []
    for _ in range(3):
        rules.refresh()
        seen.append(rules.rules)
        clock.now += REFRESH_SECONDS
    assert seen == [OTHER, OTHER, shipped_rules()]


def test_while_one_thread_loads_the_others_go_on_with_the_old_rules():
    loading, may_end = threading.Event(), threading.Event()

    def load():
        loading.set()
        assert may_end.wait(10)
        return OTHER

    rules = CurrentRules(load, Clock())
    slow = threading.Thread(target=rules.refresh)
    slow.start()
    assert loading.wait(10)
    rules.refresh()  # does not wait
    assert rules.rules == shipped_rules()
    may_end.set()
    slow.join(10)
    assert rules.rules == OTHER
