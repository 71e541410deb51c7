"""Words of the console: one for each thing, a colour for each state, and the documentation that the pages lead to."""

import re
from collections.abc import Iterator
from html import unescape

import pytest
from django.apps import apps
from django.conf import LazySettings, settings
from django.contrib.auth.models import User
from django.test import Client, RequestFactory
from django.urls import reverse

from embedded.demo.people import SEED, make_people
from pushserver.console.pages.documentation import contents, read_page
from pushserver.console.pages.menu import menu
from pushserver.console.toolkit.labels import FAMILIES, label
from pushserver.tests.test_monitoring import PAGES
from spark_reports.nights.status import State as ReportsState
from tests.console.reading import staff
from tests.rig import rows
from waku_bridge.codec.keys import key_hash

# Links to a form, or to a page outside the console.
OTHERS = {"Drain", "Documentation of the API"}
pytestmark = pytest.mark.django_db


def test_menu_title_and_documentation_have_one_word_for_each_thing(admin_client: Client, admin_user: User) -> None:
    request = RequestFactory().get("/admin/")
    request.user = admin_user
    items = {item["title"]: str(item["link"]) for section in menu(request) for item in section["items"]}
    documented = (settings.BASE_DIR / "docs" / "console.md").read_text(encoding="utf-8")
    assert len(items) > 40
    assert [word for word in items if word not in documented] == []
    titles = {word: title_of(admin_client, url) for word, url in items.items() if word not in OTHERS}
    assert {word: title for word, title in titles.items() if title != word[0].upper() + word[1:]} == {}


def title_of(client: Client, url: str) -> str:
    """Return the last part of the title of a page, which is its path through the console, up to a colon."""
    [title] = re.findall(r"<h1[^>]*>(.*?)</h1>", client.get(url).content.decode(), re.DOTALL)
    last = title.rpartition('aria-current="page">')[2]
    return unescape(re.sub(r"<[^>]*>", "", last)).strip().partition(":")[0]


def test_types_are_words_and_no_numbers() -> None:
    for number in (1, 2):
        rows.make_notification(type=number)
    html = staff("operator").get("/admin/notifications/notification/").content.decode()
    assert set(re.findall(r'<td class="field-type_name[^>]*>([^<]*)<', html)) == {"message", "mention"}


# Colours --------------------------------------------------------------------------------------------------------------
OURS = ("registrations", "notifications", "waku_bridge", "xmpp_bridge", "spark_reports", "pushserver")
# Fields with choices that describe a kind and not a state.
NO_STATES = {
    *("Route.token_type", "Channel.token_type", "Queue.token_type", "Halt.token_type"),
    *("InboundEnvelope.message_type", "OutboundReply.message_type"),
    *("InboundEnvelope.path", "DeadLetter.path", "ReportRun.step"),
    *("GatewayErrorRule.platform", "GatewayErrorRule.match", "GatewayErrorRule.origin", "UnknownGatewayError.platform"),
    *("CanaryRun.cause", "CanaryRun.network", "Count.figure", "Alert.event", "AlertLevel.level", "App.style"),
}


def states() -> Iterator[tuple[str, str]]:
    for model in (model for app in OURS for model in apps.get_app_config(app).get_models()):
        for field in model._meta.fields:
            name = f"{model.__name__}.{field.name}"
            if field.choices and name not in NO_STATES and model._meta.default_permissions:  # the console shows it
                yield from ((name, str(value)) for value, _ in field.flatchoices)


def test_every_state_of_every_table_and_of_the_reports_has_a_colour() -> None:
    assert {"Notification.state", "Route.state", "CanaryRun.state"} <= {name for name, _ in states()}
    assert [state for state in states() if state[1] not in FAMILIES] == []
    assert [state for state in ReportsState if state not in FAMILIES] == []
    fields = {f"{model.__name__}.{field.name}" for model in apps.get_models() for field in model._meta.fields}
    assert fields >= NO_STATES


@pytest.mark.parametrize(
    ("word", "html"),
    [
        ("dead_token", '<span class="state-word doubt">dead_token</span>'),
        ("<b>", '<span class="state-word quiet">&lt;b&gt;</span>'),
    ],
)
def test_a_label_shows_the_word_and_not_only_a_colour(word: str, html: str) -> None:
    assert label(word) == html


# Documentation --------------------------------------------------------------------------------------------------------
def test_every_page_of_the_documentation_is_there_and_every_link_of_it_leads_somewhere() -> None:
    pages = [page for _, part in contents() for page in part]
    assert len(pages) > 40
    names = {page.name for page in pages}
    assert {"backup", "installation/README", "installation/systemd", "monitoring/README"} <= names
    assert names >= {f"runbooks/{name}" for name in PAGES}
    base = reverse("documentation_list")
    for page in pages:
        for url in re.findall(rf'href="{base}([^"#]+)/', page.html):
            assert url in names, (page.name, url)
    assert read_page("../README") is None
    assert read_page("decisions/../console") is None


def test_the_documentation_is_read_inside_of_the_console_and_leads_to_api_and_metrics() -> None:
    support = staff("support")
    listed = support.get(reverse("documentation_list")).content.decode()
    page = reverse("documentation", args=["console"])
    for url in (page, "/api/docs/", "/api/schema", "/metrics", "/readyz"):
        assert f'href="{url}"' in listed
    assert title_of(support, page).startswith("The console")
    html = support.get(page).content.decode()
    assert "Every action asks for a reason" in html
    assert support.get(reverse("documentation", args=["nowhere"])).status_code == 404
    assert reverse("documentation", args=["delivery"]) in html
    for url in ("/api/schema", "/api/schema/", "/api/docs/"):
        assert support.get(url).status_code == 200, url


# Demonstration --------------------------------------------------------------------------------------------------------
NAMES = ["Ada", "Ben", "Cleo", "Dan", "Eva", "Finn"]
STAGED_FAULTS = ["Eva", "Finn"]


def test_every_page_shows_that_faults_are_staged_and_find_leads_to_each_person(settings: LazySettings) -> None:
    people, support = make_people(SEED, version=0), staff("support")
    real = support.get("/admin/find/").content.decode()
    assert 'id="demonstration"' not in real
    assert 'id="people"' not in real

    settings.DEMONSTRATION = True
    assert 'id="demonstration"' in support.get("/admin/registrations/registration/").content.decode()
    section = support.get("/admin/find/").content.decode().partition('id="people"')[2].partition("</section>")[0]
    listed = section.split("<li>")[1:]
    for name, person, row in zip(NAMES, people, listed, strict=True):
        assert f'<a href="/admin/users/{key_hash(person.shown.public_key).hex()}/">{person.shown.name}</a>' in row
        assert person.shown.name.startswith(name)
        assert ("staged fault" in row) == (name in STAGED_FAULTS)
