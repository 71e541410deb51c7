"""The frame of the console: the menu, and refusals, which have a clear sentence and repeat nothing of the request."""

import re
from collections import Counter

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client, RequestFactory

from pushserver.console.pages import labels
from pushserver.console.pages.menu import menu
from tests.rig.logs import capture_logs
from tests.rig.rows import make_staff

TYPED = "zQ3shSomethingSomebodyTyped"
pytestmark = pytest.mark.django_db
AT_FIRST_SIGHT = {
    "support": {"Users and pushes", "You, and help"},
    "operator": {"Users and pushes", "Delivery", "You, and help"},
    "admin": {"Users and pushes", "Delivery", "Staff", "You, and help"},
}


def sections_of(user: User, path: str = "/admin/") -> list[dict[str, object]]:
    request = RequestFactory().get(path)
    request.user = user
    return list(admin.site.get_sidebar_list(request))


@pytest.mark.parametrize("role", AT_FIRST_SIGHT)
def test_the_sections_of_a_role_are_open_and_the_others_closed(role):
    sections = [section for section in sections_of(make_staff(role)) if section["is_open"]]
    assert {str(section["title"]) for section in sections if section.get("title")} == AT_FIRST_SIGHT[role]
    shown = [item for section in sections for item in section["items"] if item["has_permission"]]  # type: ignore[attr-defined]
    assert len(shown) < 24


def test_every_page_stands_in_one_section():
    request = RequestFactory().get("/admin/")
    request.user = make_staff("admin")
    titles = Counter(item["title"] for section in menu(request) for item in section["items"])
    assert len(titles) > 40
    assert set(titles.values()) == {1}


def test_the_section_of_the_page_that_is_shown_is_open(client):
    client.force_login(make_staff("support"))
    for path, open_sections in (("find/", 2), ("waku_bridge/deadletter/", 3)):
        html = client.get(f"/admin/{path}").content.decode()
        assert html.count('class="menu-section" open') == open_sections


# Refusals -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def support():
    client = Client(enforce_csrf_checks=True)
    client.force_login(make_staff("support"))
    return client


def reported(response) -> tuple[int, list[str]]:
    html = response.content.decode()
    assert TYPED not in html
    return response.status_code, re.findall(r'<p id="refused"[^>]*>(.*?)</p>', html)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/admin/auth/user/", 403),
        ("/admin/drain/start/", 403),
        ("/admin/no/such/page/", 404),
        (f"/admin/reports/{TYPED}/", 404),
        (f"/admin/registrations/registration/?payload={TYPED}", 400),
    ],
)
def test_a_page_that_is_not_for_somebody_says_why_keeps_the_menu_and_is_logged_without_its_query(support, path, status):
    with capture_logs() as logged:
        response = support.get(path)

    assert reported(response) == (status, [labels.REFUSED[status]])
    assert 'id="nav-sidebar"' in response.content.decode()
    assert TYPED not in repr(logged)
    if path == "/admin/auth/user/":
        [entry] = [entry for entry in logged if entry["event"] == "page_refused"]
        user_id = int(support.session["_auth_user_id"])
        assert (entry["status"], entry["page"], entry["user_id"]) == (403, "admin:auth_user_changelist", user_id)


def test_a_form_from_before_the_login_says_that_nothing_was_done(support):
    response = support.post("/admin/find/", {"q": TYPED, "csrfmiddlewaretoken": "x" * 64})

    assert reported(response) == (403, [labels.STALE_FORM])


@pytest.mark.parametrize("host", ["elsewhere.example", "x" * 300, "{{1}}"])
def test_outside_of_the_console_and_for_a_foreign_host_name_a_sentence_is_enough(client, host):
    for path, headers, status, sentence in (
        (f"/{TYPED}", {}, 404, labels.REFUSED[404]),
        ("/admin/", {"host": host}, 400, labels.OTHER_HOST),
    ):
        response = client.get(path, headers=headers)
        assert (response.status_code, response.content.decode()) == (status, sentence)
