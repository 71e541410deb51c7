"""Appearance of every page in a browser: readable in light, dark and on a phone, and usable by keyboard and screen
reader.
"""

import os
import re
from collections.abc import Iterable, Iterator
from datetime import date
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from django.conf import LazySettings
from playwright.sync_api import Locator, Page, expect

from notifications.models import Notification
from pushserver.console.models import Count, TrafficMinute
from registrations.models import Registration
from tests.console.browsing import axe, log_in, too_wide
from tests.console.reading import HEROINE
from tests.console.routes import console_pages
from tests.console.world import World, make_world
from tests.rig import rows
from xmpp_bridge.component import CONNECTED, END

pytestmark = pytest.mark.django_db(transaction=True)
DAY = date(2026, 11, 20)
NO_PAGES = {
    *("reports:csv", "admin:jsi18n", "admin:autocomplete", "admin:search", "admin:view_on_site"),  # not HTML
    *("search_facts", "admin:logout"),  # for forms
}
# Django's own three pages of each table: one of each kind is checked.
OF_EACH_TABLE = ("_add", "_delete", "_history")
OF_ONE_TABLE = (
    "gatewayerrorrule_add",
    "totpdevice_delete",
    "gatewayerrorrule_history",
    "apitoken_add",
    "user_add",
)
# The kinds of pages: figures, a report, a list, a form.
OF_EACH_KIND = {
    "/admin/",
    "/admin/reports/latency/",
    "/admin/notifications/notification/",
    "/admin/drain/start/",
}
API_DOCS = "/api/docs/"
# Faults in Swagger's markup: a button within a button, headings that skip a level, sections without a landmark.
OF_SWAGGER = ("nested-interactive", 'class="opblock', 'wrapper">')

CUT_CAPTIONS = """[...document.querySelectorAll('.table-scroll caption')].filter(
    caption => caption.getBoundingClientRect().right > caption.closest('div').getBoundingClientRect().right + 1
).map(caption => caption.innerText)"""


def pages() -> Iterator[str]:
    """Yield the pages to check, with one operation for each table, as operations look alike."""
    seen: set[str] = set()
    for page in console_pages():
        name = page.name.removeprefix("admin:")
        is_another = name.endswith("_operate") and name in seen
        is_djangos = name.endswith(OF_EACH_TABLE) and not name.endswith(OF_ONE_TABLE)
        seen.add(name)
        if page.name not in NO_PAGES and not is_another and not is_djangos:
            yield page.url


@pytest.mark.nightly
def test_every_page_is_readable_in_light_and_dark_and_on_a_phone(world: World, operator: Page) -> None:
    assert len(list(pages())) > 60
    assert_readable(operator, pages())


def test_a_page_of_each_kind_is_readable_in_light_and_dark_and_on_a_phone(world: World, operator: Page) -> None:
    assert {*pages()} >= OF_EACH_KIND
    assert_readable(operator, OF_EACH_KIND)


def assert_readable(page: Page, urls: Iterable[str]) -> None:
    faults = {url: list(faults_of(page, url)) for url in urls}
    assert {url: found for url, found in faults.items() if found} == {}


@pytest.mark.nightly
def test_a_visitor_can_read_the_login_page_and_the_documentation_of_the_api(visitor: Page) -> None:
    assert list(faults_of(visitor, "/admin/login/")) == []

    faults = list(faults_of(visitor, API_DOCS))
    expect(visitor.get_by_role("button", name="Authorize")).to_be_visible()
    assert [fault for fault in faults if not any(known in fault for known in OF_SWAGGER)] == []


def faults_of(page: Page, url: str) -> Iterator[str]:
    page.set_viewport_size({"width": 1340, "height": 900})
    page.emulate_media(color_scheme="light")
    page.goto(url)
    if url == API_DOCS:  # the page is drawn from fetched data
        page.wait_for_load_state("networkidle")
    yield from (f"light: {fault}" for fault in axe(page))
    yield from (f"desk: {fault}" for fault in too_wide(page))
    page.emulate_media(color_scheme="dark")
    page.evaluate("document.documentElement.classList.add('dark')")
    # Only colours differ in the dark theme.
    yield from (f"dark: {fault}" for fault in axe(page, runOnly=["color-contrast"]))
    page.set_viewport_size({"width": 390, "height": 844})
    yield from (f"phone: {fault}" for fault in [*too_wide(page), *page.evaluate(CUT_CAPTIONS)])


# On a phone ----------------------------------------------------------------------------------------------------------
PHONE = {"width": 390, "height": 844}
# Pixels of two screens in a row. Nine columns of 45 px for each row would take more.
MAX_LIST_HEIGHT = 9_000
MAX_USER_HEIGHT = 5_000


