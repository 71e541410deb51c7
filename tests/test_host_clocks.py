"""Host clocks that are months ahead: they expire nothing, delete nothing, and close no day before its time."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.conf import LazySettings
from django.utils import timezone

import notifications.tasks
import registrations.tasks
import waku_bridge.tasks
import xmpp_bridge.tasks
from kit.db.clock import Clock, clock, database_now
from kit.processes.starting import wait_until_fit
from notifications.models import NotificationRequest
from registrations.models import Registration, RegistrationEvent
from spark_reports.running.runs import RunError, run_reports
from tests import factories
from waku_bridge.models import InboundEnvelope
from xmpp_bridge.models import Device

REAL_NOW = timezone.now
AHEAD = timedelta(days=500)


@pytest.fixture
def host_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[timedelta], None]:
    """Return a function that puts this host's clock ahead by a timedelta. The clock of the database stays right."""

    def put(ahead: timedelta) -> None:
        monkeypatch.setattr(timezone, "now", lambda: REAL_NOW() + ahead)

    return put


@pytest.mark.django_db
def test_deletion_and_expiry_go_by_the_clock_of_the_database(host_clock, settings: LazySettings) -> None:
    settings.CANARY_PERIOD_SECONDS = 0
    factories.make_registration()
    factories.make_registration(state=Registration.State.UNREGISTERED, route=None)
    factories.make_event()
    factories.make_answered_request()
    factories.make_envelope(state=InboundEnvelope.State.PROCESSED)
    factories.make_device()
    factories.make_device(state=Device.State.EXPIRED, ended_at=REAL_NOW())
    everything = [Registration, RegistrationEvent, NotificationRequest, InboundEnvelope, Device]
    before = [list(model.objects.order_by("pk").values()) for model in everything]
    host_clock(AHEAD)
    for task in (
        waku_bridge.tasks.expire_registrations,
        waku_bridge.tasks.purge,
        registrations.tasks.purge,
        notifications.tasks.purge,
        xmpp_bridge.tasks.purge,
    ):
        task()
    assert [list(model.objects.order_by("pk").values()) for model in everything] == before


@pytest.mark.django_db(transaction=True)
def test_no_day_is_closed_before_it_is_over(host_clock) -> None:
    tomorrow = REAL_NOW().date() + timedelta(days=1)
    host_clock(timedelta(days=2))
    with pytest.raises(RunError, match="not over"):
        run_reports(tomorrow, tomorrow, progress=print)


@pytest.mark.django_db(transaction=True)
def test_a_process_goes_by_the_clock_of_the_database_from_its_start(host_clock, monkeypatch) -> None:
    host_clock(-timedelta(days=1))
    monkeypatch.setattr(clock, "_known", None)
    assert abs(clock.now() - database_now()) > timedelta(hours=23)
    wait_until_fit()
    assert abs(clock.now() - database_now()) < timedelta(minutes=1)
    assert isinstance(clock, Clock)
