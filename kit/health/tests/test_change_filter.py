"""Tests of the change filter: a lasting condition is reported once, and again when it changes."""

import pytest

from kit.health.change_filter import ChangeFilter


@pytest.mark.parametrize(
    ("conditions", "changed"),
    [
        ([""], [False]),
        (["away", "away"], [True, False]),
        (["away", "full", "away"], [True, True, True]),
        (["away", "", "", "away"], [True, True, False, True]),
    ],
)
def test_a_condition_has_changed_when_it_differs_from_the_last_one(conditions: list[str], changed: list[bool]) -> None:
    change_filter = ChangeFilter()

    assert [change_filter.has_changed(words) for words in conditions] == changed
