"""The limits of what is kept, and of the database, in docs/limits.md."""

import json
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import pytest
from django.conf import LazySettings

from kit.db.base import MIGRATIONS, REPORTS, fetch, timeouts
from kit.db.clock import day_of
from kit.db.partitions import run_for_a_while
from kit.db.sessions import BATCH_WORKER, Timeouts
from notifications import tasks as notification_tasks
from notifications.models import Attempt, Notification, NotificationRequest
from pushserver.config.tests.test_role import begun, printed
from registrations import tasks as registration_tasks
from registrations.models import RegistrationEvent
from spark_reports.running import runs
from tests.limits.conftest import Time
from tests.limits.page import limit
from tests.rig import rows
from waku_bridge import tasks as waku_tasks
from waku_bridge.models import DeadLetter, InboundEnvelope, OutboundReply
from waku_bridge.reading.intake import DeadLetters
from waku_bridge.reading.tests.test_dead_letters import keep
from xmpp_bridge import handler

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _by_this_clock(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all that removes rows read the time of the test."""
    for module in (notification_tasks, registration_tasks, waku_tasks, runs):
        monkeypatch.setattr(module, "database_now", lambda: time.now)


# What is kept ---------------------------------------------------------------------------------------------------------


def around(midnight_of: datetime) -> tuple[datetime, datetime]:
    """Return the first moment of a day, and the last one of the day before it."""
    midnight = datetime.combine(day_of(midnight_of), datetime.min.time(), UTC)
    return midnight, midnight - timedelta(seconds=1)


@limit("envelopes, replies, dead letters …: {setting}")
def test_envelopes_are_kept_for_the_days_that_an_operator_sets(
    setting: str, settings: LazySettings, time: Time
) -> None:
    since = time.now - timedelta(days=getattr(settings, setting))
    for at in around(since):
        rows.make_envelope(state="processed", at=at)
        rows.make_reply(state="confirmed", at=at)
        keep(DeadLetters(), at.isoformat(), now=at)
    waku_tasks.purge()
    assert [model.objects.count() for model in (InboundEnvelope, OutboundReply, DeadLetter)] == [1, 1, 1]


@limit("requests, notifications, attempts: {setting}")
def test_requests_are_kept_for_the_days_that_an_operator_sets(setting: str, settings: LazySettings, time: Time) -> None:
    since = time.now - timedelta(days=getattr(settings, setting))
    for at in (since, since - timedelta(days=2)):  # a request stays for a day more than its notification
        request = rows.make_answered_request(at=at)
        notification = rows.make_notification(request=request, state="delivered", at=at, finished_at=at)
        rows.make_attempt(notification, outcome="delivered", started_at=at)
    notification_tasks.purge()
    assert [model.objects.count() for model in (NotificationRequest, Notification, Attempt)] == [1, 1, 1]


@limit("days of the lake …: {setting}")
def test_events_are_kept_for_the_days_that_an_operator_sets(setting: str, settings: LazySettings, time: Time) -> None:
    """Weeks are dropped as a whole."""
    since = time.now - timedelta(days=getattr(settings, setting))
    for at in (since, since - timedelta(days=7)):
        rows.make_event(kind=RegistrationEvent.Kind.UNREGISTERED, at=at)
    registration_tasks.purge()
    assert [event.at for event in RegistrationEvent.objects.all()] == [since]


@limit("days of the lake (at least {least})")
@pytest.mark.parametrize("more", [-1, 1])
def test_the_lake_keeps_at_least_that_many_days(
    more: int, least: int, settings: LazySettings, time: Time, tmp_path: Path
) -> None:
    settings.EVENT_RETENTION_DAYS, settings.REPORTS_LAKE = least + more, str(tmp_path)
    kept = max(least, least + more)
    days = [time.now.date() - timedelta(days=days) for days in (kept - 1, kept)]
    for day in days:
        (tmp_path / "facts" / "days" / f"day={day}").mkdir(parents=True)
    runs._forget_old_days()
    assert [path.name for path in (tmp_path / "facts" / "days").iterdir()] == [f"day={days[0]}"]


# The database ---------------------------------------------------------------------------------------------------------


@cache
def limits_of(name: str) -> tuple[float, float, dict[str, str | int]]:
    """Return the seconds of statements and of locks of a process, and the options of its sessions."""
    program = f"""{begun(name)}; from pushserver import settings as s; import json
own, options = s.DATABASE_TIMEOUTS, s.DATABASES["default"]["OPTIONS"]
print(json.dumps([own.statement_seconds, own.lock_seconds, options]))"""
    statement, lock, options = json.loads(printed(program))
    return statement, lock, options


@limit("Both ends give up a silent host after {seconds} s.")
def test_both_ends_give_up_a_silent_host(seconds: int) -> None:
    *_, client = limits_of("worker")
    server = dict(each.split("=") for each in str(client["options"]).split("-c ") if "=" in each)
    assert client["tcp_user_timeout"] == 1000 * seconds
    assert server["tcp_user_timeout"].strip() == f"{1000 * seconds}ms"
    names = ("keepalives_idle", "keepalives_interval", "keepalives_count")
    ours, theirs = ([int(own[f"{prefix}{name}"]) for name in names] for own, prefix in ((client, ""), (server, "tcp_")))
    assert all(seconds - 2 < idle + interval * count < seconds for idle, interval, count in (ours, theirs))


@limit("| messages, console, API | {statement} s | {lock} s; batch workers {worker} s |")
@pytest.mark.parametrize("name", ["worker", "wsgi"])
def test_statements_of_the_server_take_at_most_that_long(name: str, statement: int, lock: int, worker: int) -> None:
    assert limits_of(name)[:2] == (statement, lock)
    assert BATCH_WORKER["lock_timeout"] == str(1000 * worker)


@limit("| migrations, commands | no limit | {lock} s |")
def test_statements_of_a_command_take_as_long_as_they_like(lock: int) -> None:
    assert limits_of("rotate_field_keys")[:2] == (0, lock)
    assert allowed(MIGRATIONS) == (0, lock)


def allowed(own: Timeouts) -> tuple[float, float]:
    """Return the seconds of statements and of locks while these timeouts are set."""
    with timeouts(own):
        return shown()


def shown() -> tuple[float, float]:
    named = "SELECT setting::float / 1000 FROM pg_settings WHERE name = %s"
    [(statement,)], [(lock,)] = (fetch(named, [f"{kind}_timeout"]) for kind in ("statement", "lock"))
    return statement, lock


@limit("| XMPP bridge | {statement} s | {lock} s |")
def test_statements_of_the_xmpp_bridge_take_at_most_that_long(statement: int, lock: int) -> None:
    assert allowed(handler.TIMEOUTS) == (statement, lock)


@limit("| reports | {hours} h | {lock} s |")
def test_statements_of_reports_take_at_most_that_long(hours: int, lock: int) -> None:
    assert allowed(REPORTS) == (3600 * hours, lock)


@limit("| retention | {minutes} min | {lock} s |")
def test_statements_of_retention_take_at_most_that_long(minutes: int, lock: int) -> None:
    seen = []
    run_for_a_while(seen.append(shown()) or 0 for _ in range(1))
    assert seen == [(60 * minutes, lock)]
