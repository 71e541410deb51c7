"""Nights: owed days, pauses after failures, alarms, requests of operators, and mails."""

import importlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from time import sleep
from unittest.mock import Mock

import pytest
from celery import current_app
from django.contrib.admin.models import LogEntry
from django.core import mail
from django.core.mail.backends.locmem import EmailBackend
from django.db import connection, transaction
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import QuerySet
from django.utils import timezone

import spark_reports.management.commands
from kit.processes.tasks import WORKER_STOP, TaskFailed
from pushserver.console.health import asking
from pushserver.console.health.snapshot import take_snapshot
from pushserver.console.health.verdicts import State as IndicatorState
from pushserver.console.health.verdicts import Verdict
from pushserver.console.reports.mail import message_of
from pushserver.console.tasks import watch_reports
from spark_reports import tasks
from spark_reports.export.queries import QUERIES
from spark_reports.models import PublishedDay, ReportRun, RequestedRun
from spark_reports.nights import nights, on_demand
from spark_reports.nights.nights import last_closed_day
from spark_reports.nights.status import LACK, NO_RUN, SAVED, State, status
from spark_reports.running import parts, runs
from spark_reports.running.loading import load
from spark_reports.running.spark import Submission
from spark_reports.tests.test_faults import another_run, facts_of, results_of
from spark_reports.tests.test_pages import log_in
from tests.rig import reports
from tests.rig.logs import capture_logs

pytestmark = pytest.mark.django_db
DAY = date(2026, 11, 20)
REQUEST = f"/admin/reports/run/?from={DAY - timedelta(days=1)}&to={DAY}"
SENT = {"why": "the lake was repaired", "confirmed": "1"}


def at(hour: int, minute: int = 0, day: int = 21) -> datetime:
    return datetime(2026, 11, day, hour, minute, tzinfo=UTC)


def days(*numbers: int) -> list[date]:
    return [date(2026, 11, number) for number in numbers]


@pytest.fixture(autouse=True)
def nightly(settings):
    settings.REPORTS_NIGHTLY, settings.REPORTS_HOUR = True, 1
    install(at(12, day=18))


def install(when: datetime) -> None:
    MigrationRecorder.Migration.objects.filter(app="spark_reports").update(applied=when)


def fail(day: date, finished_at: datetime) -> ReportRun:
    return reports.make_run(day, state="failed", finished_at=finished_at, error="Spark failed: x")


# Owed days ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("hour", "now", "installed", "owed"),
    [
        (1, at(0, 30), at(12, day=18), days(18, 19)),  # before the hour
        (1, at(1), at(12, day=18), days(18, 19, 20)),
        (1, at(23, 59), at(12, day=18), days(18, 19, 20)),
        (0, at(0, 9), at(12, day=18), days(18, 19)),  # never before the day is closed
        (0, at(0, 10), at(12, day=18), days(18, 19, 20)),
        (1, at(2), at(15, day=20), days(20)),  # no day from before the installation
        (1, at(16), at(15), []),
        (1, at(2), at(12) - timedelta(days=400), days(*range(9, 21))),  # as far back as the database has pushes
    ],
)
def test_a_night_is_owed_from_its_hour_on(settings, hour, now, installed, owed):
    settings.REPORTS_HOUR, settings.NOTIFICATION_RETENTION_DAYS = hour, 12
    install(installed)
    assert nights.owed_days(now) == owed


def test_stale_reports_are_owed_again_and_shown_meanwhile():
    """The facts of the 19th are exported again after all reports were made."""
    for day in days(18, 19, 20):
        reports.publish(day, at=at(2))
    assert nights.owed_days(at(2)) == []
    PublishedDay.objects.filter(day__in=days(19)).update(renewed_at=at(3))
    assert nights.owed_days(at(4)) == days(19, 20)
    assert nights.overdue_days(at(9)) == []
    found = status(at(9))
    assert found.state == State.PRESENT
    assert found.words == "The reports of 2026-11-20 are here. Those of 2 days are stale, and are made again."


