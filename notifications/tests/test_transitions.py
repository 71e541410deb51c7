"""The table of transitions, walked: what it allows happens, and nothing else does."""

import pytest

from notifications.models import TRANSITIONS, Notification
from notifications.transitions import DUE, OPEN, move
from tests.factories import make_notification

State = Notification.State
EVERY_PAIR = [(start, to) for start in State for to in State]
FORBIDDEN = [(start, to) for start, to in EVERY_PAIR if to not in TRANSITIONS.get(start, ())]
ALLOWED = [pair for pair in EVERY_PAIR if pair not in FORBIDDEN]


def state_after(start, to):
    notification = make_notification(state=start)
    moved = move(Notification.objects.filter(pk=notification.pk), to)
    notification.refresh_from_db()
    return moved, notification.state


@pytest.mark.django_db
@pytest.mark.parametrize(("start", "to"), ALLOWED)
def test_a_transition_of_the_table_happens(start, to):
    assert state_after(start, to) == (1, to)


@pytest.mark.django_db
@pytest.mark.parametrize(("start", "to"), FORBIDDEN)
def test_any_other_transition_changes_nothing(start, to):
    assert state_after(start, to) == (0, start)


def test_what_is_over_stays_over():
    terminal = set(State) - set(OPEN)
    assert all(state.is_terminal for state in terminal)
    assert not any(state.is_terminal for state in OPEN)
    assert set(OPEN) - set(DUE) == {State.IN_FLIGHT}


def test_every_notification_can_come_to_an_end():
    assert all(any(to.is_terminal for to in targets) for targets in TRANSITIONS.values())
