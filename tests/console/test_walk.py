"""An operator's way through the console, in a real browser: find a user, read the timeline, act."""

import re

import pytest
from coincurve import PrivateKey
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, User
from playwright.sync_api import Page, expect

from pushserver.roles import seed_roles
from registrations.models import Registration, Route
from tests.console.conftest import PASSWORD, begin_session
from tests.console.test_browser import show
from tests.console.test_find import make_story
from waku_bridge.codec.keys import chat_key, key_hash

PUBLIC_KEY = PrivateKey(b"\x05" * 32).public_key.format()
pytestmark = pytest.mark.django_db(transaction=True)


def log_in(page: Page, role: str) -> None:
    seed_roles()
    user = User.objects.create_user(role, password=PASSWORD, is_staff=True)
    user.groups.add(Group.objects.get(name=role))
    begin_session(page, user)
    expect(page.get_by_role("textbox", name="Find a user").first).to_be_visible()


def find(page: Page, term: str) -> None:
    box = page.get_by_role("textbox", name="Find a user").first
    box.fill(term)
    box.press("Enter")


def confirm(page: Page, button: str, why: str = "as agreed with ann") -> None:
    """Confirm an operation, and wait until the server has done it: a click alone returns before."""
    page.get_by_label("Why").fill(why)
    with page.expect_navigation():
        page.get_by_role("button", name=button, exact=True).click()


def test_from_a_chat_key_to_the_timeline_and_to_what_is_logged(visitor: Page) -> None:
    make_story(PUBLIC_KEY)
    addresses: list[str] = []
    visitor.on("request", lambda request: addresses.append(request.url))
    log_in(visitor, "operator")

    find(visitor, chat_key(PUBLIC_KEY))
    expect(visitor).to_have_url(re.compile(f"/admin/users/{key_hash(PUBLIC_KEY).hex()}/$"))
    expect(visitor.get_by_role("region", name="Installations")).to_contain_text("active")
    show(visitor, "user")

    visitor.get_by_role("region", name="Newest notifications").get_by_role("link").first.click()
    expect(visitor.locator("#timeline")).to_contain_text("Attempt 2: delivered")
    expect(visitor.locator("#next")).to_contain_text("it is over")
    show(visitor, "timeline")

    visitor.get_by_role("link", name="User", exact=True).click()
    visitor.get_by_role("region", name="Installations").get_by_role("link").first.click()
    visitor.get_by_role("link", name="Disable", exact=True).click()
    expect(visitor.locator("#touched")).to_contain_text("Nothing is sent there any more")
    show(visitor, "confirm")
    confirm(visitor, "Disable")
    expect(visitor.locator("#main")).to_contain_text("Disabled 1 registration.")
    assert Route.objects.get().state == "disabled"
    assert "as agreed with ann" in LogEntry.objects.get().change_message
    assert not [address for address in addresses if chat_key(PUBLIC_KEY)[4:40] in address]


def test_every_page_shows_that_delivery_is_stopped(visitor: Page) -> None:
    log_in(visitor, "operator")
    visitor.get_by_role("link", name="Drain").click()
    confirm(visitor, "Stop delivery", "gorush moves")
    expect(visitor.locator("#drain")).to_contain_text("by operator: gorush moves")
    visitor.goto("/admin/registrations/registration/")
    show(visitor, "drain")
    visitor.locator("#drain").get_by_role("link", name="Start delivery").click()
    confirm(visitor, "Start delivery")
    expect(visitor.locator("#main")).to_contain_text("Delivery runs again.")
    expect(visitor.locator("#drain")).to_have_count(0)


@pytest.mark.nightly
def test_a_user_is_forgotten(visitor: Page) -> None:
    make_story(PUBLIC_KEY)
    log_in(visitor, "operator")
    find(visitor, chat_key(PUBLIC_KEY))
    visitor.get_by_role("link", name="Forget this user").click()
    expect(visitor.locator("#touched")).to_contain_text("1 registration, ")
    show(visitor, "forget")
    confirm(visitor, "Forget this user", "she asked for it")
    expect(visitor.locator("#main")).to_contain_text("Forgot a user")
    assert not Registration.objects.exists()
    find(visitor, chat_key(PUBLIC_KEY))
    expect(visitor.locator("#main")).to_contain_text("Nothing was found")
    show(visitor, "nothing")