def test_made_up_reports_do_not_count_as_nights():
    """Owed days stay owed, and a made-up run that failed causes no pause."""
    reports.publish(DAY, is_made_up=True)
    reports.make_run(date(2026, 11, 18), state="failed", finished_at=at(2))
    ReportRun.objects.update(is_made_up=True)
    assert nights.owed_days(at(2)) == days(18, 19, 20)
    assert nights.next_day(at(2)) == date(2026, 11, 18)
    assert status(at(1)).newest_day is None
    assert NO_RUN in status(at(9)).words


@pytest.mark.parametrize(("failures", "minutes"), [(1, 5), (2, 10), (3, 20), (4, 40), (9, 360), (60, 360)])
def test_a_day_that_failed_pauses_longer_each_time(failures, minutes):
    for day in days(18, 19):
        reports.publish(day)
    for _ in range(failures):
        fail(DAY, at(2))

    assert nights.next_day(at(2) + timedelta(minutes=minutes, seconds=-1)) is None
    assert nights.next_day(at(2) + timedelta(minutes=minutes)) == DAY


def test_a_day_that_fails_does_not_hold_up_the_next():
    fail(date(2026, 11, 18), at(2))
    assert nights.next_day(at(2, 1)) == date(2026, 11, 19)


# Status ---------------------------------------------------------------------------------------------------------------
def test_a_missing_night_is_an_alarm_after_some_time_and_says_why_the_last_run_failed():
    for day in days(18, 19):
        reports.publish(day)
    assert status(at(2, 59)).state == State.PRESENT
    found = status(at(3))
    assert found.is_alarm
    assert "2026-11-20 are missing" in found.words
    assert 'worker for the queue "reports"' in found.words
    fail(DAY, at(2))
    assert "Spark failed: x" in status(at(9)).words
    reports.make_run(DAY, state="running", step="compute", finished_at=None)
    assert "still under way (compute)" in status(at(9)).words


def test_the_status_with_last_nights_reports_counts_their_flags():
    for day in days(18, 19):
        reports.publish(day)
    reports.make_night(DAY)
    reports.make_check(DAY)
    found = status(at(9))
    assert (found.state, found.newest_day, found.anomalies, found.findings) == (State.PRESENT, DAY, 1, 1)


def test_a_new_server_waits_for_its_first_night_and_shows_what_its_worker_lacks(no_java, settings):
    install(at(12))
    assert status(at(13)).words == "The first reports come after 2026-11-22 01:00 UTC."
    install(timezone.now())
    tasks.make_reports()
    found = status(timezone.now())
    assert (found.state, found.words.split(":")[0]) == (State.OFF, "Java 17 or 21 is missing")
    LACK.save("")
    assert status(timezone.now()).state == State.WAITING
    settings.REPORTS_NIGHTLY = False  # raises no alarm
    assert status(at(9)).state == State.OFF


def test_indicators_show_a_missing_night_and_that_one_lacks_history_after_its_lake_was_lost(admin_client):
    install(timezone.now() - timedelta(days=30))
    watch_reports()
    assert indicator("reports").state == IndicatorState.YELLOW
    SAVED.save(status(at(9)))
    assert "2026-11-20 are missing" in indicator("reports").sentence

    install(at(12, day=18))
    for day in days(18, 19, 20):
        reports.publish(day)
    reports.make_check(DAY, check_name="history", subject="error_rates", expected=2, found=0)
    SAVED.save(status(at(9)))
    assert indicator("reports").state == IndicatorState.GREEN
    found = indicator("anomalies")
    assert (found.state, found.sentence) == (IndicatorState.YELLOW, "1 finding about the data of the newest night")
    page = admin_client.get(f"/admin/reports/?day={DAY}").content.decode()
    assert "error_rates: it rests on fewer earlier days than there could be (expected 2, found 0)" in page


