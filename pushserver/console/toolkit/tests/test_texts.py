"""Tests of the texts of the console: times, durations and commands."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.template import Context, Template, engines
from django.utils import timezone
from django.utils.formats import localize

from kit.db.clock import DAY, HOUR, MINUTE
from pushserver.console.toolkit import times
from pushserver.console.toolkit.labels import with_code

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("span", "words"),
    [
        (timedelta(0), "0 s ago"),
        (timedelta(seconds=59.9), "59 s ago"),
        (timedelta(seconds=60), "1 min ago"),
        (timedelta(hours=1, minutes=59), "1 h ago"),
        (timedelta(hours=47), "1 d ago"),
        (timedelta(days=400), "400 d ago"),
        (timedelta(seconds=-0.4), "0 s ago"),  # the clocks of two processes differ
        (-timedelta(seconds=90.5), "in 1 min"),
        (-timedelta(days=2, seconds=1), "in 2 d"),
    ],
)
def test_a_time_is_shown_relative_to_now(monkeypatch: pytest.MonkeyPatch, span: timedelta, words: str) -> None:
    monkeypatch.setattr(timezone, "now", lambda: NOW)

    assert re.findall(">([^<]+)<", times.relative(NOW - span)) == [words]


@pytest.mark.parametrize(
    ("step", "seconds", "words"),
    [
        (MINUTE, 59, "under 1 min ago"),
        (MINUTE, 60, "1 min ago"),
        (HOUR, 3599, "under 1 h ago"),
        (HOUR, 7200, "2 h ago"),
        (DAY, 0, "under 1 d ago"),
        (DAY, 86_400, "1 d ago"),
    ],
)
def test_a_time_that_is_noted_once_in_a_while_is_shown_no_more_exactly(
    monkeypatch: pytest.MonkeyPatch, step: timedelta, seconds: int, words: str
) -> None:
    monkeypatch.setattr(timezone, "now", lambda: NOW)

    assert words in re.split("[<>]", times.coarse(NOW - timedelta(seconds=seconds), step))


def test_a_relative_time_gives_the_exact_time_to_mouse_keyboard_and_machine() -> None:
    markup = times.relative(datetime(2026, 11, 21, 7, 5, 9, tzinfo=UTC))

    assert 'title="2026-11-21 07:05:09 UTC"' in markup
    assert 'datetime="2026-11-21T07:05:09+00:00"' in markup
    assert 'tabindex="0"' in markup


def test_templates_show_states_and_times_as_columns_do() -> None:
    page = Template("{% load console %}{{ state|label }} {{ at|ago }} {{ nothing|label }} {{ never|ago }}")
    at = datetime(2026, 11, 21, tzinfo=UTC)

    html = page.render(Context({"state": "delivered", "at": at, "nothing": "", "never": None}))

    assert html.startswith('<span class="state-word good">delivered</span> <time ')
    assert html.endswith("</time> - -")


@pytest.mark.parametrize(
    ("span", "words"),
    [
        (timedelta(milliseconds=340), "340 ms"),
        (timedelta(seconds=4), "4.0 s"),
        (timedelta(minutes=5), "5 min"),
        (timedelta(hours=3), "3.0 h"),
    ],
)
def test_a_duration_has_as_many_digits_as_people_need(span: timedelta, words: str) -> None:
    assert times.in_words(span) == words


def test_django_writes_times_in_our_format() -> None:
    at = datetime(2026, 11, 28, 7, 8, 9, tzinfo=UTC)
    assert localize(at) == times.exact(at) == "2026-11-28 07:08:09 UTC"
    assert localize(at.date()) == "2026-11-28"
    template = engines["django"].from_string('{{ at }}, {{ at|date:"DATETIME_FORMAT" }}')
    assert template.render({"at": at}) == "2026-11-28 07:08:09 UTC, 2026-11-28 07:08:09 UTC"


def test_commands_between_backticks_are_shown_as_code_and_all_text_is_escaped_once() -> None:
    assert with_code("Run `make run`, or `a < b`.") == "Run <code>make run</code>, or <code>a &lt; b</code>."
    markup = Template("{% load console %}{{ text|with_code }}").render(Context({"text": "<b> & `<i>`"}))
    assert markup == "&lt;b&gt; &amp; <code>&lt;i&gt;</code>"
