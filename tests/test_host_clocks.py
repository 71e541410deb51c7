"""Clocks that are far ahead, of this host or of the database: they expire nothing, delete nothing, and close no day
before its time.
"""

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from django.conf import LazySettings
from django.db import connection
from django.utils import timezone

import notifications.tasks
import registrations.tasks
import waku_bridge.tasks
import xmpp_bridge.tasks
from kit.db.base import fetch
from kit.db.clock import clock, database_now
from kit.processes.starting import wait_until_fit
from notifications.models import Notification, NotificationRequest
from registrations.models import Registration, RegistrationEvent
from spark_reports.running.runs import RunError, run_reports
from tests.rig import rows
from tests.rig.delivering import DeliveryProcess, make_due
from tests.rig.logs import capture_logs
from waku_bridge.models import InboundEnvelope
from xmpp_bridge.models import Device

pytestmark = pytest.mark.django_db(transaction=True)
REAL_NOW = timezone.now


@pytest.fixture
def host_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[timedelta], None]:
    """Return a function that puts this host's clock ahead by a timedelta. The clock of the database stays right."""
    return lambda ahead: monkeypatch.setattr(timezone, "now", lambda: REAL_NOW() + ahead)


def test_deletion_expiry_and_reports_go_by_the_clock_of_the_database(host_clock, settings: LazySettings) -> None:
    settings.CANARY_PERIOD_SECONDS = 0
    rows.make_registration()
    rows.make_registration(state=Registration.State.UNREGISTERED, route=None)
    rows.make_event()
    rows.make_answered_request()
    rows.make_envelope(state=InboundEnvelope.State.PROCESSED)
    rows.make_device()
    rows.make_device(state=Device.State.EXPIRED, ended_at=REAL_NOW())
    everything = [Registration, RegistrationEvent, NotificationRequest, InboundEnvelope, Device]
    before = [list(model.objects.order_by("pk").values()) for model in everything]
    host_clock(timedelta(days=500))
    waku_bridge.tasks.expire_registrations()
    for app in (waku_bridge, registrations, notifications, xmpp_bridge):
        app.tasks.purge()
    assert [list(model.objects.order_by("pk").values()) for model in everything] == before
    tomorrow = REAL_NOW().date() + timedelta(days=1)
    with pytest.raises(RunError, match="not over"):
        run_reports(tomorrow, tomorrow, progress=print)


def test_a_process_goes_by_the_clock_of_the_database_from_its_start(host_clock, monkeypatch) -> None:
    host_clock(-timedelta(days=1))
    monkeypatch.setattr(clock, "_known", None)
    assert abs(clock.now() - database_now()) > timedelta(hours=23)
    wait_until_fit()
    assert abs(clock.now() - database_now()) < timedelta(minutes=1)


@pytest.fixture
def database_clock() -> Iterator[Callable[[timedelta], None]]:
    """Return a function that puts the clock of this session's database ahead."""

    def put(ahead: timedelta) -> None:
        fetch("CREATE SCHEMA IF NOT EXISTS ahead")
        with connection.cursor() as cursor:
            cursor.execute(
                "CREATE OR REPLACE FUNCTION ahead.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS "
                f"$$ SELECT pg_catalog.clock_timestamp() + interval '{ahead.total_seconds()} s' $$"
            )
        fetch("SET search_path = ahead, pg_catalog, public")

    yield put
    fetch("RESET search_path")
    fetch("DROP SCHEMA ahead CASCADE")
    connection.close()  # with its prepared statements


def test_a_database_whose_clock_leaps_a_day_ahead_expires_nothing_that_waits(database_clock) -> None:
    """Only a process that started before can know of the leap. It goes by the time that it had, and says so once."""
    now = database_now()
    push = make_due(due_at=now + timedelta(hours=1), expires_at=now + timedelta(hours=24))
    process = DeliveryProcess()
    process.process_batch(now=clock.now())
    with capture_logs() as logs:
        database_clock(timedelta(days=1))
        for _ in range(3):
            process.process_batch(now=clock.now())
        push.refresh_from_db()
        assert push.state == Notification.State.PENDING
        assert abs(database_now() - REAL_NOW()) < timedelta(minutes=1)
        database_clock(timedelta())
        process.process_batch(now=clock.now())
    assert [entry["event"] for entry in logs] == ["database_clock_leapt", "database_clock_is_back"]


def test_a_leap_that_the_clock_of_this_host_makes_as_well_is_followed(host_clock, database_clock) -> None:
    """The machine slept, or its clock was wrong before."""
    database_now()
    host_clock(timedelta(days=1))
    database_clock(timedelta(days=1))
    assert database_now() - REAL_NOW() > timedelta(hours=23)
    host_clock(timedelta())
    database_clock(timedelta())
    assert abs(database_now() - REAL_NOW()) < timedelta(minutes=1)