def indicator(kind: str) -> Verdict:
    asking.RECENT.forget()
    [found] = [each for each in take_snapshot(now=timezone.now()).indicators if each.id == kind]
    return found


# Making reports -------------------------------------------------------------------------------------------------------
def test_what_spark_needs_is_named_in_one_line(monkeypatch):
    """Containers often run as a number. Hadoop's part of Spark then fails on an empty name, deep in Java."""
    monkeypatch.setattr(parts.os, "geteuid", lambda: 987_654)
    assert parts.missing().startswith("Account 987654 has no name, and Spark needs one: no reports.")
    assert "push:x:987654:" in parts.missing()
    monkeypatch.setattr(parts, "PACKAGES", {"no_such_package": "PySpark"})
    assert parts.missing() == "PySpark is not installed: no reports. `make install-reports` brings them, and Java."


def test_without_java_the_task_records_one_failed_run_for_all_days(no_java):
    install(timezone.now() - timedelta(days=30))

    tasks.make_reports()
    tasks.make_reports()

    failed = ReportRun.objects.get()
    last = last_closed_day(timezone.now())
    assert failed.to_day in {last, last - timedelta(days=1)}
    assert (failed.to_day - failed.from_day).days > 20
    assert failed.error.startswith("Java 17 or 21 is missing")


def test_with_nightly_reports_off_the_task_makes_only_requested_ones(settings, no_java):
    settings.REPORTS_NIGHTLY = False
    tasks.make_reports()
    assert not ReportRun.objects.exists()

    on_demand.ask(DAY, DAY, replace=False, now=timezone.now())
    tasks.make_reports()
    assert (ReportRun.objects.get().to_day, RequestedRun.objects.count()) == (DAY, 0)


@pytest.fixture
def request_row(lake_url, java):
    on_demand.ask(DAY, DAY, replace=False, now=timezone.now())
    return RequestedRun.objects.get()


@pytest.mark.django_db(transaction=True)
def test_a_request_waits_for_other_reports_and_is_over_when_it_fails_unexpectedly(request_row, monkeypatch):
    with another_run():
        tasks.make_reports()
    assert (RequestedRun.objects.count(), ReportRun.objects.count()) == (1, 0)

    monkeypatch.setitem(QUERIES, "replies", lambda _day: "SELECT 1/0")
    with pytest.raises(TaskFailed, match="DivisionByZero"):
        tasks.make_reports()
    assert (ReportRun.objects.get().error, RequestedRun.objects.count()) == ("DivisionByZero", 0)


@pytest.mark.django_db(transaction=True)
def test_a_worker_that_is_stopped_leaves_the_request_to_the_next(request_row, monkeypatch):
    def asked_to_end(submission: Submission) -> str:
        WORKER_STOP.set()
        submission.on_line("")
        return ""

    monkeypatch.setattr(runs, "submit", asked_to_end)
    WORKER_STOP.prepare()
    try:
        tasks.make_reports()
    finally:
        WORKER_STOP.prepare()

    assert RequestedRun.objects.get() == request_row
    assert ReportRun.objects.get().error.startswith("Its worker was stopped")


def test_a_request_that_kills_its_process_three_times_is_given_up():
    on_demand.ask(*days(19, 20), replace=False, now=at(2))
    reports.make_run(DAY, state="failed", error=on_demand.KILLED, started_at=at(1))  # before the request
    reports.make_run(DAY, state="failed", error=on_demand.KILLED, started_at=at(3))
    reports.make_run(DAY, state="running", started_at=at(4))  # not yet recorded as killed
    assert on_demand.next_request() is not None

    ReportRun.objects.filter(state="running").update(state="failed", error=on_demand.KILLED)  # as the third one does
    reports.make_run(DAY, state="running", started_at=at(5))
    assert on_demand.next_request() is None
    assert not RequestedRun.objects.exists()


