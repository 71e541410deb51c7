"""Appearance of every page: readable in light, dark and on a phone, and usable by keyboard and screen reader."""

from collections.abc import Iterable, Iterator
from datetime import timedelta

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.utils import timezone
from playwright.sync_api import Page, expect

from kit.health.indicators import State
from pushserver.models import Incident
from tests.console.routes import console_pages
from tests.console.test_browser import show
from tests.console.world import HEROINE, World

pytestmark = pytest.mark.django_db(transaction=True)

NOTICED = {"moderate", "serious", "critical"}
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
# The kinds of pages: figures, a list, a form.
OF_EACH_KIND = ("index", "notifications_notification_changelist", "notifications_notification_operate")
# Preloading style sheets and media serves only two rules: one is off, and the other one is about sound.
AXE = {"resultTypes": ["violations"], "preload": False}
API_DOCS = "/api/docs/"
# Faults in Swagger's markup: a button within a button, headings that skip a level, sections without a landmark.
OF_SWAGGER = ("nested-interactive", 'class="opblock', 'wrapper">')


def pages() -> Iterator[tuple[str, str]]:
    """Yield the pages to check, with one operation for each table, as operations look alike."""
    seen: set[str] = set()
    for page in console_pages():
        name = page.name.removeprefix("admin:")
        is_another = name.endswith("_operate") and name in seen
        is_djangos = name.endswith(OF_EACH_TABLE) and not name.endswith(OF_ONE_TABLE)
        seen.add(name)
        if page.name not in NO_PAGES and not is_another and not is_djangos:
            yield name, page.url


@pytest.mark.nightly
def test_every_page_is_readable_in_light_and_dark_and_on_a_phone(world: World, operator: Page) -> None:
    assert len(list(pages())) > 60
    assert_readable(operator, pages())


def test_a_page_of_each_kind_is_readable_in_light_and_dark_and_on_a_phone(world: World, operator: Page) -> None:
    shown = [(name, url) for name, url in pages() if name in OF_EACH_KIND]

    assert {name for name, _ in shown} == set(OF_EACH_KIND)
    assert_readable(operator, shown)


def assert_readable(page: Page, shown: Iterable[tuple[str, str]]) -> None:
    faults = {url: list(faults_of(page, name, url)) for name, url in shown}
    assert {url: found for url, found in faults.items() if found} == {}


@pytest.mark.nightly
def test_a_visitor_can_read_the_login_page_and_the_documentation_of_the_api(visitor: Page) -> None:
    assert list(faults_of(visitor, "login", "/admin/login/")) == []

    faults = list(faults_of(visitor, "api-docs", API_DOCS))
    expect(visitor.get_by_role("button", name="Authorize")).to_be_visible()
    assert [fault for fault in faults if not any(known in fault for known in OF_SWAGGER)] == []


def faults_of(page: Page, name: str, url: str) -> Iterator[str]:
    page.set_viewport_size({"width": 1340, "height": 900})
    page.emulate_media(color_scheme="light")
    page.goto(url)
    if url == API_DOCS:  # the page is drawn from fetched data
        page.wait_for_load_state("networkidle")
    yield from (f"light: {fault}" for fault in axe(page))
    yield from (f"desk: {fault}" for fault in too_wide(page))
    show(page, f"{name}-light")
    page.emulate_media(color_scheme="dark")
    page.evaluate("document.documentElement.classList.add('dark')")
    # Only colours differ in the dark theme.
    yield from (f"dark: {fault}" for fault in axe(page, runOnly=["color-contrast"]))
    show(page, f"{name}-dark")
    page.set_viewport_size({"width": 390, "height": 844})
    yield from (f"phone: {fault}" for fault in too_wide(page))
    show(page, f"{name}-phone")


def too_wide(page: Page) -> Iterator[str]:
    pixels = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    if pixels > 0:
        yield f"{pixels} px too wide"


def axe(page: Page, **options: object) -> Iterator[str]:
    found = Axe().run(page, options={**AXE, **options})
    for violation in found.response["violations"]:
        if violation["impact"] in NOTICED:
            yield f"{violation['id']}: {violation['nodes'][0]['html'][:200]}"


# Nothing is cut in two -----------------------------------------------------------------------------------------------

# Words in tables, codes and numbers that are broken over two lines.
BROKEN = """() => {
  const broken = []
  for (const cell of document.querySelectorAll('main table :is(td, th)')) {
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT)
    for (let text; (text = texts.nextNode());) {
      for (const word of text.data.matchAll(/\\w+/g)) {
        const range = document.createRange()
        range.setStart(text, word.index)
        range.setEnd(text, word.index + word[0].length)
        if (new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1) broken.push(word[0])
      }
    }
  }
  return broken
}"""
SCROLLED = """() => {
  const list = document.getElementById('result_list')
  const box = list.closest('.simplebar-content-wrapper') ?? list.parentElement
  return box.scrollWidth - box.clientWidth
}"""


# The texts of cells that take more than one line.
IN_LINES = """cells => cells.filter(cell => {
  const range = document.createRange()
  range.selectNodeContents(cell)
  return new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1
}).map(cell => cell.textContent)"""


