"""Two beats: one works, the other says so and follows it. Both are real, with the database between them."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from celery import Celery
from django.conf import LazySettings
from redis import Redis

from kit.leader import BEAT
from pushserver.beat import OneBeat
from pushserver.embedded.postgres import EmbeddedPostgres
from pushserver.stack.plan import services
from pushserver.supervisor.guard import Guard
from tests.flows.fleet import Fleet, wait_until
from tests.statements import statements

HOLDERS = """
    SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND (classid::bigint << 32) | objid::bigint = %s
"""


@pytest.fixture
def fleet(
    postgres: EmbeddedPostgres, new_database: Callable[[str], str], guard: Guard, tmp_path: Path
) -> Iterator[Fleet]:
    running = Fleet(tmp_path, {"DATABASE_URL": postgres.url(new_database("beats"))}, guard)
    yield running
    running.kill(*running.running)


def test_a_second_beat_says_so_in_one_line_and_follows_the_first(fleet: Fleet) -> None:
    _start(fleet, "first")
    wait_until(lambda: _holders(fleet) == 1, what="the first beat works")
    _start(fleet, "second")
    wait_until(lambda: "beat_stands_by" in fleet.log("second"), what="the second beat says so")
    time.sleep(3)
    assert fleet.log("second").count("beat_stands_by") == 1
    assert "another beat works, and this one follows it when it ends" in fleet.log("second")
    assert "beat_stands_by" not in fleet.log("first")
    fleet.kill("first")
    wait_until(lambda: "beat_works" in fleet.log("second"), what="the second beat follows")
    assert _holders(fleet) == 1


@pytest.mark.django_db(transaction=True)
def test_the_lock_is_asked_for_once_for_all_that_is_due(tmp_path: Path, settings: LazySettings) -> None:
    app = Celery(broker=settings.REDIS_URL, set_as_current=False)
    due = {"task": "none", "schedule": 1000.0, "options": {"queue": "test_of_beat"}}
    app.conf.beat_schedule = {str(number): due for number in range(20)}
    beat = OneBeat(app=app, schedule_filename=str(tmp_path / "schedule"))
    for entry in beat.schedule.values():
        entry.last_run_at -= timedelta(seconds=1000)
    with statements() as sent:
        assert beat.tick() > 0
    beat.close()
    assert sum("pg_locks" in each for each in sent) == 1
    with Redis.from_url(settings.REDIS_URL) as redis:
        assert redis.llen("test_of_beat") == 20
        redis.delete("test_of_beat")


@pytest.mark.django_db(transaction=True)
def test_what_was_sent_in_the_future_is_sent_again_after_its_period(tmp_path: Path, settings: LazySettings) -> None:
    """The clock of a machine was ahead by months, and was put right: also after a restart of beat."""
    app = Celery(broker=settings.REDIS_URL, set_as_current=False)
    app.conf.beat_schedule = {"it": {"task": "none", "schedule": 1000.0, "options": {"queue": "test_of_beat"}}}
    schedule = str(tmp_path / "schedule")
    ahead = OneBeat(app=app, schedule_filename=schedule)
    ahead.schedule["it"].last_run_at += timedelta(days=180)
    ahead.close()
    beat = OneBeat(app=app, schedule_filename=schedule)
    beat.tick()
    beat.schedule["it"].last_run_at -= timedelta(seconds=1000)
    beat._heap = None
    beat.tick()
    beat.close()
    with Redis.from_url(settings.REDIS_URL) as redis:
        assert redis.llen("test_of_beat") == 1
        redis.delete("test_of_beat")


def _start(fleet: Fleet, name: str) -> None:
    beat = services(data_dir=fleet.folder, cpus=1)[-1]
    schedule = f"--schedule={fleet.folder / name}"
    command = [*(part for part in beat.command if not part.startswith("--schedule")), schedule]
    fleet.start(replace(beat, name=name, command=command))


def _holders(fleet: Fleet) -> int:
    with psycopg.connect(fleet.environment["DATABASE_URL"], autocommit=True) as connection:
        [(count,)] = connection.execute(HOLDERS, [BEAT]).fetchall()
    return int(count)
