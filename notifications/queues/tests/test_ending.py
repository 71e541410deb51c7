"""Tests of ends without a result, and of docs/delivery.md, which explains every state, class and report."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.db import connection

from kit.db.base import fetch
from notifications.messages import Outcome
from notifications.models import WAITING, Notification
from notifications.queues.ending import end
from tests.rig.delivering import NOW, make_due
from tests.rig.rows import make_notification
from tests.rig.statements import WAITS_HERE, other_session

State = Notification.State
DOCUMENT = (Path(__file__).parents[3] / "docs" / "delivery.md").read_text(encoding="utf-8")


@pytest.mark.django_db
@pytest.mark.parametrize("state", State)
def test_only_a_notification_that_waits_is_ended_without_a_result(state):
    notification = make_notification(state=state)
    assert end([notification.pk], State.WITHDRAWN, now=NOW) == (state in WAITING)
    notification.refresh_from_db()
    assert notification.state == (State.WITHDRAWN if state in WAITING else state)


@pytest.mark.parametrize("word", [*State, *Outcome, *(report.upper() for report in Notification.Reports)], ids=str)
def test_every_state_class_and_report_is_explained(word):
    assert word == "SUCCESS" or f"\n* `{word}`:" in DOCUMENT


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