def test_on_a_phone_nothing_is_cut_off_the_state_comes_first_and_no_page_is_endless(
    world: World, visitor: Page
) -> None:
    log_in(visitor, "operator")
    visitor.set_viewport_size(PHONE)
    assert_a_long_list_is_short_at_once(visitor)
    user, timeline = f"users/{HEROINE.hex()}", f"timelines/{world.retried}"
    for path in (user, timeline):
        visitor.goto(f"/admin/{path}/")
        assert_cards_are_whole(visitor)
    for path, row in [
        (user, ".rows tbody tr"),
        (timeline, "#timeline tbody tr:has(.state-word)"),
        ("notifications/notification", "#result_list .data-row"),
    ]:
        visitor.goto(f"/admin/{path}/")
        assert_the_state_is_first(visitor.locator(row).first)
    assert_the_rest_of_a_user_is_there_on_demand(visitor)


def assert_a_long_list_is_short_at_once(page: Page) -> None:
    """Check that the first page that a phone ever loads is short, although no cookie has reported its width."""
    request = Notification.objects.earliest("pk").request
    for number in range(60):
        rows.make_notification(request=request, position=100 + number)
    page.goto("/admin/notifications/notification/")
    expect(page.locator("#result_list .data-row")).to_have_count(25)
    assert page.evaluate("document.documentElement.scrollHeight") < MAX_LIST_HEIGHT


def assert_cards_are_whole(page: Page) -> None:
    page.evaluate("document.querySelectorAll('main details').forEach(part => { part.open = true })")
    cells = page.locator(".rows tbody :is(th, td)")
    assert cells.count() > 20
    assert [cell.inner_text() for cell in cells.all() if not is_within(cell)] == []
    assert page.evaluate("[...document.querySelectorAll('.rows')].every(e => e.scrollWidth <= e.clientWidth)")
    assert list(too_wide(page)) == []


def is_within(cell: Locator) -> bool:
    box = cell.bounding_box()
    return bool(box and box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"])


def assert_the_state_is_first(row: Locator) -> None:
    label = row.locator(".state-word").first.bounding_box()
    cells = [cell.bounding_box() for cell in row.locator("> :is(th, td):not(:has(.action-select))").all()]
    assert label
    assert all(box and label["y"] < box["y"] + box["height"] for box in cells)


def assert_the_rest_of_a_user_is_there_on_demand(page: Page) -> None:
    registration = Registration.objects.filter(public_key_hash=HEROINE).earliest("pk")
    for _ in range(40):
        rows.make_event(pseudonym=registration.pseudonym)
        own = {"public_key_hash": HEROINE, "installation_id": registration.installation_id}
        rows.make_notification(route=registration.route, **own)
    page.goto(f"/admin/users/{HEROINE.hex()}/")
    assert page.evaluate("document.documentElement.scrollHeight") < MAX_USER_HEIGHT
    older = page.get_by_role("region", name="What happened, older")
    expect(older).to_have_count(0)
    page.locator("section", has=page.get_by_role("heading", name="What happened")).locator("summary").focus()
    page.keyboard.press("Enter")
    expect(older).to_be_visible()


# Without a mouse -----------------------------------------------------------------------------------------------------
def test_the_keyboard_reaches_content_menu_filters_and_exact_times_and_shows_where_it_is(
    world: World, operator: Page
) -> None:
    for path in ("notifications/notification/", "find/", "documentation/console/", f"timelines/{world.retried}/"):
        operator.goto(f"/admin/{path}")
        assert_the_way_past_the_menu_leads_below_the_header(operator)
    assert_sections_of_the_menu_open(operator)
    assert_filters_open_and_close(operator)
    operator.goto("/admin/notifications/notification/")
    assert_the_exact_time_is_shown_on_focus(operator)
    operator.reload()
    assert unseen_steps(operator, 60) == []


def assert_the_way_past_the_menu_leads_below_the_header(page: Page) -> None:
    skip = page.get_by_role("link", name="Skip to the content")
    page.keyboard.press("Tab")
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("#content")).to_be_focused()
    content, header = (page.locator(part).bounding_box() for part in ("#content", "#main > header"))
    assert content
    assert header
    assert content["y"] >= 0
    assert content["y"] >= header["y"] + header["height"] - 1 or header["y"] < 0
    expect(skip).not_to_be_in_viewport()


def assert_sections_of_the_menu_open(page: Page) -> None:
    page.goto("/admin/find/")
    runs = page.locator("#nav-sidebar").get_by_role("link", name="Report runs")
    expect(runs).to_have_count(0)
    page.locator("#nav-sidebar summary", has_text="Reports").focus()
    page.keyboard.press("Enter")
    expect(runs).to_be_visible()


