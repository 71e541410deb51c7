"""Two real workers with beat: one sends tasks, the other logs that it waits, and takes over later."""

import time
from dataclasses import replace
from datetime import timedelta
from threading import Event
from unittest import mock

import psycopg
import pytest
from celery import Celery
from celery.beat import SchedulingError
from django.conf import LazySettings
from kombu.exceptions import OperationalError
from redis import Redis

from embedded.stack.plan import services
from kit.processes.leader import BEAT
from pushserver.threads import FIRST_AFTER, Beat, OneBeat
from tests.rig.logs import capture_logs
from tests.rig.server import Fleet, wait_until
from tests.rig.statements import statements

HOLDERS = """
    SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND (classid::bigint << 32) | objid::bigint = %s
"""


@pytest.fixture
def fleet(new_database, guard, tmp_path):
    running = Fleet(tmp_path, {"DATABASE_URL": new_database("beats")}, guard)
    yield running
    running.kill(*running.running)


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_second_beat_says_so_in_one_line_and_follows_the_first(fleet, end):
    _start(fleet, "first")
    wait_until(lambda: _holders(fleet) == 1, what="the first beat works")
    _start(fleet, "second")
    wait_until(lambda: "beat_stands_by" in fleet.log("second"), what="the second beat says so")
    time.sleep(3)
    assert fleet.log("second").count("beat_stands_by") == 1
    assert "another beat works, and this one follows it when it ends" in fleet.log("second")
    assert "beat_stands_by" not in fleet.log("first")
    getattr(fleet, end)("first")
    wait_until(lambda: "beat_works" in fleet.log("second"), what="the second beat follows")
    assert _holders(fleet) == 1


@pytest.fixture
def app(settings):
    app = Celery(broker=settings.REDIS_URL, set_as_current=False)
    due = {"task": "none", "schedule": 1000.0, "options": {"queue": "test_of_beat"}}
    app.conf.beat_schedule = {str(number): due for number in range(20)}
    return app


def _sent(settings: LazySettings) -> int:
    """Return the number of tasks that were sent since the last call."""
    with Redis.from_url(settings.REDIS_URL) as redis:
        sent = redis.llen("test_of_beat")
        redis.delete("test_of_beat")
    return int(sent)


def _pass(beat: OneBeat, seconds: float) -> None:
    for entry in beat.schedule.values():
        entry.last_run_at -= timedelta(seconds=seconds)
    beat._heap = None


@pytest.mark.django_db(transaction=True)
def test_the_lock_is_asked_for_once_for_all_that_is_due_and_a_task_noted_in_the_future_is_sent_again(app, settings):
    """The clock of a machine was ahead by months, and was corrected."""
    beat = OneBeat(app)
    _pass(beat, -180 * 86_400)
    beat.tick()
    assert _sent(settings) == 0
    _pass(beat, 1000)
    with statements() as sent:
        assert beat.tick() > 0
    assert sum("pg_locks" in each for each in sent) == 1
    assert _sent(settings) == 20


@pytest.mark.django_db(transaction=True)
def test_a_rare_task_is_sent_soon_after_a_start(app, settings):
    """The time of its last run is unknown, and a server that restarts every hour must purge, too."""
    app.conf.beat_schedule["rare"] = {**app.conf.beat_schedule["0"], "schedule": 21_600.0}
    beat = OneBeat(app)
    beat.tick()
    assert _sent(settings) == 0
    _pass(beat, FIRST_AFTER.total_seconds() + 1)
    beat.tick()
    assert _sent(settings) == 21


@pytest.mark.django_db(transaction=True)
def test_a_beat_without_a_broker_leaves_the_schedule_to_another_process(app, settings, monkeypatch):
    beat = OneBeat(app)
    beat.tick()
    _pass(beat, 1000)
    away = mock.Mock(side_effect=OperationalError("the broker is away"))
    monkeypatch.setattr(beat, "send_task", away)
    with pytest.raises(SchedulingError):
        beat.tick()
    assert (away.call_count, _sent(settings)) == (1, 0)


@pytest.mark.django_db(transaction=True)
def test_a_fault_ends_no_beat(app, settings, monkeypatch):
    faults = iter([ZeroDivisionError])

    def tick(beat: OneBeat) -> float:
        for fault in faults:
            raise fault
        works.set()
        return 1.0

    works = Event()
    monkeypatch.setattr("pushserver.threads.AFTER_FAULT_SECONDS", 0.01)
    monkeypatch.setattr(OneBeat, "tick", tick)
    beat = Beat(app)
    with capture_logs() as logs:
        beat.start()
        assert works.wait(20)
    beat.stop()
    beat.join(20)
    assert [line["error"] for line in logs] == ["ZeroDivisionError"]


def _start(fleet: Fleet, name: str) -> None:
    [tasks] = [spec for spec in services(cpus=1) if spec.name == "tasks"]
    fleet.start(replace(tasks, name=name))


def _holders(fleet: Fleet) -> int:
    with psycopg.connect(fleet.environment["DATABASE_URL"], autocommit=True) as connection:
        [(count,)] = connection.execute(HOLDERS, [BEAT]).fetchall()
    return int(count)
