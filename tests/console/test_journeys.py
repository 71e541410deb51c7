"""Journeys of operators through the console, in a real browser: from the login to what is logged.

What a request can show is tested without a browser. These tests are about what needs one: scripts, the content security
policy, and forms as a page sends them.
"""

import re
from collections.abc import Iterator

import pytest
from coincurve import PrivateKey
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import connection
from django.utils import timezone
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from notifications.models import Channel
from registrations.models import Registration, Route
from tests.console.browsing import PASSWORD, axe, confirm, fill_in_login, find, log_in, send_login
from tests.console.reading import HEROINE, PUBLIC_KEY
from tests.console.routes import make_one_of_each_fact
from tests.rig import rows
from tests.rig.conversation import put, registration
from tests.rig.delivering import Process
from waku_bridge.codec.keys import Identity, chat_key

LISTS = ("registrations/registration", "notifications/notification", "waku_bridge/inboundenvelope")
pytestmark = pytest.mark.django_db(transaction=True)


def test_an_operator_logs_in_and_opens_lists_rows_and_the_documentation_of_the_api(visitor: Page) -> None:
    make_one_of_each_fact(public_key_hash=HEROINE)
    User.objects.create_superuser("operator", password=PASSWORD)
    send_login(visitor, "operator", PASSWORD)
    expect(visitor).to_have_title(re.compile(r"Overview \| Push server$"))

    for path in LISTS:
        open_from_menu(visitor, f"/admin/{path}/")
        expect(visitor.locator("#result_list tbody tr")).not_to_have_count(0)
        visitor.locator("#result_list tbody th a").first.click()
        expect(visitor.locator(".readonly").first).to_be_visible()

    visitor.get_by_role("link", name="Documentation", exact=True).click()
    visitor.get_by_role("link", name="Documentation of the API").first.click()
    expect(visitor.get_by_role("button", name="Authorize")).to_be_visible()


def open_from_menu(page: Page, path: str) -> None:
    """Click an entry of the menu, after opening its section if that is closed."""
    section = page.locator("#nav-sidebar details", has=page.locator(f'a[href="{path}"]'))
    if section.get_attribute("open") is None:  # waits for the menu, of which a page that is loading shows nothing yet
        section.locator("summary").click()
    section.locator(f'a[href="{path}"]').click()


def test_from_a_chat_key_which_no_address_shows_to_the_timeline_and_to_what_is_logged(visitor: Page) -> None:
    rows.make_delivered(HEROINE)
    addresses: list[str] = []
    visitor.on("request", lambda request: addresses.append(request.url))
    log_in(visitor, "operator")

    find(visitor, chat_key(PUBLIC_KEY))
    expect(visitor).to_have_url(re.compile(f"/admin/users/{HEROINE.hex()}/$"))
    visitor.get_by_role("region", name="What happened").get_by_role("link").first.click()
    expect(visitor.locator("#timeline")).to_contain_text("Attempt 2: delivered")

    visitor.get_by_role("link", name="User", exact=True).click()
    visitor.get_by_role("region", name="Installations").get_by_role("link").first.click()
    visitor.get_by_role("link", name="Disable", exact=True).click()
    expect(visitor.locator("#touched")).to_contain_text("Nothing is sent there any more")
    confirm(visitor, "Disable")
    expect(visitor.locator("#main")).to_contain_text("Disabled 1 registration.")
    assert Route.objects.get().state == "disabled"
    assert "as agreed with ann" in LogEntry.objects.get().change_message

    visitor.goto("/admin/registrations/registration/")
    visitor.get_by_role("textbox", name="Search").fill(chat_key(PUBLIC_KEY))
    visitor.get_by_role("button", name="Search").click()
    expect(visitor).to_have_url(re.compile(f"q={HEROINE.hex()}$"))
    expect(visitor.locator("#result_list tbody tr")).to_have_count(1)
    assert not [address for address in addresses if chat_key(PUBLIC_KEY)[4:40] in address]


def test_the_slash_leads_to_the_search_and_the_answer_for_the_user_is_copied_with_a_button(visitor: Page) -> None:
    visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    notification = rows.make_delivered(HEROINE)
    log_in(visitor, "support")
    visitor.goto(f"/admin/timelines/{notification.pk}/")
    visitor.keyboard.press("/")
    box = visitor.get_by_role("textbox", name="Find a user").first
    expect(box).to_be_focused()
    visitor.keyboard.type("a/b")
    expect(box).to_have_value("a/b")

    text = visitor.locator("#answer").inner_text()
    visitor.get_by_role("button", name="Copy the answer").click()
    expect(visitor.locator("#copied")).to_have_text("Copied.")
    assert visitor.evaluate("navigator.clipboard.readText()") == text


