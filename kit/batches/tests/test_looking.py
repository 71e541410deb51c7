"""Tests of looks: they move the marks, they find an older row in time, and one that takes too long stops nothing."""

from datetime import UTC, datetime, timedelta
from time import monotonic

import pytest

from kit.batches.batch import LONG_AGO, Step
from kit.batches.looking import AT_FIRST, OVERLAP, WaitingRows, since
from kit.batches.models import StepMark
from kit.db.base import fetch
from registrations.models import TopicKey

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def add_row(at):
    return TopicKey.objects.create(name=str(at), topic=1, key_encrypted=b"", created_at=at)


class Slow(Step):
    """A step whose query takes longer than any timeout where it begins at the beginning."""

    oldest = """
        SELECT CASE WHEN %(nothing_before)s > '2000-01-01' THEN NULL::timestamptz ELSE now() END
        FROM (SELECT CASE WHEN %(nothing_before)s > '2000-01-01' THEN NULL ELSE pg_sleep(20)::text END) AS slept
    """


class Rows(Step):
    oldest = "SELECT min(created_at) FROM registrations_topickey WHERE created_at >= %(nothing_before)s"


STEP = Rows()


@pytest.fixture
def rows():
    yield (rows := WaitingRows([STEP]))
    rows.disconnect()  # with the lock of the leader


def look(rows, now=NOW):
    """Look for rows, and return the mark after it."""
    rows.look(now=now)
    return rows.mark(STEP)


def test_a_mark_is_a_minute_before_the_earliest_row_and_a_minute_ago_without_any(rows):
    row = add_row(NOW - HOUR)
    assert rows.mark(STEP) == LONG_AGO
    assert look(rows) == NOW - HOUR - OVERLAP
    row.delete()
    assert look(rows) == NOW - OVERLAP
    assert look(rows, NOW + HOUR) == NOW + HOUR - OVERLAP
    assert rows.steps == {STEP}


def test_an_earlier_row_is_found_by_a_search_from_the_beginning(rows):
    look(rows)
    add_row(NOW - HOUR)
    assert look(rows) == NOW - OVERLAP
    assert 500 < rows._complete_at[STEP] - monotonic() < 601
    rows._complete_at[STEP] = 0.0
    assert look(rows) == NOW - HOUR - OVERLAP
    add_row(NOW - 2 * HOUR)
    rows.search_from_beginning()
    assert look(rows) == NOW - 2 * HOUR - OVERLAP


@pytest.mark.django_db(transaction=True)
def test_a_search_that_takes_too_long_delays_the_next_ones_and_keeps_its_mark(monkeypatch):
    """So many index entries of processed rows may be before the first one that waits."""
    monkeypatch.setattr("kit.batches.looking.TIMEOUT", "50ms")
    monkeypatch.setattr("kit.batches.looking.SLOW_SECONDS", 0.04)
    rows = WaitingRows([slow := Slow(), STEP])
    add_row(NOW - HOUR)
    rows._search_completely(NOW)
    assert (rows.mark(slow), rows.mark(STEP)) == (NOW - AT_FIRST, NOW - AT_FIRST)
    monkeypatch.setattr("kit.batches.looking.SLOW_SECONDS", 60)
    rows._search_completely(NOW)
    assert (rows.mark(slow), rows.mark(STEP)) == (NOW - AT_FIRST, NOW - HOUR - OVERLAP)
    rows.look(now=NOW)  # it is quick from the mark on
    assert (rows.mark(slow), rows.steps) == (NOW - OVERLAP, {STEP})
    rows.disconnect()


@pytest.mark.django_db(transaction=True)
def test_the_leader_saves_its_marks_for_others(rows):
    deadline = monotonic() + 20
    while not rows.is_leader:  # the leader of an earlier test may be ending
        assert monotonic() < deadline
        look(rows)
    look(rows)
    for _ in "12":  # the second time not yet
        assert StepMark.objects.get(step="Rows").nothing_before == NOW - OVERLAP
        look(rows, NOW + HOUR)
    assert fetch(f"SELECT {since('Rows')} = %s, {since('Nobody')} = '-infinity'", [NOW - OVERLAP]) == [(True, True)]
