"""Words and links of the console: one word for each thing, links to all documentation, and small faults that stay
mended.
"""

import re

import pytest
from coincurve import PrivateKey
from django.conf import settings
from django.urls import reverse
from django_otp.plugins.otp_totp.models import TOTPDevice
from playwright.sync_api import Page, expect

from pushserver.console.documentation import contents, read_page
from pushserver.models import TrafficMinute
from pushserver.tasks import count_traffic
from tests import factories
from tests.budget import first_everyday
from tests.console.test_browser import show
from tests.console.test_find import LOST_DIGITS, make_story
from tests.console.test_operations import staff
from tests.console.test_walk import PUBLIC_KEY, confirm, find, log_in
from tests.console.world import World
from waku_bridge.codec.keys import chat_key, key_hash
from waku_bridge.models import InboundEnvelope

pytestmark = pytest.mark.django_db(transaction=True)
# Links to a form, or to a page outside the console.
OTHERS = {"Drain", "Documentation of the API"}
# Pages are fetched and not rendered, which would take longer. `test_look` renders all pages nightly.
TITLE = """async url => {
    const page = new DOMParser().parseFromString(await (await fetch(url)).text(), 'text/html')
    return [...page.querySelectorAll('h1 [aria-current=page], h1')].at(-1).textContent.trim()
}"""


def test_menu_title_and_documentation_have_one_word_for_each_thing(world: World, operator: Page) -> None:
    operator.locator("#nav-sidebar li a").first.wait_for()
    items = operator.locator("#nav-sidebar li a").all()
    menu = {item.locator("span").last.text_content(): item.get_attribute("href") for item in items}
    documented = (settings.BASE_DIR / "docs" / "console.md").read_text(encoding="utf-8")
    wrong = {}
    for word, url in menu.items():
        assert word in documented, word
        if word not in OTHERS:
            title = operator.evaluate(TITLE, url)
            is_same = title.partition(":")[0] == word[0].upper() + word[1:]
            wrong |= {} if is_same else {word: title}
    assert len(menu) > 40
    assert wrong == {}


def test_types_are_words_and_no_numbers(world: World) -> None:
    html = staff("operator").get("/admin/notifications/notification/").content.decode()
    kinds = set(re.findall(r'<td class="field-type_name[^>]*>([^<]*)<', html))
    assert kinds >= {"message", "mention"}
    assert not [kind for kind in kinds if re.match(r"\d", kind)]


def test_the_documentation_is_read_inside_of_the_console(visitor: Page) -> None:
    log_in(visitor, "support")
    visitor.get_by_role("link", name="Documentation", exact=True).click()
    show(visitor, "documentation-list")
    visitor.get_by_role("link", name="The console: views, search and operator actions").click()
    expect(visitor.locator("h1")).to_contain_text("The console")
    expect(visitor.locator(".prose-page")).to_contain_text("Every action asks for a reason")
    show(visitor, "documentation-console")
    visitor.locator(".prose-page").get_by_role("link", name="delivery.md").first.click()
    expect(visitor).to_have_url(re.compile(r"/admin/documentation/delivery/$"))
    assert visitor.evaluate("document.documentElement.scrollWidth") <= 1400


def test_every_page_of_the_documentation_is_there_and_every_link_of_it_leads_somewhere() -> None:
    pages = [page for _, part in contents() for page in part]
    assert len(pages) > 40
    names = {page.name for page in pages}
    assert {"backup", "installation/README", "installation/systemd", "monitoring/README"} <= names
    base = reverse("documentation_list")
    for page in pages:
        for url in re.findall(rf'href="{base}([^"#]+)/', page.html):
            assert url in names, (page.name, url)
    assert read_page("../README") is None
    assert read_page("decisions/../console") is None


def test_the_api_its_schema_and_the_metrics_are_linked(visitor: Page) -> None:
    log_in(visitor, "support")
    visitor.goto(reverse("documentation_list"))
    targets = {link.get_attribute("href") for link in visitor.locator("main a").all()}
    assert {"/api/docs/", "/api/schema", "/metrics", "/readyz"} <= targets
    for path in ("/api/schema", "/api/schema/", "/api/docs/"):
        answer = visitor.request.get(path)
        assert answer.status == 200, path
    visitor.get_by_role("link", name="Documentation of the API").first.click()
    expect(visitor.get_by_role("button", name="Authorize")).to_be_visible()