# Requests -------------------------------------------------------------------------------------------------------------
def test_a_request_of_an_operator_is_logged_with_its_reason(client, django_capture_on_commit_callbacks, monkeypatch):
    sent: list[str] = []
    monkeypatch.setattr(current_app, "send_task", sent.append)
    log_in(client, "operator")
    reports.publish(DAY)
    page = client.get(REQUEST).content.decode()
    assert "The reports of 2 days are computed" in page
    assert "1 of these days have reports" in page
    assert not RequestedRun.objects.exists()

    with django_capture_on_commit_callbacks(execute=True):
        answer = client.post(REQUEST, SENT | {"replace": "on"}, follow=True)

    assert "Requested the reports of 2026-11-19 to 2026-11-20." in answer.content.decode()
    assert list(RequestedRun.objects.values_list("from_day", "to_day", "replace")) == [(*days(19, 20), True)]
    entries = LogEntry.objects.order_by("object_id").values_list("user__username", "object_id", "change_message")
    assert [(user, day) for user, day, _ in entries] == [("operator", "2026-11-19"), ("operator", "2026-11-20")]
    assert all("Why: the lake was repaired" in message for *_, message in entries)
    assert sent == [tasks.make_reports.name]


def test_a_second_request_changes_nothing_and_one_needs_a_reason_without_secrets(admin_client):
    for why in ("", "for zQ3shabcdefghijklmnopqrstuvwxyz0123456789"):
        assert admin_client.post(REQUEST, SENT | {"why": why}).status_code == 200
    assert not RequestedRun.objects.exists()
    admin_client.post(REQUEST, SENT)
    again = admin_client.post(REQUEST, SENT, follow=True)
    assert "Already requested" in again.content.decode()
    assert (RequestedRun.objects.count(), LogEntry.objects.count()) == (1, 2)


@pytest.mark.parametrize(
    "query",
    [
        *("", "from=x", "to=2026-11-20", "from=2026-11-20&to=2026-11-01", "from=2999-01-01", "from=9999-12-31"),
        "from=2026-01-01&to=2026-11-01",
    ],
)
def test_a_range_that_cannot_be_made_is_not_found(admin_client, query):
    assert admin_client.get(f"/admin/reports/run/?{query}").status_code == 404


# Mail -----------------------------------------------------------------------------------------------------------------
def test_a_night_is_mailed_as_text_and_as_html_that_fetches_nothing(settings):
    settings.REPORT_RECIPIENTS = ["ann@example.org", "bob@example.org"]
    reports.make_night(DAY)

    message = message_of(PublishedDay.objects.get())

    assert message.to == ["ann@example.org", "bob@example.org"]
    failed = "30.0 % of pushes failed, 6 times as many as usual: unregistered of im.status.ethereum."
    assert message.subject == f"Push server, 2026-11-20: {failed}"
    [(html, kind)] = message.alternatives
    assert kind == "text/html"
    for body in (message.body, html):
        for figure in (
            "30.0 %",
            "1,015",
            "87 ms",
            "=HYPERLINK(x)",
            "Latency: Half of 321 requests were answered within",
        ):
            assert figure in body
    assert not [word for word in ("src=", "href=", "url(", "<script", "@import") if word in html]


def test_nights_of_a_week_are_owed_until_they_are_mailed(settings, monkeypatch):
    today = timezone.now().date()
    for days_ago, mailed_at in ((8, None), (3, None), (2, None), (1, timezone.now())):
        reports.publish(today - timedelta(days=days_ago), mailed_at=mailed_at)
    install(timezone.now() - timedelta(hours=1))

    def mailed() -> list[str]:
        watch_reports()
        return [message.subject.partition(":")[0].removeprefix("Push server, ") for message in mail.outbox]

    assert mailed() == []  # there are no recipients
    settings.REPORT_RECIPIENTS = ["ann@example.org"]
    usual, settings.EMAIL_BACKEND = settings.EMAIL_BACKEND, "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_PORT = 1
    with capture_logs() as logs:
        assert mailed() == []
    assert [line["event"] for line in logs].count("night_not_mailed") == 1

    settings.EMAIL_BACKEND = usual
    with monkeypatch.context() as killed:
        killed.setattr(QuerySet, "update", Mock(side_effect=SystemExit))  # after the first mail was sent
        with pytest.raises(SystemExit):
            mailed()
    first, second = (str(today - timedelta(days=days_ago)) for days_ago in (3, 2))
    assert mailed() == [first, first, second]
    assert mailed() == [first, first, second]


