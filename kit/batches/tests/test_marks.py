"""Tests of marks: looks move them, an older row is found in time, and a search that takes too long stops nothing."""

from datetime import UTC, datetime, timedelta
from time import monotonic

import pytest

from kit.batches.marks import AT_FIRST, BEGINNING, OVERLAP, Marks, since
from kit.batches.models import StepMark
from kit.db.statements import fetch
from registrations.models import TopicKey

pytestmark = pytest.mark.django_db
OLDEST = "SELECT min(created_at) FROM registrations_topickey WHERE created_at >= %(nothing_before)s"
# It takes longer than any timeout where it begins at the beginning.
SLOW = """
    SELECT CASE WHEN %(nothing_before)s > '2000-01-01' THEN NULL::timestamptz ELSE now() END
    FROM (SELECT CASE WHEN %(nothing_before)s > '2000-01-01' THEN NULL ELSE pg_sleep(20)::text END) AS slept
"""
NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def add_row(at):
    return TopicKey.objects.create(name=str(at), topic=1, key_encrypted=b"", created_at=at)


@pytest.fixture
def marks():
    return Marks({"Rows": OLDEST})


def look(marks, now=NOW):
    """Look for rows from the mark on, as a worker does, and return the mark after it."""
    marks.search(now=now)
    [(earliest,)] = fetch(OLDEST, {"nothing_before": marks.of("Rows")})
    marks.move("Rows", earliest, now=now)
    return marks.of("Rows")


def test_a_mark_is_a_minute_before_the_earliest_row_and_a_minute_ago_without_any(marks):
    row = add_row(NOW - HOUR)
    assert marks.of("Rows") == marks.of("Others") == BEGINNING
    assert look(marks) == NOW - HOUR - OVERLAP
    row.delete()
    assert look(marks) == NOW - OVERLAP
    assert look(marks, NOW + HOUR) == NOW + HOUR - OVERLAP


def test_an_earlier_row_is_found_by_a_search_from_the_beginning(marks):
    look(marks)
    add_row(NOW - HOUR)
    assert look(marks) == NOW - OVERLAP
    assert 500 < marks._complete_at["Rows"] - monotonic() < 601
    marks._complete_at["Rows"] = 0.0
    assert look(marks) == NOW - HOUR - OVERLAP
    add_row(NOW - 2 * HOUR)
    marks.search_from_beginning()
    assert look(marks) == NOW - 2 * HOUR - OVERLAP
    marks.forget()
    assert marks.of("Rows") == BEGINNING


@pytest.mark.django_db(transaction=True)
def test_a_search_that_takes_too_long_delays_the_next_ones_and_keeps_its_mark(monkeypatch):
    """So many index entries of processed rows may be before the first one that waits."""
    monkeypatch.setattr("kit.batches.marks.TIMEOUT", "50ms")
    monkeypatch.setattr("kit.batches.marks.SLOW_SECONDS", 0.04)
    marks = Marks({"Slow": SLOW, "Rows": OLDEST})
    add_row(NOW - HOUR)
    marks.search(now=NOW)
    assert (marks.of("Slow"), marks.of("Rows")) == (NOW - AT_FIRST, NOW - AT_FIRST)
    monkeypatch.setattr("kit.batches.marks.SLOW_SECONDS", 60)
    marks.search(now=NOW)
    assert (marks.of("Slow"), marks.of("Rows")) == (NOW - AT_FIRST, NOW - HOUR - OVERLAP)


def test_the_leader_saves_its_marks_for_others(marks):
    marks.save()
    assert not StepMark.objects.exists()
    look(marks)
    for _ in "12":  # the second time not yet
        marks.save()
        assert StepMark.objects.get(step="Rows").nothing_before == NOW - OVERLAP
        look(marks, NOW + HOUR)
    assert fetch(f"SELECT {since('Rows')} = %s, {since('Nobody')} = '-infinity'", [NOW - OVERLAP]) == [(True, True)]