@pytest.mark.usefixtures("alive", "eager")
def test_after_the_end_of_a_session_a_form_does_nothing_and_the_login_leads_back(visitor: Page) -> None:
    registration = rows.make_registration()
    log_in(visitor, "operator")
    visitor.goto(f"/admin/registrations/registration/operate/disable/?id={registration.pk}")
    visitor.context.clear_cookies(name=settings.SESSION_COOKIE_NAME)
    confirm(visitor, "Disable")
    fill_in_login(visitor, "operator", PASSWORD)
    expect(visitor.locator("#touched")).to_contain_text("Registrations with an active route: 1 of 1.")
    assert Registration.objects.get().route.state == Route.State.ACTIVE

    visitor.goto("/admin/")
    Session.objects.all().delete()
    visitor.wait_for_url("**/admin/login/?next=/admin/")  # by the refresh of the page, in which nobody clicks
    expect(visitor.locator("#board")).to_have_count(0)
    fill_in_login(visitor, "operator", PASSWORD)
    expect(visitor.locator("#verdict")).to_be_visible()


def batches() -> None:
    process = Process()
    while process.process_batch(now=timezone.now()):
        pass


def sql(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


@pytest.mark.usefixtures("alive")
def test_envelopes_that_failed_lead_to_their_fault_and_are_processed_again_in_two_clicks(operator: Page) -> None:
    """A constraint that no registration meets stands for a bug of the server. Dropping it is the repair."""
    sql("ALTER TABLE registrations_registration ADD CONSTRAINT nobody CHECK (version < 0) NOT VALID")
    for key in (1, 2, 3):
        put(registration(Identity(PrivateKey(key.to_bytes(32)))), now=timezone.now())
    try:
        batches()
        operator.goto("/admin/")
        indicator = operator.locator("#indicator-failed")
        expect(indicator).to_contain_text("look at it")
        expect(indicator).to_contain_text("3 failed because of a bug in this server")
        expect(indicator).to_contain_text(
            re.compile(r"IntegrityError \(nobody\) at registrations/\S+:\d+ in \w+ \(3 times\)")
        )
        operator.locator("#go-failed").click()
        row = operator.locator("#result_list tbody tr")
        expect(row).to_have_count(1)
        expect(row).to_contain_text("IntegrityError (nobody)")
        assert not list(axe(operator))
        row.get_by_role("link", name="3", exact=True).click()
        expect(operator.locator("#result_list tbody tr")).to_have_count(3)
        operator.go_back()
    finally:
        sql("ALTER TABLE registrations_registration DROP CONSTRAINT nobody")

    row.get_by_role("link", name="Process again").click()
    expect(operator.locator("#touched")).to_contain_text(
        "Envelopes that failed by this fault, and would be processed again: 3."
    )
    confirm(operator, "Process again", "the constraint is gone")
    batches()

    assert Registration.objects.count() == 3
    operator.goto("/admin/")
    expect(operator.locator("#indicator-failed")).to_contain_text("fine")


def test_a_token_is_copied_with_a_button_and_shown_once_with_what_it_may_do(visitor: Page) -> None:
    visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    log_in(visitor, "admin")
    visitor.goto("/admin/pushserver/apitoken/add/")
    visitor.get_by_label("Name").fill("status page")
    visitor.get_by_label("status: reads whether").check()
    visitor.get_by_role("button", name="Save", exact=True).click()

    text = visitor.locator("#token").inner_text()
    expect(visitor.locator("#scopes")).to_contain_text("status: reads whether the server is ready")
    visitor.get_by_role("button", name="Copy").click()
    expect(visitor.locator("#copied")).to_have_text("Copied.")
    assert visitor.evaluate("navigator.clipboard.readText()") == text
    visitor.goto("/admin/pushserver/apitoken/")
    expect(visitor.locator("#result_list")).to_contain_text("status page")
    assert text not in visitor.content()


# The dashboard, on which nobody clicks -------------------------------------------------------------------------------
@pytest.mark.usefixtures("alive", "eager")
def test_a_green_page_turns_red_without_reloading_and_leaves_focus_and_mouse_alone(operator: Page) -> None:
    operator.goto("/admin/")
    expect(operator.locator("#verdict")).to_have_text("Messages get through, and nothing needs you")
    expect(operator).to_have_title(re.compile("^Overview"))
    operator.evaluate("window.stayed = true")
    operator.locator("details", has=operator.locator("#go-inbox")).locator("summary").click()
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

    operator.locator("#worst-sending").hover()
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


@pytest.mark.usefixtures("alive", "eager")
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
