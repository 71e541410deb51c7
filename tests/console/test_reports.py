"""Reports in the browser: the whole way from the database to the page, and requesting a night again."""

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.core import mail
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone
from playwright.sync_api import Page, expect

from spark_reports import tasks
from spark_reports.console.formats import count, percent
from spark_reports.console.panels import PAGES
from spark_reports.models import PublishedDay, RequestedRun
from spark_reports.nights.closing import last_closed_day
from spark_reports.running.parts import missing
from spark_reports.tests import rows
from spark_reports.tests.history import History
from spark_reports.tests.quick import write_quick_conf
from tests.budget import first_everyday
from tests.console.nights import make_busy_night
from tests.console.test_browser import show
from tests.console.test_walk import confirm

pytestmark = pytest.mark.django_db(transaction=True)
DAY = date(2026, 11, 20)
ROOT = "/admin/reports/"


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


def sql(query: str, day: date) -> Any:
    since = datetime.combine(day, time(), UTC)
    with connection.cursor() as cursor:
        cursor.execute(query, [since, since + timedelta(days=1)])
        return cursor.fetchone()


FAILED = """SELECT count(*), count(*) FILTER (WHERE outcome <> 'delivered') FROM notifications_attempt
    WHERE started_at >= %s AND started_at < %s"""
KINDS = """SELECT count(*) FILTER (WHERE kind = 'unregistered'), count(*) FILTER (WHERE kind = 'token_died'),
    count(*) FILTER (WHERE kind = 'expired') FROM registrations_registrationevent WHERE at >= %s AND at < %s"""


@pytest.mark.nightly
def test_the_events_of_yesterday_are_on_the_page_this_morning(
    operator: Page, lake: None, old_server: None, settings: LazySettings, require_or_skip: Callable[[bool, str], None]
) -> None:
    """The nightly task starts export, Spark, import, page and mail. Plain SQL gives the expected figures."""
    require_or_skip(not missing(), missing())
    settings.REPORT_RECIPIENTS = ["ann@example.org"]
    settings.REPORTS_HOUR = 0  # the night is due at each hour at which the suite may run
    day = last_closed_day(timezone.now())
    for published in (1, 2, 3):
        rows.publish(day - timedelta(days=published))
    history = History(seed=8)
    history.add_day(day)

    run_tasks_at_once(tasks.make_reports)

    assert PublishedDay.objects.filter(day=day).exists()
    total, failed = sql(FAILED, day)
    operator.goto(f"{ROOT}error-rates/?from={day}&to={day}&stage=dispatch")
    row = operator.locator("table.figures:not(.lineage *)").last.locator("tbody tr")
    figures = [row.nth(n).locator("td").nth(5).inner_text() for n in range(row.count())]
    assert sum(int(figure.replace(",", "")) for figure in figures) == total
    operator.goto(ROOT)
    stages = operator.get_by_role("region", name="Failures by stage")
    stage = stages.locator("tr", has=operator.get_by_role("rowheader", name="dispatch", exact=True))
    expect(stage).to_contain_text(f"{count(total)}{count(failed)}{percent(failed / total)}")
    unregistered, died, expired = (count(number) for number in sql(KINDS, day))
    tokens = operator.locator("tr", has=operator.get_by_role("rowheader", name="tokens", exact=True)).locator("td")
    assert [tokens.nth(n).inner_text() for n in (3, 4, 5)] == [unregistered, died, expired]
    show(operator, "reports-end-to-end")
    assert [message.to for message in mail.outbox] == [["ann@example.org"]]


def run_tasks_at_once(task: Any) -> None:
    """Run tasks at once, including those that they enqueue."""
    before = task.app.conf.task_always_eager
    task.app.conf.task_always_eager = True
    try:
        task.delay()
    finally:
        task.app.conf.task_always_eager = before


CUT_CAPTIONS = """[...document.querySelectorAll('.table-scroll caption')].filter(
    caption => caption.getBoundingClientRect().right > caption.closest('div').getBoundingClientRect().right + 1
).map(caption => caption.innerText)"""
# Sizes in pixels of the screen, as charts have units of their own.
LETTER_SIZES = """[...document.querySelectorAll('svg.plot text')].map(
    text => parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a)"""


@pytest.mark.parametrize(("look", "size"), first_everyday(("phone", 390), ("light", 1400), ("dark", 1400)))
def test_every_report_is_reached_from_the_menu_in_light_dark_and_on_a_phone(
    operator: Page, look: str, size: int
) -> None:
    for days_ago in range(8):
        make_busy_night(DAY - timedelta(days=days_ago), days_ago)
    rows.make_check(DAY)
    operator.emulate_media(color_scheme="dark" if look == "dark" else "light")
    operator.set_viewport_size({"width": size, "height": 900})
    operator.goto(ROOT)
    expect(operator.locator(".verdict")).to_contain_text("outside of its usual band")
    show(operator, f"reports-night-{look}")
    for slug, page in PAGES.items():
        operator.goto(f"{ROOT}{slug}/")
        expect(operator.locator("svg.plot").first).to_be_visible()
        expect(operator.locator("h1").first).to_contain_text(page.title)
        assert operator.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert operator.evaluate(CUT_CAPTIONS) == []
        assert min(operator.evaluate(LETTER_SIZES)) > 9
        show(operator, f"reports-{slug}-{look}")


def test_a_night_is_asked_for_again_with_a_reason(operator: Page) -> None:
    log = "26/11/20 02:00:01 WARN TaskSetManager: Lost task 0.0\njava.io.IOException: " + "/a-long-folder" * 12
    rows.make_run(DAY, state="failed", error="Spark failed: no room on the disk", log_excerpt=log)
    operator.goto("/admin/spark_reports/reportrun/")
    day = operator.locator("#result_list tbody th a").first
    assert day.evaluate("link => link.querySelector('span').getClientRects().length") == 1  # not broken at its hyphens
    show(operator, "reports-runs")
    day.click()
    expect(operator.locator("#content")).to_contain_text("java.io.IOException")
    for width in (390, 1400):
        operator.set_viewport_size({"width": width, "height": 900})
        operator.wait_for_function(  # the layout follows a moment after the resize
            "() => { const log = document.querySelector('.spark-log'); return log.scrollWidth <= log.clientWidth }"
        )
        show(operator, f"reports-run-{width}")
    operator.get_by_role("link", name="Run again").click()
    show(operator, "reports-run-again")
    confirm(operator, "Make reports", "the disk was cleared")

    expect(operator.locator("#main")).to_contain_text("Requested the reports of 2026-11-20")
    request = RequestedRun.objects.get()
    assert (request.from_day, request.to_day) == (DAY, DAY)
    operator.goto(ROOT)
    expect(operator.locator(".reports")).to_contain_text("Requested and not finished yet")
    show(operator, "reports-waiting")
