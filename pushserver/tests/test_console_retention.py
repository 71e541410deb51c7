"""Retention of the access log, sessions and failed logins of the console."""

from datetime import timedelta

import pytest
from axes.models import AccessAttempt
from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone

from pushserver import tasks
from pushserver.models import AccessRecord
from tests.limits.page import limit

pytestmark = pytest.mark.django_db


def opened(age: timedelta) -> AccessRecord:
    return AccessRecord.objects.create(username="ann", page="user", object_id="1", at=timezone.now() - age)


@limit("openings of records: {setting}")
def test_the_access_log_is_kept_as_long_as_the_setting_says(setting: str) -> None:
    keep = timedelta(days=getattr(settings, setting))
    opened(keep + timedelta(minutes=1))
    young = opened(keep - timedelta(minutes=1))

    tasks.purge_visits()

    assert AccessRecord.objects.get() == young


def test_sessions_that_ended_are_removed_and_others_go_on(client: Client) -> None:
    client.force_login(User.objects.create_user("ann", is_staff=True))
    Session.objects.create(session_key="old", session_data="", expire_date=timezone.now() - timedelta(seconds=1))

    tasks.purge_visits()

    assert client.get("/admin/").status_code == 200
    assert not Session.objects.filter(session_key="old").exists()


def test_failed_logins_are_removed_once_they_lock_nobody_out() -> None:
    for name in ("old", "young"):
        Client().post("/admin/login/", {"username": name, "password": "wrong", "code": "123456"})
    cooloff = settings.AXES_COOLOFF_TIME
    AccessAttempt.objects.filter(username="old").update(attempt_time=timezone.now() - cooloff - timedelta(seconds=1))

    tasks.purge_visits()

    assert AccessAttempt.objects.get().username == "young"


def test_neither_password_nor_code_is_kept_or_logged_with_a_failed_login(caplog: pytest.LogCaptureFixture) -> None:
    """A password in the wrong field is not stored either."""
    Client().post("/admin/login/", {"username": "swordfish", "password": "hunter2-hunter2", "code": "918273"})

    reported = AccessAttempt.objects.get().post_data + caplog.text
    assert "login failure" in reported
    assert [typed for typed in ("swordfish", "hunter2", "918273") if typed in reported] == []


def test_beat_schedules_the_purge() -> None:
    scheduled = {entry["task"] for entry in settings.CELERY_BEAT_SCHEDULE.values()}
    assert tasks.purge_visits.name in scheduled
