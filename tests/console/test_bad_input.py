"""Bad input in URLs and forms of the console: it gets an answer and never a server error."""

from typing import Any
from urllib.parse import quote, urlencode

import pytest
from django.contrib import admin
from django.db.models import Model
from django.test import Client
from django.urls import reverse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pushserver.console.toolkit.facts import FactAdmin
from tests.console.routes import MODELS, console_pages
from tests.rig.budget import combinations, examples, first_everyday

pytestmark = pytest.mark.django_db
LISTS = list(MODELS.values())
# The requests change nothing, so the database is not reset between examples.
anything = settings(
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
texts = st.text(st.characters(codec="utf-8"), max_size=40)
values = st.one_of(
    texts,
    st.integers().map(str),
    st.sampled_from(
        [
            *("", "0", "-1", "1", "True", "null", "NaN", "1e999", "9" * 30, "\x00", "%", "٣", "None", "[]"),
            *("2026-11-21T00:00:00+23:59~1", "ff~ff"),
            *("2026-02-30", "0000-00-00", "9999-12-31 23:59:60+99:99", "2026-11-21T00:00:00Z"),
            *("ab" * 64, "ab" * 32, "0x04" + "ab" * 64, "zQ3sh", "a,b", "' OR 1=1 --", "<script>", "../../etc/passwd"),
        ]
    ),
)
LOOKUPS = ("", "__exact", "__in", "__gte", "__lt", "__isnull", "__year", "__contains", "__regex", "__isempty")
# Parameters that Django and the theme read themselves.
OTHERS = [
    *("q", "o", "e", "older", "newer", "all", "id", "_popup", "_to_field", "_facets", "_changelist_filters", "_tabs"),
    *(
        "next",
        "progress",
        "from",
        "to",
        "day",
        "platform",
        "stage",
        "app_topic",
        "page",
        "s",
        "extended",
        "month",
        "pk",
    ),
]


def names_for(model: type[Model]) -> st.SearchStrategy[str]:
    fields = [field.name for field in model._meta.fields]
    looked_up = st.builds(str.__add__, st.sampled_from([*offered_by(model) * 3, *fields]), st.sampled_from(LOOKUPS))
    return st.one_of(looked_up, st.sampled_from(OTHERS), texts)


def offered_by(model: type[Model]) -> list[str]:
    filters = [
        entry[0] if isinstance(entry, tuple) else entry for entry in admin.site.get_model_admin(model).list_filter
    ]
    return [name for name in filters if isinstance(name, str)]


def queries(names: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(st.tuples(names, values), max_size=4).map(urlencode)


@pytest.fixture
def root(everything: None, admin_client: Client) -> Client:
    """A client that may open every page. A server error becomes a response with status 500."""
    admin_client.raise_request_exception = False
    return admin_client


def is_answer(response: Any) -> bool:
    """Return whether a response is no server error, and explains itself if it is a refusal."""
    is_explained = response.status_code != 400 or 'id="refused"' in response.content.decode()
    return response.status_code < 500 and is_explained


@pytest.mark.parametrize("count", first_everyday(3, 10))
@pytest.mark.parametrize("model", LISTS, ids=lambda model: model.__name__)
def test_no_query_is_a_fault_of_a_list(root: Client, model: type[Model], count: int) -> None:
    url = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")

    @settings(anything, max_examples=examples(count))
    @given(query=queries(names_for(model)))
    def ask(query: str) -> None:
        assert is_answer(root.get(f"{url}?{query}"))

    ask()


@pytest.mark.parametrize(
    ("model", "asked"),
    combinations(LISTS, ["__exact=%00", "__regex=[", "__contains=%00", "__in=%00", "=%00", "__isnull=%00"]),
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_value_that_the_database_cannot_read_is_no_fault_of_a_filter(
    root: Client, model: type[Model], asked: str
) -> None:
    url = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
    for name in {*offered_by(model), model._meta.pk.name}:
        assert is_answer(root.get(f"{url}?{name}{asked}")), name


def test_an_empty_field_is_no_fault_of_the_page_of_a_row(root: Client) -> None:
    for page in console_pages():
        if page.name.endswith(("_change", "_delete", "_history")):
            assert is_answer(root.get(page.url.partition("?")[0], {"_to_field": ""})), page.url


FACTS = [model for model in LISTS if isinstance(admin.site.get_model_admin(model), FactAdmin)]


@pytest.mark.parametrize(
    ("model", "asked"),
    combinations(FACTS, ["__regex=x", "__contains=x", "__gte=x", "__in=x"]),
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_filter_of_a_large_table_compares_only_indexed_columns(root: Client, model: type[Model], asked: str) -> None:
    url = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
    statuses = {name: root.get(f"{url}?{name}{asked}").status_code for name in offered_by(model)}
    assert set(statuses.values()) <= {400}, statuses


@pytest.mark.parametrize("count", first_everyday(40, 120))
def test_no_query_is_a_fault_of_any_other_page(root: Client, count: int) -> None:
    left_out = ("admin:logout",)
    urls = [page.url.partition("?")[0] for page in console_pages() if page.name not in left_out]

    @settings(anything, max_examples=examples(count))
    @given(url=st.sampled_from(urls), query=queries(st.one_of(st.sampled_from(OTHERS), texts)))
    def ask(url: str, query: str) -> None:
        assert is_answer(root.get(f"{url}?{query}")), url

    ask()


@pytest.mark.parametrize("count", first_everyday(40, 120))
def test_no_text_in_its_path_is_a_fault_of_a_page(root: Client, count: int) -> None:
    tables = [name.removeprefix("admin:").rpartition("_") for name in MODELS]
    of_rows = [
        f"{app}/{model}/{{}}/{kind}" for app, _, model in tables for kind in ("change/", "history/", "delete/", "")
    ]
    others = [
        *("users/{}/", "users/{}/forget/", "timelines/{}/", "found/{}/", "drain/{}/", "reports/{}/", "reports/{}.csv"),
        *("search/{}/registration/", "search/registrations/{}/", "r/{}/1/", "r/1/{}/", "auth/user/{}/password/"),
        *("registrations/registration/operate/{}/", "notifications/channel/{}/operate/pause/", "{}/", "{}"),
    ]

    @settings(anything, max_examples=examples(count))
    @given(path=st.sampled_from([*of_rows, *others * 5]), text=values)
    def ask(path: str, text: str) -> None:
        for method in (root.get, root.post):
            assert is_answer(method("/admin/" + path.format(quote(text, safe="")))), path

    ask()


@pytest.mark.parametrize("count", first_everyday(50, 160))
def test_no_typed_text_is_a_fault_of_a_form(root: Client, count: int) -> None:
    left_out = {"admin:logout", "admin:login"}
    urls = [page.url for page in console_pages() if page.name not in left_out]
    names = [
        *("q", "why", "since", "confirmed", "preview", "id", "action", "_selected_action", "post", "error", "platform"),
        *("code", "text", "match", "outcome", "position", "name", "scopes", "expires_at_0", "expires_at_1", "replace"),
        *("form-TOTAL_FORMS", "form-INITIAL_FORMS", "form-0-id", "form-0-position", "_save", "index", "username"),
    ]

    @settings(anything, max_examples=examples(count))
    @given(url=st.sampled_from(urls), sent=st.dictionaries(st.sampled_from(names), values, max_size=6))
    def send(url: str, sent: dict[str, str]) -> None:
        assert is_answer(root.post(url, sent)), url

    send()
