"""Rules for every page of recorded facts, of every app."""

import re
from collections.abc import Sequence
from html import unescape
from itertools import chain
from urllib.parse import urlencode

import pytest
from coincurve import PrivateKey
from django.contrib import admin
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from pushserver.console.toolkit.facts import FactAdmin
from registrations.models import Registration
from tests.console.reading import queries_of
from tests.console.routes import make_one_of_each_fact
from tests.rig import rows
from tests.rig.budget import combinations, first_everyday
from tests.rig.rows import BEHIND
from waku_bridge.codec.keys import chat_key, key_hash

STAFF_APPS = {"admin", "pushserver"}  # their tables record staff actions and have tests of their own
MODELS = [
    model
    for model, page in admin.site._registry.items()
    if isinstance(page, FactAdmin) and model._meta.app_label not in STAFF_APPS
]
pytestmark = pytest.mark.django_db
every_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
# For a behaviour that all pages inherit from one class.
one_model = pytest.mark.parametrize("model", first_everyday(*MODELS), ids=lambda model: model.__name__)


def every_model_and(names: str, *values: Sequence[object]) -> pytest.MarkDecorator:
    """Parametrize a test with every model and each of these values."""
    return pytest.mark.parametrize(
        f"model, {names}", combinations(MODELS, *values), ids=lambda value: getattr(value, "__name__", None)
    )


def make_rows(count: int = 1) -> None:
    """Make ``count`` rows of every kind that refer to each other."""
    for _ in range(count):
        make_one_of_each_fact(device={"state": "unregistered", "route": None, "ended_at": timezone.now()})


def list_url(model: type[Model], **query: str) -> str:
    return f"{reverse(f'admin:{model._meta.app_label}_{model._meta.model_name}_changelist')}?{urlencode(query)}"


@one_model
def test_an_empty_list_reports_that_it_is_empty(admin_client: Client, model: type[Model]) -> None:
    assert "Nothing found." in admin_client.get(list_url(model)).content.decode()


@every_model
def test_a_list_leads_to_the_page_of_each_row(admin_client: Client, model: type[Model]) -> None:
    make_rows(2)
    urls = set(rows_of(model, admin_client.get(list_url(model)).content.decode()))
    assert [admin_client.get(url).status_code for url in urls] == [200, 200]


def test_a_list_takes_as_many_queries_for_two_pages_of_rows_as_for_one(admin_client: Client) -> None:
    make_rows(1)
    for_one = {model: len(queries_of(admin_client, list_url(model))) for model in MODELS}
    make_rows(59)
    for model, number in for_one.items():
        queries = queries_of(admin_client, list_url(model))
        assert len(queries) <= number, model
        assert "next page" in admin_client.get(list_url(model)).content.decode()
        assert not [sql for sql in queries if "COUNT(*)" in sql]


def follow(client: Client, url: str, text: str) -> list[str]:
    """Load a page, follow the links with this text one after the other, and return all pages."""
    pages = [client.get(url).content.decode()]
    while link := re.search(rf'href="([^"]+)">[^<]*{text}', pages[-1]):
        pages.append(client.get(url.partition("?")[0] + unescape(link[1])).content.decode())
    return pages


def rows_of(model: type[Model], page: str) -> list[str]:
    return re.findall(rf'href="(/admin/{model._meta.app_label}/{model._meta.model_name}/[^"?]+/change/)', page)


@one_model
def test_pages_follow_each_other_to_the_last_row_and_back(admin_client: Client, model: type[Model]) -> None:
    make_rows(120)

    pages = follow(admin_client, list_url(model), "next page")
    last_page = re.search(r'href="([^"]+)">[^<]*next page', pages[-2])
    assert last_page
    back = follow(admin_client, list_url(model).partition("?")[0] + unescape(last_page[1]), "previous page")

    rows, rows_back = ([rows_of(model, page) for page in listed] for listed in (pages, [*reversed(back)]))
    assert [len(page) for page in rows] == [50, 50, 20]
    assert len({*chain(*rows)}) == 120
    # Going back, pages are full at the end, and the last of them is the first page.
    assert [*chain(*rows_back)][-70:] == [*chain(*rows)][-70:]
    assert rows_back[0] == rows[0]


@one_model
def test_rows_of_the_same_moment_are_on_one_page_each(admin_client: Client, model: type[Model]) -> None:
    make_rows(60)
    field = admin.site.get_model_admin(model).ordering[0].removeprefix("-")
    if field != "pk":
        for table in BEHIND.get(model, (model,)):
            table._default_manager.update(**{field: timezone.now()})

    pages = follow(admin_client, list_url(model), "next page")

    assert sorted(len(rows_of(model, page)) for page in pages) == [10, 50]
    assert len({url for page in pages for url in rows_of(model, page)}) == 60


