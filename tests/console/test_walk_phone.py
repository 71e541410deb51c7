"""Console on an operator's phone: nothing is cut off, the state comes first, and no list is endless."""

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from notifications.models import Notification
from registrations.models import Registration
from tests import factories
from tests.console.test_browser import show
from tests.console.test_look import too_wide
from tests.console.test_walk import log_in
from tests.console.world import HEROINE, World

pytestmark = pytest.mark.django_db(transaction=True)
PHONE = {"width": 390, "height": 844}
# Pixels of two screens in a row. Nine columns of 45 px for each row would take more.
MAX_LIST_HEIGHT = 9_000
MAX_USER_HEIGHT = 5_000


@pytest.fixture
def phone(world: World, visitor: Page) -> Page:
    visitor.set_viewport_size(PHONE)
    log_in_on_phone(visitor)
    return visitor


def log_in_on_phone(page: Page) -> None:
    """Log in where the Find box is behind the menu button."""
    page.set_viewport_size({"width": 1340, "height": 900})
    log_in(page, "operator")
    page.set_viewport_size(PHONE)


def is_within(cell: Locator) -> bool:
    box = cell.bounding_box()
    return bool(box and box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"])


def test_the_tables_of_a_user_and_a_timeline_are_cards_that_nothing_is_cut_off(phone: Page, world: World) -> None:
    for name, path in [("user", f"users/{HEROINE.hex()}"), ("timeline", f"timelines/{world.retried}")]:
        phone.goto(f"/admin/{path}/")
        phone.evaluate("document.querySelectorAll('main details').forEach(part => { part.open = true })")
        cells = phone.locator(".rows tbody :is(th, td)")
        assert cells.count() > 20
        assert [cell.inner_text() for cell in cells.all() if not is_within(cell)] == []
        assert phone.evaluate("[...document.querySelectorAll('.rows')].every(e => e.scrollWidth <= e.clientWidth)")
        assert list(too_wide(phone)) == []
        show(phone, f"phone-{name}")


def test_the_page_of_a_user_is_short_and_has_the_rest_on_demand(phone: Page, world: World) -> None:
    registration = Registration.objects.filter(public_key_hash=HEROINE).earliest("pk")
    for _ in range(40):
        factories.make_event(pseudonym=registration.pseudonym)
        own = {"public_key_hash": HEROINE, "installation_id": registration.installation_id}
        factories.make_notification(route=registration.route, **own)
    phone.goto(f"/admin/users/{HEROINE.hex()}/")
    assert phone.evaluate("document.documentElement.scrollHeight") < MAX_USER_HEIGHT
    show(phone, "phone-user-short")

    events = phone.get_by_role("region", name="Registration events")
    expect(events).to_have_count(0)
    phone.locator("section", has=phone.get_by_role("heading", name="Registration events")).locator("summary").focus()
    phone.keyboard.press("Enter")
    expect(events).to_be_visible()


def test_the_state_is_the_first_thing_of_a_card(phone: Page, world: World) -> None:
    for path, row in [
        (f"users/{HEROINE.hex()}", ".rows tbody tr"),
        (f"timelines/{world.retried}", "#timeline tbody tr:has(.state-word)"),
        ("notifications/notification", "#result_list .data-row"),
    ]:
        phone.goto(f"/admin/{path}/")
        first = phone.locator(row).first
        label = first.locator(".state-word").first.bounding_box()
        cells = [cell.bounding_box() for cell in first.locator("> :is(th, td):not(:has(.action-select))").all()]
        assert label
        assert all(box and label["y"] < box["y"] + box["height"] for box in cells), path


@pytest.mark.nightly
def test_a_page_has_25_rows_on_a_phone_and_50_on_a_screen(phone: Page, world: World) -> None:
    request = Notification.objects.earliest("pk").request
    for number in range(60):
        factories.make_notification(request=request, position=100 + number)
    rows = phone.locator("#result_list .data-row")
    phone.goto("/admin/notifications/notification/")
    expect(rows).to_have_count(25)
    show(phone, "phone-list")
    height = phone.evaluate("document.documentElement.scrollHeight")
    assert height < MAX_LIST_HEIGHT
    first = rows.nth(0).inner_text()
    phone.get_by_role("link", name=re.compile("next page")).click()
    expect(rows).to_have_count(25)
    assert rows.nth(0).inner_text() != first

    phone.set_viewport_size({"width": 1340, "height": 900})
    phone.goto("/admin/")
    phone.goto("/admin/notifications/notification/")
    expect(rows).to_have_count(50)


@pytest.mark.nightly
def test_a_list_that_is_the_first_page_on_a_phone_is_short_at_once(visitor: Page, world: World) -> None:
    request = Notification.objects.earliest("pk").request
    for number in range(60):
        factories.make_notification(request=request, position=100 + number)
    log_in_on_phone(visitor)
    visitor.context.clear_cookies(name="narrow")
    visitor.goto("/admin/notifications/notification/")
    expect(visitor.locator("#result_list .data-row")).to_have_count(25)
