"""Reports of a night: the whole way from the events of a day to the page and the mail of the next morning."""

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.core import mail
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client
from django.utils import timezone

from spark_reports import tasks
from spark_reports.console.formats import count, percent
from spark_reports.nights.closing import last_closed_day
from spark_reports.running.parts import missing
from spark_reports.tests.history import History
from spark_reports.tests.quick import write_quick_conf
from tests.console.test_find import words_of
from tests.rig import reports

FAILED = """SELECT count(*), count(*) FILTER (WHERE outcome <> 'delivered') FROM notifications_attempt
    WHERE started_at >= %s AND started_at < %s"""


@pytest.fixture
def lake(tmp_path: Path, settings: LazySettings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.REPORTS_LAKE, settings.SPARK_MASTER = str(tmp_path / "lake"), "local[2]"
    settings.SPARK_DRIVER_MEMORY = "1g"
    monkeypatch.setenv("SPARK_CONF_DIR", str(write_quick_conf(tmp_path / "spark-conf")))


@pytest.fixture
def old_server() -> Iterator[None]:
    """Make the server appear installed some days ago, so that the reports of last night are due."""
    ours = MigrationRecorder.Migration.objects.filter(app="spark_reports")
    before = ours.first().applied
    ours.update(applied=timezone.now() - timedelta(days=4))
    yield
    ours.update(applied=before)


def failed_on(day: date) -> tuple[int, int]:
    """Return how many attempts there were, and how many failed, by plain SQL."""
    since = datetime.combine(day, time(), UTC)
    with connection.cursor() as cursor:
        cursor.execute(FAILED, [since, since + timedelta(days=1)])
        total, failed = cursor.fetchone()
    return total, failed


@pytest.mark.nightly
@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("lake", "old_server")
def test_the_events_of_yesterday_are_on_the_page_this_morning_and_in_the_mail(
    admin_client: Client, settings: LazySettings, require_or_skip: Callable[[bool, str], None]
) -> None:
    require_or_skip(not missing(), missing())
    settings.REPORT_RECIPIENTS = ["ann@example.org"]
    settings.REPORTS_HOUR = 0  # the night is due at each hour at which the suite may run
    day = last_closed_day(timezone.now())
    for published in (1, 2, 3):
        reports.publish(day - timedelta(days=published))
    History(seed=8).add_day(day)

    tasks.make_reports()
    tasks.watch_reports()

    total, failed = failed_on(day)
    shown = f"dispatch {count(total)} {count(failed)} {percent(failed / total)}"
    assert shown in words_of(admin_client, "/admin/reports/")
    assert [message.to for message in mail.outbox] == [["ann@example.org"]]