def test_rows_that_come_in_meanwhile_do_not_move_a_page(admin_client: Client) -> None:
    for _ in range(60):
        rows.make_registration()
    first = admin_client.get(list_url(Registration)).content.decode()
    link = re.search(r'href="([^"]+)">[^<]*next page', first)
    assert link
    second = rows_of(
        Registration, admin_client.get(list_url(Registration) + link[1].removeprefix("?")).content.decode()
    )

    for _ in range(5):
        rows.make_registration()

    again = admin_client.get(list_url(Registration) + link[1].removeprefix("?")).content.decode()
    assert rows_of(Registration, again) == second


@every_model_and(
    "query",
    [
        *("older=0", "newer=-1", "older=x", f"newer={'9' * 30}", "older=~", "newer=%00", "older=2026-11-21~"),
        *("newer=2026-11-21T00:00:00Z~zz", "older=2026-13-41T00:00:00Z~1", "newer=2026-11-21T00:00:00%2B23:59~1"),
        *("older=0001-01-01T00:00:00%2B23:59~1", "newer=9999-12-31T23:59:59-23:59~1", "q=%00", "q=nonsense"),
        *(f"q=0x04{'ab' * 64}", "q=12345678%20nonsense"),
    ],
)
def test_an_invalid_position_or_term_in_the_url_of_a_list_is_no_fault(
    admin_client: Client, model: type[Model], query: str
) -> None:
    assert admin_client.get(f"{list_url(model)}{query}").status_code in {200, 302}


@one_model
def test_a_url_cannot_choose_an_order_without_an_index(admin_client: Client, model: type[Model]) -> None:
    make_rows(3)

    as_always = rows_of(model, admin_client.get(list_url(model)).content.decode())

    assert rows_of(model, admin_client.get(list_url(model, o="2")).content.decode()) == as_always


@every_model
def test_every_filter_that_is_offered_works_and_clears_the_others(admin_client: Client, model: type[Model]) -> None:
    make_rows()
    for choice in choices(admin_client.get(list_url(model)).content.decode()):
        response = admin_client.get(list_url(model).rstrip("?") + choice)
        assert response.status_code == 200
        assert max(link.count("=") for link in choices(response.content.decode())) == 1


def choices(html: str) -> list[str]:
    return [unescape(choice) for choice in re.findall(r'<li[^>]*>\s*<a href="(\?[^"]*)"', html)]


@every_model_and(
    "lookup",
    ["address_digest__gt", "access_token_digest", "payload__isnull", "route__address_digest__gt", "pk__gt"],
)
def test_a_url_cannot_filter_by_a_lookup_that_is_not_offered(
    admin_client: Client, model: type[Model], lookup: str
) -> None:
    assert admin_client.get(list_url(model, **{lookup: "a"})).status_code == 400


@pytest.mark.parametrize("query", [{"state__exact": "no such state"}, {"state__exact": ""}])
def test_an_invalid_choice_of_a_filter_queries_no_rows(admin_client: Client, query: dict[str, str]) -> None:
    make_rows()

    with CaptureQueriesContext(connection) as queries:
        response = admin_client.get(list_url(Registration, **query))

    assert response.status_code in {200, 302}
    assert not [sql for sql in queries.captured_queries if 'FROM "registrations_registration"' in sql["sql"]]


@every_model_and("term", ["'; --", "%", "\\x00ff", "0x", "é" * 9, "a" * 5000, "zQ3sh", "0x04", "12345678 nonsense"])
def test_nonsense_in_the_search_box_is_reported_and_not_repeated(
    admin_client: Client, model: type[Model], term: str
) -> None:
    response = admin_client.post(search_url(model), {"q": term}, follow=True)

    assert response.status_code == 200
    assert "Nothing was searched" in response.content.decode()
    assert "q=" not in response.redirect_chain[0][0]


def test_a_search_keeps_the_filters_and_one_for_nothing_shows_everything(admin_client: Client) -> None:
    filtered = f"{search_url(Registration)}?state__exact=active&q=old&older=3&newer=4&e=1"
    searched = admin_client.post(filtered, {"q": "ab" * 64})
    assert searched.url == f"/admin/registrations/registration/?state__exact=active&q={'ab' * 64}"
    assert admin_client.post(search_url(Registration), {"q": " "}).url == "/admin/registrations/registration/?"


@pytest.mark.parametrize("path", ["/admin/search/auth/user/", "/admin/search/no/such/"])
def test_only_lists_of_facts_are_searched_this_way(admin_client: Client, path: str) -> None:
    assert admin_client.post(path, {"q": "ab" * 64}).status_code == 404


def test_a_chat_key_never_stands_in_a_url(admin_client: Client) -> None:
    key = PrivateKey(b"\x05" * 32).public_key.format()
    almost = chat_key(key)[:-1]
    for pasted in (chat_key(key), chat_key(key)[2:], key.hex(), "0x" + key.hex(), almost, chat_key(key)[:40]):
        location = admin_client.post(search_url(Registration), {"q": pasted}).url
        assert pasted.removeprefix("0x")[4:20] not in location
    assert key_hash(key).hex() in admin_client.post(search_url(Registration), {"q": chat_key(key)}).url


def search_url(model: type[Model]) -> str:
    return reverse("search_facts", args=[model._meta.app_label, model._meta.model_name])
