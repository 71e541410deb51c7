"""Dashboard in a browser in which nobody clicks: it refreshes itself, and reports when it cannot."""

import re
from collections.abc import Iterator

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from notifications.models import Channel
from notifications.queues import halts
from tests.console.browsing import axe
from tests.console.test_dashboard import break_canary, make_old_notification, note_node, stop_worker, trip
from tests.rig import rows
from tests.rig.budget import first_everyday

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("alive", "eager")]


@pytest.fixture
def operator(operator: Page) -> Page:
    operator.goto("/admin/")
    return operator


def test_a_green_page_turns_red_without_reloading_and_leaves_focus_and_mouse_alone(operator: Page) -> None:
    expect(operator.locator("#verdict")).to_have_text("Messages get through, and nothing needs you")
    expect(operator).to_have_title(re.compile("^Overview"))
    operator.evaluate("window.stayed = true")
    operator.locator("#go-inbox").focus()

    for app in Channel.objects.all():
        reason = "12 of 12 sends refused: bad_certificate"
        rows.make_halt("tripped", (app.token_type, app.app_topic), reason=reason)
    rows.make_envelope()

    expect(operator.locator("#verdict")).to_contain_text("No pushes are sent: stopped by a breaker")
    expect(operator.locator("#indicator-channels")).to_contain_text("act now")
    expect(operator.locator("#indicator-inbox")).to_contain_text("1 waiting")
    expect(operator.locator("#announced")).to_contain_text("No pushes are sent")
    expect(operator).to_have_title(re.compile("^act now: "))
    expect(operator.locator("link[rel=icon]")).to_have_attribute("data-family", "bad")
    expect(operator.locator("#go-inbox")).to_be_focused()
    assert operator.evaluate("window.stayed === true")

    operator.locator("#worst-channels").hover()
    operator.mouse.down()
    with operator.expect_response("**/admin/"):
        pass
    operator.evaluate("new Promise(requestAnimationFrame)")  # the answer is on the page by then
    operator.mouse.up()
    expect(operator.locator("#result_list tbody tr")).to_have_count(1)


@pytest.fixture
def onlooker(chromium: Browser, live_server: LiveServer, operator: Page) -> Iterator[Page]:
    """The same person in a window whose errors do not fail the test, because the server goes away."""
    context = chromium.new_context(base_url=live_server.url, storage_state=operator.context.storage_state())
    page = context.new_page()
    page.goto("/admin/")
    yield page
    context.close()


def test_the_page_reports_that_the_server_does_not_answer_or_fails_and_that_it_is_back(onlooker: Page) -> None:
    as_of, stale = onlooker.locator("#as-of").inner_text(), onlooker.locator("#stale")
    expect(stale).to_be_hidden()

    onlooker.context.set_offline(True)
    expect(stale).to_be_visible()
    expect(stale).to_contain_text("Not refreshed since")
    assert onlooker.locator("#stale-since").inner_text() >= as_of[:8]  # the page may have refreshed once more
    onlooker.context.set_offline(False)
    expect(stale).to_be_hidden()

    onlooker.route("**/admin/", lambda route: route.fulfill(status=502, body="Bad Gateway"))
    expect(stale).to_be_visible()
    expect(onlooker.locator("#verdict")).to_be_visible()


@pytest.mark.parametrize(
    ("theme", "width"), first_everyday(("dark", 390), ("dark", 1400), ("light", 390), ("light", 1400))
)
def test_trouble_is_read_on_a_phone_and_in_the_dark(operator: Page, theme: str, width: int) -> None:
    for break_it in (stop_worker, note_node, trip, make_old_notification, break_canary):
        break_it()
    halts.start_draining(by="ann", why="gorush moves to another machine", now=timezone.now())
    operator.evaluate("theme => localStorage.setItem('adminTheme', JSON.stringify(theme))", theme)
    operator.set_viewport_size({"width": width, "height": 900})
    operator.goto("/admin/")

    expect(operator.locator(".worst li")).to_have_count(3)
    expect(operator.locator("html")).to_have_class(re.compile(theme))
    assert operator.evaluate("document.documentElement.scrollWidth") <= width
    assert not list(axe(operator))
