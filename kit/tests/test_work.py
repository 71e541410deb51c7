"""Work rows: what is due is taken, claimed for a while, and ends in the history, or is due again."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from kit import work
from kit.batches.batch import LONG_AGO
from kit.db.base import fetch
from tests.rig.statements import other_session

pytestmark = pytest.mark.django_db(transaction=True)
NOW = datetime(2026, 11, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
ROWS = work.Table(
    "made_up_work",
    history="made_up_history",
    kept=("id", "name"),
    ends=(("state", "text"), ("ended_at", "timestamptz")),
    kept_if="name <> 'secret'",
)


@pytest.fixture(autouse=True)
def tables() -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE made_up_work (id bigint PRIMARY KEY, due_at timestamptz, name text, count int)")
        cursor.execute("CREATE TABLE made_up_history (id bigint, name text, state text, ended_at timestamptz)")
        yield
        cursor.execute("DROP TABLE made_up_work, made_up_history")


def insert(*rows: tuple[int, datetime, str]) -> None:
    for row in rows:
        fetch("INSERT INTO made_up_work VALUES (%s, %s, %s, 0)", row)


def take(*, limit: int = 10, now: datetime = NOW, nothing_before: datetime = LONG_AGO) -> list[int]:
    return [pk for (pk,) in work.take(ROWS, ("id",), limit=limit, now=now, nothing_before=nothing_before)]


def left() -> list[tuple[object, ...]]:
    return fetch("SELECT id, due_at, name, count FROM made_up_work ORDER BY id")


def history() -> list[tuple[object, ...]]:
    return fetch("SELECT id, name, state, ended_at FROM made_up_history ORDER BY id")


def test_what_is_due_is_taken_in_its_order_and_locked_rows_are_skipped() -> None:
    insert((1, NOW, "a"), (2, NOW - MINUTE, "b"), (3, NOW + MINUTE, "c"), (4, NOW - 3 * MINUTE, "d"))
    assert take() == [4, 2, 1]
    assert take(limit=2) == [4, 2]
    assert take(nothing_before=NOW - MINUTE) == [2, 1]
    with other_session() as session:
        session.execute("SELECT FROM made_up_work WHERE id = 2 FOR UPDATE")
        assert take() == [4, 1]


def test_rows_that_are_done_leave_for_the_history_unless_they_leave_none() -> None:
    insert((1, NOW, "a"), (2, NOW, "secret"), (3, NOW, "c"))
    work.done(ROWS, [(2, NOW, "sent", NOW), (1, NOW, "lost", NOW + MINUTE)])
    assert history() == [(1, "a", "lost", NOW + MINUTE)]
    assert left() == [(3, NOW, "c", 0)]


def test_a_row_is_due_again_with_what_changed() -> None:
    insert((1, NOW, "a"), (2, NOW, "b"))
    work.again(ROWS, [(2, NOW, NOW + MINUTE, 7, None)], (("count", "int"), ("name", "text")))
    work.again(ROWS, [(1, NOW, NOW + 2 * MINUTE)])
    assert left() == [(1, NOW + 2 * MINUTE, "a", 0), (2, NOW + MINUTE, None, 7)]


def test_a_claim_that_another_process_has_taken_over_changes_nothing() -> None:
    """Its id may also be that of another row, after a fail-over."""
    insert((1, NOW + MINUTE, "a"))
    work.done(ROWS, [(1, NOW, "sent", NOW)])
    work.again(ROWS, [(1, NOW, NOW + 2 * MINUTE)])
    assert (left(), history()) == ([(1, NOW + MINUTE, "a", 0)], [])


def test_without_rows_nothing_is_sent() -> None:
    work.done(ROWS, [])
    work.again(ROWS, [])
