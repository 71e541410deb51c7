"""What lasts is said once, and again when it changes."""

import pytest

from kit.health.change_filter import ChangeFilter


@pytest.mark.parametrize(
    ("shown", "news"),
    [
        ([""], [False]),
        (["away", "away"], [True, False]),
        (["away", "full", "away"], [True, True, True]),
        (["away", "", "", "away"], [True, True, False, True]),
    ],
)
def test_it_is_news_when_it_was_not_said_last(shown: list[str], news: list[bool]) -> None:
    reported = ChangeFilter()

    assert [reported.has_changed(words) for words in shown] == news
