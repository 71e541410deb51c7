import os
import re
from pathlib import Path

import pytest
from coincurve import PrivateKey
from django.contrib import admin
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from kit.admin.facts import FactAdmin
from tests import factories
from tests.budget import first_everyday
from tests.console.conftest import PASSWORD, send_login
from tests.console.routes import make_one_of_each_fact
from waku_bridge.codec.keys import chat_key, key_hash

PUBLIC_KEY = PrivateKey(b"\x05" * 32).public_key.format()
LISTS = [
    (f"/admin/{model._meta.app_label}/{model._meta.model_name}/", str(model._meta.verbose_name_plural))
    for model, page in admin.site._registry.items()
    if isinstance(page, FactAdmin)
    and model._meta.app_label not in {"admin", "pushserver", "spark_reports"}  # have walks of their own
]
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("lists", first_everyday(LISTS[:3], LISTS), ids=["three", "all"])
def test_an_operator_logs_in_and_opens_every_list(visitor: Page, lists: list[tuple[str, str]]) -> None:
    make_one_of_each_fact(public_key_hash=key_hash(PUBLIC_KEY))
    User.objects.create_superuser("operator", password=PASSWORD)
    send_login(visitor, "operator", PASSWORD)
    expect(visitor).to_have_title(re.compile(r"Overview \| Push server$"))
    show(visitor, "index")

    for path, name in lists:
        visitor.goto("/admin/")
        open_from_menu(visitor, path)
        expect(visitor.get_by_text(name, exact=False).first).to_be_visible()
        expect(visitor.locator("#result_list tbody tr")).not_to_have_count(0)
        show(visitor, f"list-{name}")
        visitor.locator("#result_list tbody th a").first.click()
        expect(visitor.locator(".readonly").first).to_be_visible()
        show(visitor, f"page-{name}")


def open_from_menu(page: Page, path: str) -> None:
    """Click an entry of the menu, after opening its section if that is closed."""
    link = page.locator(f'#nav-sidebar a[href="{path}"]').first
    if not link.is_visible():
        link.locator("xpath=ancestor::details/summary").click()
    link.click()


def test_a_registration_is_found_by_its_chat_key_which_the_address_bar_never_shows(operator: Page) -> None:
    wanted = factories.make_registration(public_key_hash=key_hash(PUBLIC_KEY))
    factories.make_registration()
    addresses: list[str] = []
    operator.on("request", lambda request: addresses.append(request.url))

    operator.goto("/admin/registrations/registration/")
    operator.get_by_role("textbox", name="Search").fill(chat_key(PUBLIC_KEY))
    operator.get_by_role("button", name="Search").click()

    expect(operator.locator("#result_list tbody tr")).to_have_count(1)
    expect(operator.locator("#result_list")).to_contain_text(wanted.installation_id)
    expect(operator).to_have_url(re.compile(f"q={key_hash(PUBLIC_KEY).hex()}$"))
    assert not [address for address in addresses if chat_key(PUBLIC_KEY)[4:40] in address]
    show(operator, "search")


def test_a_registration_leads_to_the_timeline_of_a_notification(operator: Page) -> None:
    make_one_of_each_fact(public_key_hash=key_hash(PUBLIC_KEY))

    operator.goto("/admin/registrations/registration/")
    operator.locator("#result_list tbody th a").first.click()
    operator.get_by_role("link", name="Notifications", exact=True).last.click()
    operator.locator("#result_list tbody th a").first.click()

    expect(operator.locator("#attempts-group")).to_contain_text("unreachable")
    show(operator, "story")


def show(page: Page, name: str) -> None:
    """Save a picture of the page when SCREENSHOTS names a folder."""
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name.replace(' ', '-')}.png", full_page=True)
