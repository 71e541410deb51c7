"""Dashboard in a browser in which nobody clicks."""

import re
from collections.abc import Iterator

import pytest
from django.contrib.sessions.models import Session
from django.utils import timezone
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from notifications.models import Channel
from notifications.queues import halts
from tests import factories
from tests.budget import first_everyday
from tests.console.conftest import PASSWORD, fill_in_login
from tests.console.test_browser import show
from tests.console.test_dashboard import break_canary, make_old_notification, note_node, stop_worker, trip
from tests.console.test_look import axe

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("alive", "eager")]


@pytest.fixture
def operator(operator: Page) -> Page:
    operator.goto("/admin/")
    return operator


def mark(page: Page) -> None:
    """Set a mark that is gone when the page is loaded anew."""
    page.evaluate("window.stayed = true")


def stayed(page: Page) -> bool:
    return bool(page.evaluate("window.stayed === true"))


def test_a_system_that_works_is_green_and_turns_red_without_reloading(operator: Page) -> None:
    expect(operator.locator("#verdict")).to_have_text("Messages get through, and nothing needs you")
    expect(operator.locator("#indicator-channels")).to_contain_text("fine")
    show(operator, "dashboard-well")
    mark(operator)

    for app in Channel.objects.all():
        reason = "12 of 12 sends refused: bad_certificate"
        factories.make_halt("tripped", (app.token_type, app.app_topic), reason=reason)

    expect(operator.locator("#verdict")).to_contain_text("No pushes are sent: stopped by a breaker")
    expect(operator.locator("#indicator-channels")).to_contain_text("act now")
    expect(operator.locator("#announced")).to_contain_text("No pushes are sent")
    assert stayed(operator)

    operator.locator("#worst-channels").click()
    expect(operator.locator("#result_list tbody tr")).to_have_count(1)


def test_the_keyboard_focus_stays_on_a_link_when_the_page_refreshes(operator: Page) -> None:
    operator.locator("#go-inbox").focus()
    factories.make_envelope()

    expect(operator.locator("#indicator-inbox")).to_contain_text("1 waiting")
    expect(operator.locator("#go-inbox")).to_be_focused()


def test_a_link_that_is_pressed_while_the_page_refreshes_is_followed(operator: Page) -> None:
    operator.locator("#go-inbox").hover()
    operator.mouse.down()
    with operator.expect_response("**/admin/"):
        pass
    operator.evaluate("new Promise(requestAnimationFrame)")  # the answer is on the page by then
    operator.mouse.up()

    operator.wait_for_url("**/inboundenvelope/**")


def test_a_session_that_ends_leads_to_the_login_and_back(operator: Page) -> None:
    Session.objects.all().delete()

    operator.wait_for_url("**/admin/login/?next=/admin/")
    expect(operator.locator("#board")).to_have_count(0)
    fill_in_login(operator, "operator", PASSWORD)
    expect(operator.locator("#verdict")).to_be_visible()


@pytest.fixture
def onlooker(chromium: Browser, live_server: LiveServer, operator: Page) -> Iterator[Page]:
    """The same person in a window whose errors do not fail the test, because the server goes away."""
    context = chromium.new_context(base_url=live_server.url, storage_state=operator.context.storage_state())
    page = context.new_page()
    page.goto("/admin/")
    yield page
    context.close()


def test_the_page_reports_that_the_server_does_not_answer_and_that_it_is_back(onlooker: Page) -> None:
    as_of = onlooker.locator("#as-of").inner_text()
    expect(onlooker.locator("#stale")).to_be_hidden()

    onlooker.context.set_offline(True)
    expect(onlooker.locator("#stale")).to_be_visible()
    expect(onlooker.locator("#stale")).to_contain_text("Not refreshed since")
    assert onlooker.locator("#stale-since").inner_text() >= as_of[:8]  # the page may have refreshed once more
    show(onlooker, "dashboard-stale")

    onlooker.context.set_offline(False)
    expect(onlooker.locator("#stale")).to_be_hidden()


@pytest.mark.nightly
def test_the_page_reports_that_the_server_fails(onlooker: Page) -> None:
    onlooker.route("**/admin/", lambda route: route.fulfill(status=502, body="Bad Gateway"))

    expect(onlooker.locator("#stale")).to_be_visible()
    expect(onlooker.locator("#verdict")).to_be_visible()


@pytest.mark.parametrize(
    ("theme", "width"), first_everyday(("dark", 390), ("dark", 1400), ("light", 390), ("light", 1400))
)
def test_trouble_is_read_on_a_phone_and_in_the_dark(operator: Page, theme: str, width: int) -> None:
    make_trouble()
    operator.evaluate("theme => localStorage.setItem('adminTheme', JSON.stringify(theme))", theme)
    operator.set_viewport_size({"width": width, "height": 900})
    operator.goto("/admin/")

    expect(operator.locator(".worst li")).to_have_count(3)
    expect(operator.locator("html")).to_have_class(re.compile(theme))
    assert operator.evaluate("document.documentElement.scrollWidth") <= width
    assert not list(axe(operator))
    show(operator, f"dashboard-trouble-{theme}-{width}")


def make_trouble() -> None:
    for break_it in (stop_worker, note_node, trip, make_old_notification, break_canary):
        break_it()
    halts.start_draining(by="ann", why="gorush moves to another machine", now=timezone.now())
