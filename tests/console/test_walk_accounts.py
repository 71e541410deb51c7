"""Accounts and tokens, in a real browser: an admin makes an account on one page, and copies a token once."""

import re

import pytest
from django.contrib.auth.models import Group, User
from django.contrib.sessions.models import Session
from playwright.sync_api import Page, expect

from pushserver.models import ApiToken
from tests.console.conftest import PASSWORD, send_login
from tests.console.test_browser import show
from tests.console.test_walk import log_in

pytestmark = pytest.mark.django_db(transaction=True)


def test_an_account_is_made_on_one_page_with_a_role_that_the_list_shows(visitor: Page) -> None:
    log_in(visitor, "admin")
    visitor.get_by_role("link", name="Accounts").click()
    visitor.goto("/admin/auth/user/add/")
    show(visitor, "account-add")
    assert visitor.locator("select[multiple]").count() == 0
    expect(visitor.locator("#main")).not_to_contain_text("more user options")
    visitor.get_by_label("Username").fill("bob")
    visitor.get_by_label("operator", exact=True).check()
    visitor.locator("#id_password1").fill(PASSWORD)
    visitor.locator("#id_password2").fill(PASSWORD)
    visitor.get_by_role("button", name="Save", exact=True).click()

    expect(visitor).to_have_url(re.compile(r"/admin/auth/user/$"))
    row = visitor.locator("#result_list .data-row", has_text="bob")
    expect(row.locator(".field-role")).to_have_text("operator")
    show(visitor, "account-list")

    row.get_by_role("link").first.click()
    expect(visitor.locator("#main")).not_to_contain_text("Can add")
    expect(visitor.get_by_label("operator", exact=True)).to_be_checked()
    show(visitor, "account-change")
    bob = User.objects.get(username="bob")
    assert (bob.is_staff, bob.is_superuser, [*bob.groups.all()]) == (True, False, [Group.objects.get(name="operator")])
    visitor.context.clear_cookies()
    send_login(visitor, "bob", PASSWORD)
    expect(visitor.get_by_role("link", name="Drain")).to_have_count(1)


def test_an_account_needs_a_role_and_two_equal_passwords(visitor: Page) -> None:
    log_in(visitor, "admin")
    visitor.goto("/admin/auth/user/add/")
    visitor.get_by_label("Username").fill("bob")
    visitor.locator("#id_password1").fill(PASSWORD)
    visitor.locator("#id_password2").fill(PASSWORD[:-1])
    visitor.get_by_role("button", name="Save", exact=True).click()
    expect(visitor.locator("#main")).to_contain_text("This field is required")
    assert not User.objects.filter(username="bob").exists()


def test_a_token_is_copied_with_a_button_and_shown_once_with_what_it_may_do(visitor: Page) -> None:
    visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    log_in(visitor, "admin")
    visitor.goto("/admin/pushserver/apitoken/add/")
    visitor.get_by_label("Name").fill("status page")
    visitor.get_by_label("status: reads whether").check()
    visitor.get_by_label("reports: reads the figures").check()
    visitor.get_by_role("button", name="Save", exact=True).click()

    text = visitor.locator("#token").inner_text()
    expect(visitor.locator("#scopes")).to_contain_text("status: reads whether the server is ready")
    visitor.get_by_role("button", name="Copy").click()
    expect(visitor.locator("#copied")).to_have_text("Copied.")
    assert visitor.evaluate("navigator.clipboard.readText()") == text
    show(visitor, "token-new")
    assert not [cookie for cookie in visitor.context.cookies() if text[:12] in cookie["value"]]
    assert not [session for session in Session.objects.all() if text[:12] in str(session.get_decoded())]

    for path in ("", f"{ApiToken.objects.get().pk}/change/"):
        visitor.goto(f"/admin/pushserver/apitoken/{path}")
        expect(visitor.locator("#main")).to_contain_text("status")
        expect(visitor.locator("#main")).not_to_contain_text("['")
        assert text not in visitor.content()