class SlowServer(EmailBackend):
    """A mail server that takes longer than PostgreSQL waits for the process."""

    def send_messages(self, messages):
        sleep(0.5)
        return super().send_messages(messages)


@pytest.mark.django_db(transaction=True)
def test_a_slow_mail_server_gets_a_mail_once(settings):
    settings.REPORT_RECIPIENTS, settings.EMAIL_BACKEND = ["ann@example.org"], f"{__name__}.SlowServer"
    reports.publish(timezone.now().date() - timedelta(days=1), mailed_at=None)
    with connection.cursor() as cursor:
        cursor.execute("SET idle_in_transaction_session_timeout = '100ms'")
    watch_reports()
    watch_reports()
    connection.close()  # and with it the setting
    assert len(mail.outbox) == 1


@pytest.mark.parametrize(
    ("before", "recipients", "is_owed"),
    [
        ({}, ["ann@example.org"], True),
        ({}, [], False),
        ({"mailed_at": None}, [], True),  # made again before it was mailed
        ({"mailed_at": datetime(2026, 11, 21, 4, tzinfo=UTC)}, ["ann@example.org"], False),  # made again
        ({"mailed_at": datetime(2026, 11, 21, 4, tzinfo=UTC), "is_made_up": True}, ["ann@example.org"], True),
    ],
)
def test_the_first_reports_of_a_day_are_to_be_mailed(settings, before, recipients, is_owed):
    settings.REPORT_RECIPIENTS = recipients
    if before:
        reports.publish(DAY, **before)
    now = at(5)
    run = ReportRun.objects.create(from_day=DAY, to_day=DAY, started_at=now, seen_at=now)
    load(results_of(DAY), facts_of(DAY), run, now=now)
    assert (PublishedDay.objects.get().mailed_at is None) == is_owed


@pytest.mark.django_db(transaction=True)
def test_a_day_that_is_made_again_while_it_is_mailed_is_not_mailed_twice():
    reports.publish(DAY, mailed_at=None)
    run, mailed_at = reports.make_run(DAY), at(6)

    def make_again() -> None:
        load(results_of(DAY), facts_of(DAY), run, now=at(5))
        connection.close()

    with ThreadPoolExecutor(1) as other:
        with transaction.atomic():
            PublishedDay.objects.select_for_update().get()  # as long as its mail is sent
            ended = other.submit(make_again)
            while not (_waiting() or ended.done()):
                sleep(0.05)
            PublishedDay.objects.update(mailed_at=mailed_at)
        ended.result()
    assert PublishedDay.objects.values_list("mailed_at", "run").get() == (mailed_at, run.pk)


def _waiting() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])


def test_commands_without_pyarrow_say_so_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SystemExit, match=r"PyArrow is not installed: no reports. `make install-reports` brings them"):
        importlib.reload(spark_reports.management.commands)


def test_everything_else_works_without_the_packages_of_reports():
    """`migrate` imports the management package of every app, and the server loads all of its modules."""
    script = """
import os
import subprocess
import sys
sys.modules.update(dict.fromkeys(("pyarrow", "pyspark")))
import django
django.setup()
import importlib
from django.apps import apps
from django.core.management import call_command
from django.utils.module_loading import module_has_submodule
for app in apps.get_app_configs():
    for name in ("management", "tasks"):
        if module_has_submodule(app.module, name):
            importlib.import_module(f"{app.name}.{name}")
import pushserver.urls, pushserver.celery
call_command("check")
"""
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "pushserver.settings"}
    ended = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
