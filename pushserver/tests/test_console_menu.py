"""The menu: sections by task, few of them open for each role, and each page in one section."""

from collections import Counter

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client, RequestFactory

from pushserver.console.frame.menu import menu
from pushserver.roles import seed_roles
from tests.rig.rows import make_staff

pytestmark = pytest.mark.django_db
AT_FIRST_SIGHT = {
    "support": {"Users and pushes", "You, and help"},
    "operator": {"Users and pushes", "Delivery", "You, and help"},
    "admin": {"Users and pushes", "Delivery", "Staff", "You, and help"},
}


def member_of(role: str) -> User:
    seed_roles()
    return make_staff(role)


def sections_of(user: User, path: str = "/admin/") -> list[dict[str, object]]:
    request = RequestFactory().get(path)
    request.user = user
    return list(admin.site.get_sidebar_list(request))


@pytest.mark.parametrize("role", AT_FIRST_SIGHT)
def test_the_sections_of_a_role_are_open_and_the_others_closed(role: str) -> None:
    sections = [section for section in sections_of(member_of(role)) if section["is_open"]]
    assert {str(section["title"]) for section in sections if section.get("title")} == AT_FIRST_SIGHT[role]
    shown = [item for section in sections for item in section["items"] if item["has_permission"]]  # type: ignore[attr-defined]
    assert len(shown) < 24


def test_every_page_stands_in_one_section() -> None:
    request = RequestFactory().get("/admin/")
    request.user = member_of("admin")
    titles = Counter(item["title"] for section in menu(request) for item in section["items"])
    assert len(titles) > 40
    assert set(titles.values()) == {1}


def test_the_section_of_the_page_that_is_shown_is_open() -> None:
    client = Client()
    client.force_login(member_of("support"))
    for path, open_sections in (("find/", 2), ("waku_bridge/deadletter/", 3)):
        html = client.get(f"/admin/{path}").content.decode()
        assert html.count('class="menu-section" open') == open_sections
