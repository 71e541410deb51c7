"""Tests of every pair of states: the transitions of the table happen, and no others; and of docs/delivery.md, which
explains every state, class and report that an operator can see.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.db import connection

from kit.db.statements import fetch
from notifications.messages import Outcome
from notifications.models import TRANSITIONS, Notification, OpenNotification
from notifications.rules.transitions import DUE, OPEN, end, move
from tests.rig.delivering import NOW, make_due
from tests.rig.rows import make_notification
from tests.rig.statements import WAITS_HERE, other_session

State = Notification.State
DOCUMENT = (Path(__file__).parents[2] / "docs" / "delivery.md").read_text(encoding="utf-8")


@pytest.mark.django_db
@pytest.mark.parametrize("to", State)
@pytest.mark.parametrize("start", State)
def test_the_transitions_of_the_table_happen_and_any_other_changes_nothing(start, to):
    notification = make_notification(state=start)
    is_allowed = to in TRANSITIONS.get(start, ())
    if to.is_terminal:
        assert end([notification.pk], to, now=NOW) == is_allowed
    else:
        assert move(OpenNotification.objects.filter(pk=notification.pk), to) == is_allowed
    notification.refresh_from_db()
    assert notification.state == (to if is_allowed else start)


@pytest.mark.parametrize("word", [*State, *Outcome, *(report.upper() for report in Notification.Reports)], ids=str)
def test_every_state_class_and_report_is_explained(word):
    assert word == "SUCCESS" or f"\n| `{word}` |" in DOCUMENT


def test_an_ended_notification_stays_ended():
    terminal = set(State) - set(OPEN)
    assert all(state.is_terminal for state in terminal)
    assert not any(state.is_terminal for state in OPEN)
    assert set(OPEN) - set(DUE) == {State.IN_FLIGHT}


def test_every_notification_can_come_to_an_end():
    assert all(any(to.is_terminal for to in targets) for targets in TRANSITIONS.values())


@pytest.mark.django_db(transaction=True)
def test_a_session_that_waits_for_a_row_that_ends_meanwhile_changes_nothing():
    notification = make_due()

    def withdraw():
        try:
            return end([notification.pk], State.WITHDRAWN, now=NOW)
        finally:
            connection.close()

    with other_session() as other, ThreadPoolExecutor() as pool:
        other.execute("DELETE FROM notifications_opennotification")
        waiting = pool.submit(withdraw)
        while not (fetch(WAITS_HERE) or waiting.done()):
            pass
        other.commit()
        assert waiting.result(timeout=20) == 0
