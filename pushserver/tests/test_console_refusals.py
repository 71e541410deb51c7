"""Refusals of the console: the page has a clear sentence, and repeats nothing of the request."""

import re

import pytest
from django.test import Client
from structlog.testing import capture_logs

from pushserver.console import labels
from tests.rig.rows import make_staff

TYPED = "zQ3shSomethingSomebodyTyped"
pytestmark = pytest.mark.django_db


@pytest.fixture
def support() -> Client:
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
def test_a_page_that_is_not_for_somebody_says_why_and_keeps_the_menu(support: Client, path: str, status: int) -> None:
    response = support.get(path)

    assert reported(response) == (status, [labels.REFUSED[status]])
    assert 'id="nav-sidebar"' in response.content.decode()


def test_a_refused_page_is_logged_without_its_query(support: Client) -> None:
    with capture_logs() as logged:
        support.get("/admin/auth/user/")
        support.get(f"/admin/reports/{TYPED}/")
    [entry] = [entry for entry in logged if entry["event"] == "page_refused"]
    user_id = int(support.session["_auth_user_id"])
    assert (entry["status"], entry["page"], entry["user_id"]) == (403, "admin:auth_user_changelist", user_id)
    assert TYPED not in repr(logged)


def test_a_form_from_before_the_login_says_that_nothing_was_done(support: Client) -> None:
    response = support.post("/admin/find/", {"q": TYPED, "csrfmiddlewaretoken": "x" * 64})

    assert reported(response) == (403, [labels.STALE_FORM])


def test_outside_of_the_console_a_sentence_is_enough(client: Client) -> None:
    response = client.get(f"/{TYPED}")

    assert (response.status_code, response.content.decode()) == (404, labels.REFUSED[404])


@pytest.mark.parametrize("host", ["elsewhere.example", "x" * 300, "{{1}}"])
def test_a_foreign_host_name_is_refused_without_a_fault(client: Client, host: str) -> None:
    response = client.get("/admin/", headers={"host": host})

    assert (response.status_code, response.content.decode()) == (400, labels.OTHER_HOST)
