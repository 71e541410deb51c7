"""Console while PostgreSQL is down, hangs, and is back."""

import threading
from collections.abc import Iterator

import pytest
from django.db import OperationalError, connection, transaction
from django.test import Client

from kit.db.reasons import UNAVAILABLE
from pushserver.console.health.verdicts import State
from pushserver.console.models import Incident
from pushserver.console.pages import without_database
from pushserver.console.pages.without_database import DatabaseWatch

pytestmark = pytest.mark.django_db


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> DatabaseWatch:
    own = DatabaseWatch()
    monkeypatch.setattr(without_database, "database_watch", lambda: own)
    monkeypatch.setattr(without_database, "FRESH_SECONDS", -1.0)
    return own


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The results of the next database checks."""
    found = [""]
    monkeypatch.setattr(without_database.asking, "ask_database", lambda: {"database": found[0]})
    return found


@pytest.mark.usefixtures("watch")
@pytest.mark.parametrize("path", ["/admin/", "/admin/login/", "/admin/registrations/registration/?q=0x12"])
def test_each_page_shows_only_the_outage_its_beginning_and_its_remedy(
    client: Client, asked: list[str], path: str
) -> None:
    asked[0] = UNAVAILABLE

    response = client.get(path)

    html = response.content.decode()
    assert (response.status_code, response["Retry-After"], response["Cache-Control"]) == (503, "2", "no-store")
    assert "Nothing is processed: PostgreSQL does not answer" in html
    assert "Start PostgreSQL, or correct DATABASE_URL." in html
    assert 'http-equiv="refresh"' in html
    assert "0x12" not in html


@pytest.mark.usefixtures("watch")
def test_an_open_page_becomes_the_page_of_the_outage(admin_client: Client, asked: list[str]) -> None:
    asked[0] = "migrations not applied: 1"

    response = admin_client.get("/admin/", headers={"HX-Request": "true"})

    assert response["HX-Refresh"] == "true"
    assert "Run <code>manage.py migrate</code>." in response.content.decode()


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A PostgreSQL that receives the check and does not answer."""
    is_over = threading.Event()
    monkeypatch.setattr(without_database, "ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(without_database.asking, "ask_database", lambda: {"database": str(is_over.wait(60))[:0]})
    yield is_over
    is_over.set()


def test_concurrent_pages_wait_for_a_hanging_database_once(
    client: Client, silent: threading.Event, watch: DatabaseWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {client.get("/admin/login/").status_code for _ in range(5)}
    assert answers == {503}
    assert watch._asked
    silent.set()
    watch._asked.result(60)
    monkeypatch.setattr(without_database, "ANSWER_SECONDS", 60)
    assert client.get("/admin/login/").status_code == 200


@pytest.mark.usefixtures("watch", "asked")
def test_a_page_that_loses_the_database_becomes_the_page_of_the_outage(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OperationalError

    client.raise_request_exception = False
    monkeypatch.setattr("django.contrib.sessions.backends.db.SessionStore.load", fail)
    client.cookies["sessionid"] = "x" * 32

    response = client.get("/admin/")

    assert response.status_code == 503
    assert "PostgreSQL does not answer" in response.content.decode()


def test_a_slow_page_is_not_reported_as_a_database_outage(
    client: Client, asked: list[str], watch: DatabaseWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL statement_timeout = '10ms'")
            cursor.execute("SELECT pg_sleep(60)")

    client.raise_request_exception = False
    monkeypatch.setattr("django.contrib.sessions.backends.db.SessionStore.load", load)
    client.cookies["sessionid"] = "x" * 32

    with transaction.atomic():
        response = client.get("/admin/")
        transaction.set_rollback(True)

    assert asked == [""]
    assert (response.status_code, watch.since) == (500, None)


def test_any_number_of_pages_checks_the_database_at_most_twice_a_second(
    client: Client, watch: DatabaseWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[None] = []
    monkeypatch.setattr(without_database, "FRESH_SECONDS", 60.0)
    monkeypatch.setattr(without_database.asking, "ask_database", lambda: {"database": questions.append(None) or ""})
    assert {client.get("/admin/login/").status_code for _ in range(10)} == {200}
    assert (len(questions), watch.since) == (1, None)


def test_an_outage_of_the_database_is_recorded_once_afterwards(
    admin_client: Client, asked: list[str], watch: DatabaseWatch
) -> None:
    asked[0] = UNAVAILABLE
    admin_client.get("/admin/")
    began_at = watch.since
    asked[0] = ""
    admin_client.get("/admin/")

    [noted] = Incident.objects.filter(indicator="database")
    assert (noted.began_at, noted.state, noted.sentence) == (began_at, State.RED.value, UNAVAILABLE)
    assert noted.ended_at


def test_other_answers_do_not_wait_for_the_database(client: Client, silent: threading.Event) -> None:
    assert not silent.is_set()
    assert client.get("/healthz").status_code == 200