def test_viewing_the_page_of_the_second_factor_makes_none(visitor: Page) -> None:
    log_in(visitor, "support")
    visitor.get_by_role("link", name="My second factor").click()
    key = visitor.locator("main code").inner_text()
    visitor.reload()
    assert visitor.locator("main code").inner_text() == key
    assert not TOTPDevice.objects.exists()


@pytest.mark.parametrize(("write", "cut", "missing"), first_everyday(*LOST_DIGITS))
def test_a_chat_key_that_lost_digits_is_reported_and_neither_searched_nor_shown(
    visitor: Page, write: object, cut: int, missing: str
) -> None:
    key = PrivateKey(b"\x05" * 32).public_key.format()
    term = write(key)[:-cut]  # type: ignore[operator]
    factories.make_request()  # the term does not match it
    addresses: list[str] = []
    visitor.on("request", lambda request: addresses.append(request.url))
    log_in(visitor, "support")
    for send in (find, search_registrations):
        send(visitor, term)
        expect(visitor.locator("#main")).to_contain_text(f"looks like a chat key with {missing} missing")
    assert not [address for address in addresses if term[5:] in address]


def search_registrations(page: Page, term: str) -> None:
    page.goto("/admin/registrations/registration/")
    box = page.get_by_role("textbox", name="Search")
    box.fill(term)
    box.press("Enter")


def test_a_hash_that_begins_like_a_chat_key_is_found(visitor: Page) -> None:
    registration = factories.make_registration(public_key_hash=b"\x04" * 64)
    notification = make_story(PUBLIC_KEY)
    request = notification.request
    request.__class__.objects.filter(pk=request.pk).update(message_id=b"\x02" * 32)
    log_in(visitor, "support")
    find(visitor, registration.public_key_hash.hex())
    expect(visitor).to_have_url(re.compile(f"/admin/users/{'04' * 64}/"))
    find(visitor, "02" * 32)
    expect(visitor).to_have_url(re.compile(f"/admin/timelines/{notification.pk}/"))
    find(visitor, chat_key(PUBLIC_KEY))
    expect(visitor).to_have_url(re.compile(key_hash(PUBLIC_KEY).hex()))


def test_a_filter_is_kept_when_rows_that_it_chose_are_dropped(visitor: Page) -> None:
    for state in ("failed", "failed", "failed", "processed"):
        factories.make_envelope(state=state)
    log_in(visitor, "operator")
    visitor.goto("/admin/waku_bridge/inboundenvelope/?state__exact=failed")
    for box in visitor.locator("input.action-select").all()[:2]:
        box.check()
    visitor.locator("select[name=action]").select_option("Drop")
    visitor.get_by_role("button", name="Run").click()
    confirm(visitor, "Drop")

    expect(visitor).to_have_url(re.compile(r"inboundenvelope/\?state__exact=failed$"))
    expect(visitor.locator("#result_list .data-row")).to_have_count(1)
    assert InboundEnvelope.objects.filter(state="dropped").count() == 2


def test_a_chart_begins_when_the_server_does(visitor: Page) -> None:
    count_traffic()
    assert TrafficMinute.objects.count() == 1
    log_in(visitor, "support")
    visitor.goto("/admin/")
    lines = visitor.locator(".board svg.plot .series path")
    points = [path.get_attribute("d") or "" for path in lines.all()]
    assert [path for path in points if path.count("L") + path.count("M") > 1] == []


def test_the_way_past_the_menu_leads_to_what_is_below_the_header(world: World, operator: Page) -> None:
    for path in ("notifications/notification/", "find/", "documentation/console/", f"timelines/{world.retried}/"):
        operator.goto(f"/admin/{path}")
        operator.keyboard.press("Tab")
        expect(operator.get_by_role("link", name="Skip to the content")).to_be_in_viewport()
        operator.keyboard.press("Enter")
        expect(operator.locator("#content")).to_be_focused()
        content, header = (operator.locator(part).bounding_box() for part in ("#content", "#main > header"))
        assert content
        assert header
        assert content["y"] >= 0
        assert content["y"] >= header["y"] + header["height"] - 1 or header["y"] < 0
        expect(operator.get_by_role("link", name="Skip to the content")).not_to_be_in_viewport()
