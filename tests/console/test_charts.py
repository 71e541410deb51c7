"""Charts in a browser: what is drawn is what the table has, with its events, in both themes; and without scripts."""

from datetime import timedelta
from http.server import ThreadingHTTPServer

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import User
from django.utils import timezone
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from pushserver.console.models import Incident, ServerStart
from spark_reports.nights.nights import last_closed_day
from tests.console.browsing import log_in
from tests.rig import reports, rows

pytestmark = pytest.mark.django_db(transaction=True)
# Of each chart: its lines as they are drawn, those of its table, the texts of its axis, and its colours.
DRAWN = """[...document.querySelectorAll('.plot canvas')].map((canvas) => {
  const chart = Chart.getChart(canvas)
  const cells = [...canvas.parentElement.querySelectorAll('td[data-value]')]
  const scale = chart.scales[canvas.dataset.kind === 'bar' ? 'x' : 'y']
  return {
    drawn: chart.data.datasets.flatMap((line) => line.data).map((value) => String(value ?? '')).sort(),
    table: cells.map(({ dataset: { value } }) => value && String(+value)).sort(),
    axis: scale.ticks.map((tick) => tick.label),
    dashes: chart.data.datasets.map((line) => line.borderDash.join()),
    colours: chart.data.datasets.map((line) => line.borderColor),
  }
})"""
# The texts of the first chart under the pointer.
UNDER_POINTER = """() => {
  const tooltip = Chart.getChart(document.querySelector('.plot canvas')).tooltip
  return tooltip.opacity ? [...tooltip.title, ...tooltip.body.map((part) => part.lines).flat(), ...tooltip.footer] : []
}"""


def make_nights() -> None:
    day = last_closed_day(timezone.now())
    for days_ago in range(15):
        reports.make_busy_night(day - timedelta(days=days_ago), days_ago)


def test_every_chart_of_the_reports_draws_its_table_with_an_axis_of_different_texts(operator: Page) -> None:
    make_nights()
    for slug in ("error-rates", "token-churn", "token-lifetime", "latency", "failure-signatures", "load-profile"):
        operator.goto(f"/admin/reports/{slug}/")
        charts = operator.evaluate(DRAWN)
        assert charts
        for chart in charts:
            assert chart["drawn"] == chart["table"]
            assert len(chart["axis"]) == len({*chart["axis"]}) > 1
            assert len(chart["dashes"]) == len({*chart["dashes"]})


def test_the_first_page_shows_the_figures_and_events_under_the_pointer_also_after_a_refresh(
    alive: ThreadingHTTPServer, operator: Page, eager: None
) -> None:
    now = timezone.now()
    rows.make(
        Incident,
        indicator="broker",
        name="Redis",
        state="act now",
        sentence="away",
        began_at=now - timedelta(minutes=50),
    )
    ServerStart.objects.create(version="7.1", started_at=now - timedelta(minutes=30))
    LogEntry.objects.create(user=User.objects.get(), action_flag=CHANGE, object_repr="x", change_message="Paused.")
    operator.goto("/admin/")
    place = operator.locator(".plot canvas").first
    place.scroll_into_view_if_needed()
    place.hover()
    for _ in "12":
        operator.wait_for_function(f"({UNDER_POINTER})().length")
        texts = operator.evaluate(UNDER_POINTER)
        assert [text.partition(" ")[0] for text in texts[1:3]] == ["delivered:", "failed:"]
        assert any("Redis: act now" in text for text in texts)
        with operator.expect_response("**/admin/"):
            pass
    listed = operator.locator(".plot").first.locator("li").all_text_contents()
    assert [text.partition(" ")[2] for text in listed] == [
        "Redis: act now",
        "a worker of version 7.1 started",
        "operator: Paused.",
    ]


def test_the_log_of_changes_is_not_shown_to_people_who_may_not_read_it(
    alive: ThreadingHTTPServer, visitor: Page
) -> None:
    log_in(visitor, "support")
    LogEntry.objects.create(user=User.objects.get(), action_flag=CHANGE, object_repr="x", change_message="Paused.")
    visitor.goto("/admin/")
    assert "Paused." not in visitor.content()


def test_the_dark_theme_has_colours_of_its_own(operator: Page) -> None:
    make_nights()
    operator.goto("/admin/reports/latency/")
    light = operator.evaluate(DRAWN)[0]["colours"]
    operator.evaluate("document.documentElement.classList.add('dark')")
    operator.wait_for_function(
        "(light) => Chart.getChart(document.querySelector('.plot canvas')).data.datasets[0].borderColor !== light",
        arg=light[0],
    )
    assert not {*light} & {*operator.evaluate(DRAWN)[0]["colours"]}


def test_without_scripts_the_table_is_shown(chromium: Browser, live_server: LiveServer, operator: Page) -> None:
    make_nights()
    context = chromium.new_context(base_url=live_server.url, java_script_enabled=False)
    context.add_cookies(operator.context.cookies())
    page = context.new_page()
    page.goto("/admin/reports/latency/")
    table = page.locator(".plot table").first
    expect(table).to_be_visible()
    expect(table.locator("caption")).to_have_text("99th percentile by day and stage")
    context.close()
