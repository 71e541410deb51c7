"""Tests of marks: the earliest row is found in time, and a search that takes too long stops nothing."""

from datetime import timedelta
from time import monotonic

import pytest
from django.utils import timezone

from kit.batches.marks import AT_FIRST, BEGINNING, OVERLAP, Marks, since
from kit.batches.models import StepMark
from kit.db.statements import fetch
from registrations.models import TopicKey

pytestmark = pytest.mark.django_db
OLDEST = "SELECT min(created_at) FROM registrations_topickey WHERE created_at >= %(nothing_before)s"
# Takes too long from the beginning of the index, and finds nothing later.
SLOW = """
    SELECT CASE WHEN %(nothing_before)s > '2000-01-01' THEN NULL::timestamptz ELSE now() END
    FROM (SELECT CASE WHEN %(nothing_before)s > '2000-01-01' THEN NULL ELSE pg_sleep(20)::text END) AS slept
"""
NOW = timezone.now()
HOUR = timedelta(hours=1)


def add_row(at):
    TopicKey.objects.create(name=str(at), topic=7, key_encrypted=b"", created_at=at)


def move(marks, *, now=NOW, saves=False):
    marks._move_at = 0.0
    marks.move(now=now, saves=saves)


def test_a_mark_is_a_minute_before_the_earliest_row_and_moves_on_from_there():
    marks = Marks({"Rows": OLDEST})
    assert marks.of("Rows") == marks.of("Others") == BEGINNING
    add_row(NOW - HOUR)
    move(marks)
    assert marks.of("Rows") == NOW - HOUR - OVERLAP
    TopicKey.objects.all().delete()
    move(marks)
    assert marks.of("Rows") == NOW - OVERLAP
    marks.move(now=NOW + HOUR, saves=False)  # it is not due
    assert marks.of("Rows") == NOW - OVERLAP
    assert 10 < marks._move_at - monotonic() < 60


def test_rows_before_a_mark_are_found_every_ten_minutes_and_when_somebody_announces_them():
    marks = Marks({"Rows": OLDEST})
    move(marks)
    add_row(NOW - HOUR)
    move(marks)
    assert marks.of("Rows") == NOW - OVERLAP
    assert 500 < marks._complete_at["Rows"] - monotonic() < 601
    marks._complete_at["Rows"] = 0.0
    move(marks)
    assert marks.of("Rows") == NOW - HOUR - OVERLAP
    add_row(NOW - 2 * HOUR)
    marks._move_not_before = 0.0
    marks.search_from_beginning()
    marks.move(now=NOW, saves=False)
    assert marks.of("Rows") == NOW - 2 * HOUR - OVERLAP
    marks.forget()
    assert marks.of("Rows") == BEGINNING


@pytest.mark.django_db(transaction=True)
def test_a_search_that_takes_too_long_leaves_the_mark_as_it_is_and_keeps_others_waiting_once(monkeypatch):
    monkeypatch.setattr("kit.batches.marks.TIMEOUT", "50ms")
    monkeypatch.setattr("kit.batches.marks.SLOW_SECONDS", 0.04)
    marks = Marks({"Slow": SLOW, "Rows": OLDEST})
    add_row(NOW - HOUR)
    move(marks)
    assert (marks.of("Slow"), marks.of("Rows")) == (NOW - AT_FIRST, NOW - AT_FIRST)
    monkeypatch.setattr("kit.batches.marks.SLOW_SECONDS", 60)
    move(marks)
    assert (marks.of("Slow"), marks.of("Rows")) == (NOW - OVERLAP, NOW - HOUR - OVERLAP)
    assert fetch("SELECT current_setting('statement_timeout') <> '50ms'") == [(True,)]
    marks._complete_at = {}
    move(marks)
    marks.search_from_beginning()  # an announcement causes no search for a while after one that took long
    assert 0.5 < marks._move_at - monotonic() < 60


def test_the_leader_saves_its_marks_for_statements_that_count_waiting_rows():
    marks = Marks({"Rows": OLDEST})
    move(marks)
    assert not StepMark.objects.exists()
    move(marks, saves=True)
    assert StepMark.objects.get(step="Rows").nothing_before == NOW - OVERLAP
    assert fetch(f"SELECT {since('Rows')} = %s, {since('Nobody')} = '-infinity'", [NOW - OVERLAP]) == [(True, True)]
