"""Tests of a row that the database refuses: halving finds it, in every step of delivery, and it stops no other row."""

from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from notifications.models import Notification
from tests.rig.delivering import LONG_AGO, DeliveryProcess, fresh, make_due
from tests.rig.rows import make_attempt, make_notification, make_request

State = Notification.State

pytestmark = pytest.mark.django_db

# PostgreSQL raises this itself when a value is too large for an index (SQLSTATE 54000).
REFUSE = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        RAISE EXCEPTION 'index row size exceeds maximum' USING ERRCODE = '54000';
    END $$;
    CREATE TRIGGER refuse BEFORE {event} ON {table} FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION refuse()
"""


def refuse(table, event, condition):
    with connection.cursor() as cursor:
        cursor.execute(REFUSE.format(table=table, event=event, condition=condition))


def test_a_notification_that_cannot_be_claimed_is_postponed_and_stops_no_other():
    bad, others = make_due(at=LONG_AGO - timedelta(days=1)), [make_due() for _ in range(20)]
    refuse("notifications_attempt", "INSERT", f"NEW.notification_id = {bad.pk}")
    deliverer = DeliveryProcess()
    deliverer.process_until(lambda: all(fresh(n).state == State.DELIVERED for n in others))
    assert (fresh(bad).state, fresh(bad).attempt_count, len(deliverer.gateway.pushes)) == (State.PENDING, 0, 20)
    assert fresh(bad).next_attempt_at > timezone.now() + timedelta(seconds=30)


def test_a_lost_push_that_cannot_be_taken_over_stops_no_other():
    now = timezone.now()
    rows = [make_notification(state=State.IN_FLIGHT, lease_until=LONG_AGO, next_attempt_at=None) for _ in range(20)]
    for row in rows:
        make_attempt(row)
    bad = rows[0]
    refuse("notifications_attempt", "UPDATE", f"NEW.notification_id = {bad.pk}")
    deliverer = DeliveryProcess()
    deliverer.process_until(lambda: not Notification.objects.exclude(pk=bad.pk).filter(state=State.IN_FLIGHT).exists())
    assert fresh(bad).lease_until > now


def test_a_request_that_cannot_be_answered_stops_no_other_answer():
    requests = [make_request(at=LONG_AGO) for _ in range(20)]
    for request in requests:
        make_notification(request=request, state=State.DELIVERED, next_attempt_at=None)
    bad = requests[3]
    refuse("notifications_notification", "UPDATE", f"NEW.request_id = {bad.pk}")
    deliverer = DeliveryProcess()
    deliverer.process_until(lambda: not type(bad).objects.filter(state="waiting").exists())
    reported = Notification.objects.filter(report="success").values_list("request", flat=True)
    assert set(reported) == {request.pk for request in requests if request != bad}