def assert_filters_open_and_close(page: Page) -> None:
    page.goto("/admin/registrations/registration/")
    filters = page.get_by_role("button", name="Filters")
    filters.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#changelist-filter a:focus")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(filters).to_be_focused()
    expect(page.locator("#changelist-filter")).to_be_hidden()


def assert_the_exact_time_is_shown_on_focus(page: Page) -> None:
    time = page.locator("#result_list time").first
    exact = time.get_attribute("title") or ""
    assert exact.endswith(" UTC")
    page.locator("#result_list tbody a").first.focus()
    for _ in range(5):
        page.keyboard.press("Tab")
        if time.evaluate("element => element === document.activeElement"):
            break
    assert time.evaluate("element => getComputedStyle(element, '::after').content") == f'"{exact}"'


# The focus of a search box shows in the frame around it, which the theme draws.
HAS_OUTLINE = """() => {
  const style = (element) => getComputedStyle(element)
  const has = (element) => style(element).outlineStyle !== 'none' && parseFloat(style(element).outlineWidth) > 0
  return has(document.activeElement) || has(document.activeElement.parentElement)
}"""


def unseen_steps(page: Page, number: int) -> list[str]:
    """Press Tab, and return the elements that do not show that they have the focus."""
    unseen = []
    for _ in range(number):
        page.keyboard.press("Tab")
        if not page.evaluate(HAS_OUTLINE):
            unseen.append(page.evaluate("document.activeElement.outerHTML.slice(0, 200)"))
    return unseen


def test_an_operation_is_carried_out_with_the_keyboard_alone(operator: Page) -> None:
    operator.goto("/admin/drain/start/")
    operator.keyboard.press("Tab")
    operator.keyboard.press("Enter")
    reach(operator, "INPUT")
    operator.keyboard.type("the nodes move")
    reach(operator, "BUTTON")
    assert operator.evaluate("document.activeElement.innerText.trim()") == "Stop delivery"
    operator.keyboard.press("Enter")

    expect(operator.locator("#drain")).to_contain_text("the nodes move")


def reach(page: Page, tag: str) -> None:
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.tagName") == tag:
            return
    pytest.fail(f"no {tag} within ten steps")


# Pictures of the README, which `make screenshots` takes again --------------------------------------------------------
ROOT = Path(__file__).parents[2]
FOLDER = "docs/screenshots"
WRITTEN = os.environ.get("WRITE_PICTURES")
MAX_BYTES = 200_000
ADDRESSES = {
    "dashboard": "/admin/",
    "notifications": "/admin/notifications/notification/",
    "user": f"/admin/users/{HEROINE.hex()}/",
    "timeline": "/admin/timelines/{retried}/",
    "channels": "/admin/notifications/channel/",
    "xmpp": "/admin/timelines/{pushed}/",
    "devices": "/admin/xmpp_bridge/device/",
    "report": "/admin/reports/latency/",
}


@pytest.fixture
def pictured(alive: ThreadingHTTPServer, transactional_db: None, settings: LazySettings) -> World:
    settings.REPORTS_NIGHTLY = True
    settings.XMPP_COMPONENT_JID = "push.example.org"
    END.save(CONNECTED)
    Count.objects.bulk_create(
        Count(figure="requests", begin_at=row.begin_at, subject="xmpp", count=row.request_count // 3)
        for row in TrafficMinute.objects.all()
    )
    return make_world()


@pytest.mark.parametrize("written", [WRITTEN] if WRITTEN else [pytest.param("", marks=pytest.mark.nightly)])
def test_pictures_of_the_main_pages_are_taken(pictured: World, operator: Page, tmp_path: Path, written: str) -> None:
    operator.set_viewport_size({"width": 1340, "height": 820})
    folder = Path(written or tmp_path)
    for name, address in ADDRESSES.items():
        operator.goto(address.format(retried=pictured.retried, pushed=pictured.pushed))
        operator.evaluate("document.fonts.ready")
        operator.screenshot(path=folder / f"{name}.png", animations="disabled")
    sizes = {path.stem: path.stat().st_size for path in folder.glob("*.png")}
    assert sizes.keys() == ADDRESSES.keys()
    assert {name: size for name, size in sizes.items() if size > MAX_BYTES} == {}


def test_the_readme_shows_every_picture_with_a_description() -> None:
    shown = re.findall(rf"!\[([^\]]{{20,}})\]\({FOLDER}/(\w+)\.png\)", (ROOT / "README.md").read_text())

    assert sorted(name for _, name in shown) == sorted(ADDRESSES)
    assert {path.stem for path in (ROOT / FOLDER).iterdir()} == ADDRESSES.keys()
