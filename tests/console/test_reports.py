"""Reports as people see them: the whole way from the database to the browser, and having a night made again."""

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
from spark_reports.closing import last_closed_day
from spark_reports.console.formats import count, percent
from spark_reports.console.panels import PAGES
from spark_reports.models import PublishedDay, RequestedRun
from spark_reports.parts import missing
from spark_reports.tests import rows
from spark_reports.tests.history import History
from tests.console.test_browser import show

pytestmark = pytest.mark.django_db(transaction=True)
DAY = date(2026, 11, 20)
ROOT = "/admin/reports/"


@pytest.fixture
def lake(tmp_path: Path, settings: LazySettings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.REPORTS_LAKE, settings.SPARK_MASTER = str(tmp_path / "lake"), "local[2]"
    settings.SPARK_DRIVER_MEMORY = "1g"
    folder = tmp_path / "spark-conf"
    folder.mkdir()
    quick = "spark.driver.extraJavaOptions -XX:TieredStopAtLevel=1\nspark.sql.codegen.wholeStage false\n"
    (folder / "spark-defaults.conf").write_text(quick)
    monkeypatch.setenv("SPARK_CONF_DIR", str(folder))


@pytest.fixture
def old_server() -> Iterator[None]:
    """Installed a month ago, so that last night is owed."""
    ours = MigrationRecorder.Migration.objects.filter(app="spark_reports")
    before = ours.first().applied
    ours.update(applied=timezone.now() - timedelta(days=30))
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


@pytest.mark.slow
def test_what_happened_yesterday_is_on_the_page_this_morning(
    operator: Page, lake: None, old_server: None, settings: LazySettings, require_or_skip: Callable[[bool, str], None]
) -> None:
    """Export, Spark, PostgreSQL, page and mail, started by the nightly task; the answers come from plain SQL."""
    require_or_skip(not missing(), missing())
    settings.REPORT_RECIPIENTS = ["ann@example.org"]
    day = last_closed_day(timezone.now())
    for published in (1, 2, 3):
        rows.publish(day - timedelta(days=published))
    history = History(seed=8)
    history.add_day(day)

    run_tasks_at_once(tasks.make_reports)

    assert PublishedDay.objects.filter(day=day).exists()
    total, failed = sql(FAILED, day)
    operator.goto(f"{ROOT}error-rates/?from={day}&to={day}&stage=dispatch")
    row = operator.locator("table.figures").last.locator("tbody tr")
    figures = [row.nth(n).locator("td").nth(4).inner_text() for n in range(row.count())]
    assert sum(int(figure.replace(",", "")) for figure in figures) == total
    operator.goto(ROOT)
    stage = operator.locator("tr", has=operator.get_by_role("rowheader", name="dispatch", exact=True))
    expect(stage).to_contain_text(f"{count(total)}{count(failed)}{percent(failed / total)}")
    unregistered, died, expired = (count(number) for number in sql(KINDS, day))
    tokens = operator.locator("tr", has=operator.get_by_role("rowheader", name="tokens", exact=True)).locator("td")
    assert [tokens.nth(n).inner_text() for n in (3, 4, 5)] == [unregistered, died, expired]
    show(operator, "reports-end-to-end")
    assert [message.to for message in mail.outbox] == [["ann@example.org"]]


def run_tasks_at_once(task: Any) -> None:
    """Those that it enqueues, too."""
    before = task.app.conf.task_always_eager
    task.app.conf.task_always_eager = True
    try:
        task.delay()
    finally:
        task.app.conf.task_always_eager = before


def test_every_report_is_reached_from_the_menu_in_light_dark_and_on_a_phone(operator: Page) -> None:
    for days_ago in range(20):
        make_busy_night(DAY - timedelta(days=days_ago), days_ago)
    rows.make_check(DAY)
    operator.goto("/admin/")
    for look, size in (("light", 1400), ("dark", 1400), ("phone", 390)):
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
            show(operator, f"reports-{slug}-{look}")


def test_a_night_is_asked_for_again_with_a_reason(operator: Page) -> None:
    rows.make_run(DAY, state="failed", error="Spark failed: no room on the disk", log_excerpt="java.io.IOException")
    operator.goto("/admin/spark_reports/reportrun/")
    show(operator, "reports-runs")
    operator.locator("#result_list tbody th a").first.click()
    expect(operator.locator("#content")).to_contain_text("java.io.IOException")
    show(operator, "reports-run")
    operator.get_by_role("link", name="Run again").click()
    show(operator, "reports-run-again")
    operator.get_by_label("Why").fill("the disk was cleared")
    operator.get_by_role("button", name="Make reports").click()

    expect(operator.locator("#main")).to_contain_text("Asked for the reports of 2026-11-20")
    request = RequestedRun.objects.get()
    assert (request.from_day, request.to_day) == (DAY, DAY)
    operator.goto(ROOT)
    expect(operator.locator(".reports")).to_contain_text("Asked for and not over yet")
    show(operator, "reports-waiting")


def make_busy_night(day: date, number: int) -> None:
    """Figures that go up and down, so that charts have something to draw."""
    rows.publish(day, events=1_200_000 + 7919 * number)
    for place, share in ((rows.IOS, 1.0), ({"platform": "android", "app_topic": ""}, 1.7)):
        for stage, rate in (("dispatch", 0.03), ("query", 0.002), ("registration", 0.08), ("reply", 0.01)):
            total = int(90_000 * share) + 311 * number
            failed = int(total * rate * (1 + number % 5 / 4))
            facts = {"stage": stage, "total": total, **place}
            rows.make_rate(day, events=failed, rate=failed / total, **facts)
            rows.make_rate(
                day,
                events=total - failed,
                rate=1 - failed / total,
                outcome="success",
                code="",
                is_failure=False,
                **facts,
            )
        rows.make_churn(day, new=30 + number % 7, died=8 + number % 4, **place)
        for weeks_ago in range(3):
            for age in range(1, 12 - 3 * weeks_ago):
                alive = {"survival": 0.98**age, "survival_low": 0.97**age, "survival_high": 0.99**age}
                cohort = date(2026, 8, 31) + timedelta(weeks=3 * weeks_ago)
                rows.make_lifetime(day, cohort=cohort, age_weeks=age, tokens=900 - weeks_ago, **alive, **place)
    for stage, median in (("answer", 80), ("reply", 120), ("gateway", 45), ("deliver", 260), ("decide", 6)):
        deadline = 0.98 + number % 3 / 200 if stage in {"answer", "reply"} else None
        rows.make_latency(
            day, stage=stage, p50_ms=median + number, p99_ms=6.0 * median + 9 * number, within_deadline=deadline
        )
    for rank, signature in enumerate(("unregistered", "connect: connection refused", "BadDeviceToken", "<id> is gone")):
        rows.make_signature(day, signature=signature, events=400 // (rank + 1), is_new=rank == 3)
    for role in ("sender", "recipient"):
        rows.make_load(day, role=role, top_share=0.2 + number % 4 / 50, retry_amplification=1.05 + number % 6 / 50)
        for rank in range(1, 6):
            rows.make_actor(day, role=role, rank=rank, actor=f"{rank:x}" * 16, notifications=500 // rank)
    rows.make_anomaly(day)