def test_codes_in_tables_are_whole(world: World, operator: Page) -> None:
    operator.set_viewport_size({"width": 1280, "height": 900})
    lists = [f"notifications/{name}/" for name in ("notification", "notificationrequest", "attempt")]
    pages = [f"users/{HEROINE.hex()}/", f"timelines/{world.retried}/"]
    row = f"notifications/notification/{world.retried}/change/"
    found = {}
    for path in (*lists, *pages, row, "registrations/route/", "waku_bridge/inboundenvelope/"):
        operator.goto(f"/admin/{path}")
        found[path] = operator.evaluate(BROKEN)
    assert {path: words for path, words in found.items() if words} == {}


def test_durations_in_tables_stay_on_one_line(world: World, operator: Page) -> None:
    sentence = "no gorush answers: no push is sent, and all of them wait until one answers again " * 3
    began_at = timezone.now() - timedelta(minutes=1)
    times = {"incident_at": began_at, "began_at": began_at, "ended_at": began_at + timedelta(seconds=5.7)}
    Incident.objects.create(indicator="gorush", name="gorush", state=State.RED.value, sentence=sentence, **times)
    cells = {
        "pushserver/incident/": "#result_list .field-lasted",
        "notifications/attempt/": "#result_list .field-latency_ms",
        f"timelines/{world.retried}/": "#timeline td:nth-child(2)",
    }
    for width in (640, 1024, 1280):
        operator.set_viewport_size({"width": width, "height": 900})
        for path, selector in cells.items():
            operator.goto(f"/admin/{path}")
            assert operator.locator(selector).count()
            assert operator.locator(selector).evaluate_all(IN_LINES) == [], (path, width)


@pytest.mark.parametrize(("width", "name"), [(1280, "gatewayerrorrule"), (1340, "notification")])
def test_a_list_is_not_scrolled_sideways(world: World, operator: Page, width: int, name: str) -> None:
    operator.set_viewport_size({"width": width, "height": 900})
    operator.goto(f"/admin/notifications/{name}/")
    show(operator, f"list-{name}")
    assert operator.evaluate(SCROLLED) <= 0


def test_sections_of_the_menu_open_with_the_keyboard(world: World, operator: Page) -> None:
    operator.goto("/admin/find/")
    runs = operator.locator("#nav-sidebar").get_by_role("link", name="Report runs")
    expect(runs).to_have_count(0)
    operator.locator("#nav-sidebar summary", has_text="Reports").focus()
    operator.keyboard.press("Enter")
    expect(runs).to_be_visible()


# Without a mouse ------------------------------------------------------------------------------------------------------


def focused(page: Page) -> str:
    return str(
        page.evaluate("(document.activeElement.getAttribute('aria-label') || document.activeElement.innerText).trim()")
    )


def test_an_operation_is_carried_out_with_the_keyboard_alone(world: World, operator: Page) -> None:
    operator.goto("/admin/drain/start/")
    operator.keyboard.press("Tab")
    operator.keyboard.press("Enter")
    reach(operator, "INPUT")
    operator.keyboard.type("the nodes move")
    reach(operator, "BUTTON")
    assert focused(operator) == "Stop delivery"
    operator.keyboard.press("Enter")

    expect(operator.locator("#drain")).to_contain_text("the nodes move")


def reach(page: Page, tag: str) -> None:
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.tagName") == tag:
            return
    pytest.fail(f"no {tag} within ten steps")


def test_where_the_keyboard_is_can_be_seen(world: World, operator: Page) -> None:
    operator.goto("/admin/notifications/notification/")
    unseen = []
    for _ in range(60):
        operator.keyboard.press("Tab")
        if not operator.evaluate(HAS_OUTLINE):
            unseen.append(operator.evaluate("document.activeElement.outerHTML.slice(0, 200)"))
    assert unseen == []


# The focus of a search box shows in the frame around it, which the theme draws.
HAS_OUTLINE = """() => {
  const style = (element) => getComputedStyle(element)
  const has = (element) => style(element).outlineStyle !== 'none' && parseFloat(style(element).outlineWidth) > 0
  return has(document.activeElement) || has(document.activeElement.parentElement)
}"""


def test_filters_open_and_close_with_the_keyboard(world: World, operator: Page) -> None:
    operator.goto("/admin/registrations/registration/")
    filters = operator.get_by_role("button", name="Filters")
    filters.focus()
    operator.keyboard.press("Enter")
    expect(operator.locator("#changelist-filter a:focus")).to_have_count(1)

    operator.keyboard.press("Escape")
    expect(filters).to_be_focused()
    expect(operator.locator("#changelist-filter")).to_be_hidden()


def test_the_exact_time_is_there_on_hover_and_on_focus(world: World, operator: Page) -> None:
    operator.goto("/admin/notifications/notification/")
    time = operator.locator("#result_list time").first
    exact = time.get_attribute("title")

    assert exact.endswith(" UTC")
    operator.locator("#result_list tbody a").first.focus()
    for _ in range(5):
        operator.keyboard.press("Tab")
        if time.evaluate("element => element === document.activeElement"):
            break
    assert time.evaluate("element => getComputedStyle(element, '::after').content") == f'"{exact}"'
