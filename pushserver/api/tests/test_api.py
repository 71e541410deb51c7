"""The API as programs use it: through the whole stack of middleware, with real rows; and its tokens."""

import re
from collections.abc import Callable
from contextlib import closing
from datetime import date, timedelta
from socket import socket
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid4

import pytest
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.sessions.models import Session
from django.core.cache import cache
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from drf_spectacular.generators import SchemaGenerator

from kit.buckets.shared import SharedBuckets
from pushserver.api.answers import number_of
from pushserver.console.models import AccessRecord, ApiToken, WakuLink
from spark_reports.models import PublishedDay
from tests.limits.page import limit
from tests.rig import reports, rows
from tests.rig.rows import make_staff

pytestmark = pytest.mark.django_db
V1 = "/api/v1"
ENDPOINTS = {
    "status/": "status",
    "channels/": "status",
    "canary/": "status",
    f"registrations/?key_hash={'ab' * 64}": "registrations",
    f"notifications/?key_hash={'ab' * 64}": "notifications",
    "error-rates/": "reports",
    "token-churn/": "reports",
    "anomalies/": "reports",
}
every_endpoint = pytest.mark.parametrize("path", ENDPOINTS)
Api = Callable[..., Any]


@pytest.fixture(autouse=True)
def _nobody_called_yet(monkeypatch):
    cache.clear()
    monkeypatch.setattr("pushserver.console.toolkit.throttling.own_buckets", lambda own=SharedBuckets(): own)  # noqa: B008


def caller(*scopes: str, **details: Any) -> Api:
    """Return a function that calls the API with a new token."""
    now = timezone.now()
    name = f"test {ApiToken.objects.count()}"
    scopes_or_all = list(scopes or ApiToken.Scope.values)
    text = ApiToken(name=name, scopes=scopes_or_all, **details).issue(by="anna", now=now).text
    client = Client(headers={"authorization": f"Bearer {text}"})
    return lambda path, **query: client.get(f"{V1}/{path}", query)


@pytest.fixture
def api():
    return caller()


def is_problem(response: Any, status: int) -> bool:
    assert response.headers["Content-Type"] == "application/problem+json"
    reported = response.json()
    return (response.status_code, reported["status"], reported["type"]) == (status, status, "about:blank")


@every_endpoint
def test_a_token_opens_what_its_scope_names_and_nothing_else(path):
    for scope in ApiToken.Scope.values:
        expected = 403 if scope != ENDPOINTS[path] else 200
        assert caller(scope)(path).status_code == expected, scope


@every_endpoint
@pytest.mark.parametrize("header", ["", "Bearer", "Bearer psk_wrong", "Token x", "Bearer \x00é", "Basic YTpi"])
def test_a_call_without_a_token_is_refused(path, header):
    response = Client(headers={"authorization": header} if header else {}).get(f"{V1}/{path}")

    assert is_problem(response, 401)
    assert response.headers["WWW-Authenticate"] == "Bearer"


def test_a_session_of_the_console_opens_nothing(admin_client):
    assert admin_client.get(f"{V1}/status/").status_code == 401


def test_a_token_ends_when_it_is_revoked_or_expires():
    now = timezone.now()
    revoked = caller()
    token = ApiToken.objects.get()

    assert [ApiToken.revoke([token.pk], now=now) for _ in range(2)] == [1, 0]
    assert is_problem(revoked("channels/"), 401)
    assert is_problem(caller(expires_at=now - timedelta(seconds=1))("channels/"), 401)
    assert caller(expires_at=now + timedelta(minutes=1))("channels/").status_code == 200


def test_a_token_is_kept_as_a_digest_only_and_needs_scopes_that_exist():
    row = ApiToken(name="test", scopes=["status"]).issue(by="anna", now=timezone.now())
    text = row.text

    with connection.cursor() as cursor:
        cursor.execute("SELECT row_to_json(t)::text FROM pushserver_apitoken t")
        stored = cursor.fetchone()[0]
    assert text not in stored
    assert text.startswith(row.prefix)
    assert text.encode().hex()[24:] not in stored
    for scopes in ([], ["everything"], ["status", "nothing"]):
        with pytest.raises(ValueError, match="Scopes are"):
            ApiToken(name="test", scopes=scopes).issue(by="anna", now=timezone.now())


def test_the_api_returns_the_registrations_of_a_key(api):
    registration = rows.make_registration()
    rows.make_registration()

    (reported,) = api("registrations/", key_hash=bytes(registration.public_key_hash).hex()).json()["results"]

    assert (reported["installation_id"], reported["version"]) == (registration.installation_id, registration.version)
    assert (reported["state"], reported["route"]["state"]) == ("active", "active")
    assert api("registrations/", installation_id=registration.installation_id).json()["results"] == [reported]


@pytest.mark.parametrize("spell", [str, str.upper, lambda text: text.replace("-", "")])
@pytest.mark.parametrize("sent", [str, str.upper, lambda text: text.replace("-", "").upper()])
def test_an_installation_is_found_however_its_id_is_spelled(api, spell, sent):
    installation_id = str(uuid4())
    rows.make_registration(installation_id=sent(installation_id))

    (reported,) = api("registrations/", installation_id=spell(installation_id)).json()["results"]

    assert reported["installation_id"] == sent(installation_id)


def test_the_api_returns_a_notification_with_its_request_and_attempts(api):
    notification = rows.make_notification()
    rows.make_attempt(notification, outcome="transient", code="unreachable", latency_ms=12)

    message_id = bytes(notification.request.message_id).hex()
    [listed] = api("notifications/", message_id=message_id).json()["results"]
    reported = api(f"notifications/{listed['id']}/").json()

    assert [attempt["code"] for attempt in reported["attempts"]] == ["unreachable"]
    assert reported["request"]["amm_message_id"] == bytes(notification.request.request_key).hex()
    assert reported["id"] == listed["id"]


# A parameter that is empty after cleaning filters nothing.
NO_FILTERS = ["registrations/", "notifications/", "registrations/?key_hash="]
SPACES = ["registrations/?key_hash=%20", "registrations/?installation_id=%09%20"]
SPACES += ["notifications/?message_id=%20&key_hash=%0A", "registrations/?limit=5"]


@limit("only for one key hash, installation or message, else {status}.")
@pytest.mark.parametrize("path", [*NO_FILTERS, *SPACES])
def test_a_list_of_rows_about_people_needs_a_filter(api, path, status):
    response = api(path)

    assert is_problem(response, status)
    assert "key_hash" in response.json()["errors"]


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        ("registrations/", "key_hash", "nonsense"),
        ("registrations/", "key_hash", "ab" * 63),
        ("registrations/", "installation_id", "' OR 1=1"),
        ("notifications/", "message_id", "\x00" * 64),
        ("error-rates/", "day", "yesterday"),
        ("error-rates/", "hour", "noon"),
        ("canary/", "state", "sick"),
        ("xmpp-canary/", "state", "sick"),
    ],
)
def test_a_wrong_parameter_is_named(api, path, name, value):
    response = api(path, **{name: value})

    assert is_problem(response, 400)
    assert set(response.json()["errors"]) == {name}


def test_an_unknown_address_is_answered_with_a_problem(api):
    for path in ("notifications/987654/", "nothing/", "channels/?cursor=x"):
        assert is_problem(api(path), 404)


def test_an_endpoint_that_reads_accepts_no_other_method(api):
    text = ApiToken(name="another", scopes=ApiToken.Scope.values).issue(by="anna", now=timezone.now()).text
    client = Client(headers={"authorization": f"Bearer {text}"})

    for method in (client.post, client.put, client.patch, client.delete, client.options):
        for path in ("channels/", "status/", "notifications/1/"):
            assert is_problem(method(f"{V1}/{path}"), 405)


def test_too_many_calls_are_refused(settings, monkeypatch):
    """Many IPv6 addresses of one network share one limit of wrong tokens."""
    settings.API_CALLS_PER_MINUTE = 2
    monkeypatch.setattr("pushserver.console.toolkit.throttling.ANONYMOUS_PER_MINUTE", 2)
    one, other = caller(), caller()

    assert [one("channels/").status_code for _ in range(3)] == [200, 200, 429]
    assert other("channels/").status_code == 200
    assert is_problem(one("channels/"), 429)
    addresses = [f"2001:db8::{number:x}" for number in range(4)]
    codes = [Client(REMOTE_ADDR=address).get(f"{V1}/channels/").status_code for address in addresses]
    assert codes == [401, 401, 429, 429]
    assert Client(REMOTE_ADDR="2001:db8:0:1::1").get(f"{V1}/channels/").status_code == 401


def test_without_redis_the_status_is_answered_and_no_call_is_throttled(api, settings):
    with closing(socket()) as free:
        free.bind(("127.0.0.1", 0))
        away = f"redis://127.0.0.1:{free.getsockname()[1]}/0"  # bound, but not listening
        settings.REDIS_URL, settings.CACHES = away, {"default": {**settings.CACHES["default"], "LOCATION": away}}

        reported = api("status/")
        assert (reported.status_code, reported.json()["status"]) == (200, "not ready")
        [broker] = [found for found in reported.json()["indicators"] if found["id"] == "broker"]
        assert (broker["state"], broker["sentence"]) == ("act now", "Redis does not answer")
        assert is_problem(Client().get(f"{V1}/channels/"), 401)


def test_a_long_list_comes_in_pages_that_count_nothing(api):
    request = rows.make_request()
    made = [rows.make_notification(request=request, position=position).pk for position in range(7)]
    path, seen = f"{V1}/notifications/?page_size=3&message_id={bytes(request.message_id).hex()}", []

    with CaptureQueriesContext(connection) as queries:
        while path:
            page = api(path.split(f"{V1}/", 1)[1]).json()
            seen += [row["id"] for row in page["results"]]
            path = page["next"]

    assert [number_of(each) for each in seen] == made[::-1]
    assert not [query for query in queries.captured_queries if "COUNT(" in query["sql"]]


@pytest.mark.parametrize("path", ["error-rates/", "token-churn/", "anomalies/"])
def test_the_api_returns_reports_by_day_and_no_made_up_one(api, path):
    """A program cannot see the banner of made-up reports."""
    days = (date(2026, 11, 1), date(2026, 11, 2))
    for day in days:
        for make in (reports.make_rate, reports.make_churn, reports.make_anomaly):
            make(day)

    assert [row["day"] for row in api(path, from_day="2026-11-02").json()["results"]] == ["2026-11-02"]
    assert len(api(path, bridge="waku").json()["results"]) == 2
    assert api(path, bridge="xmpp").json()["results"] == []
    if path == "error-rates/":
        assert api(path, stage="dispatch", day="2026-11-01").json()["results"][0]["rate"] == 0.05
    for day in days:
        reports.publish(day)
    assert len(api(path).json()["results"]) == 2
    PublishedDay.objects.update(is_made_up=True)
    assert api(path).json()["results"] == []


def test_the_api_returns_the_channels(api):
    rows.make_channel((1, "im.status"))
    rows.make_channel((2, ""))
    rows.make_halt("paused", (1, "im.status"), by="ann", reason="x")

    reported = {row["app_topic"]: row for row in api("channels/").json()["results"]}

    paused, running = reported["im.status"], reported[""]
    assert (paused["platform"], paused["state"]) == ("APN", "paused")
    assert (paused["reason"], paused["changed_by"]) == ("x", "ann")
    assert (running["state"], running["since"], running["deaths_distrusted_since"]) == ("running", None, None)


@pytest.mark.parametrize(
    ("path", "make", "broken_link", "cause", "results"),
    [
        ("canary/", rows.make_canary_run, "register_answer", "bridge", [("register", "held", 4),
         ("register_answer", "broken", None), *((link, "not reached", None) for link in WakuLink.values[2:])]),
        ("xmpp-canary/", rows.make_xmpp_canary_run, "push", "xmpp_server", [("register", "held", 4),
         ("push", "broken", None), ("gateway", "not reached", None), ("unregister", "not reached", None)]),
    ],
)  # fmt: skip
def test_the_api_returns_the_last_round_trips_of_a_canary_link_by_link(api, path, make, broken_link, cause, results):
    make(times={"register": 3})
    make(state="broken", broken_link=broken_link, cause=cause, times={"register": 4})

    broken, passed = api(path).json()["results"]

    assert (broken["state"], broken["broken_link"], broken["cause"]) == ("broken", broken_link, cause)
    assert [(link["link"], link["result"], link["ms"]) for link in broken["links"]] == results
    assert [link["link"] for link in passed["links"]] == [link for link, _, _ in results]
    assert not {"device", "pseudonym"} & passed.keys()
    assert [run["id"] for run in api(path, state="passed").json()["results"]] == [passed["id"]]


def test_reading_personal_records_is_noted_in_the_access_log(api):
    notification = rows.make_notification()
    key_hash = bytes(notification.public_key_hash).hex()

    [listed] = api("notifications/", key_hash=key_hash).json()["results"]
    api(f"notifications/{listed['id']}/")
    api("channels/")

    opened = list(AccessRecord.objects.values_list("page", "object_id", "user"))
    assert opened == [("api.notifications", str(notification.pk), None)] * 2


def test_nobody_reads_notifications_by_counting_and_each_attempt_is_noted(api):
    notifications = [rows.make_notification() for _ in range(3)]
    key_hash = bytes(notifications[0].public_key_hash).hex()
    [own] = [row["id"] for row in api("notifications/", key_hash=key_hash).json()["results"]]
    near = [str(UUID(int=UUID(own).int ^ 1 << bit)) for bit in range(0, 128, 8)]
    tried = [*near, *(number for each in notifications for number in (str(UUID(int=each.pk)), str(each.pk)))]
    AccessRecord.objects.all().delete()

    assert {api(f"notifications/{each}/").status_code for each in tried} == {404}

    noted = AccessRecord.objects.order_by("pk").values_list("page", "object_id")
    assert list(noted) == [("api.notifications.missed", each) for each in tried]


def test_anybody_may_read_the_schema_and_it_is_made_once(client):
    first = client.get("/api/schema")

    with patch.object(SchemaGenerator, "get_schema", side_effect=AssertionError):
        again = client.get("/api/schema/?format=json", HTTP_ACCEPT="text/html")

    assert (first.status_code, again.status_code, again.content) == (200, 200, first.content)
    assert first.content == (settings.BASE_DIR / "docs/openapi.yaml").read_bytes()
    assert first["Cache-Control"] == "public, max-age=3600"


def test_the_docs_page_has_no_inline_script(client):
    page = client.get("/api/docs/").content.decode()

    assert "swagger" in page
    assert not [part for part in page.split("<script")[1:] if "src=" not in part.split(">")[0]]


# Tokens in the console and on the command line: one is shown once, and is nowhere else --------------------------------
ADD = "/admin/pushserver/apitoken/add/"
TEXT = r"psk_[\w-]{43}"
FORM = {"name": "monitoring", "scopes": ["status"]}


def test_an_admin_makes_a_token_sees_it_once_and_revokes_it(client: Client) -> None:
    client.force_login(make_staff("admin"))
    assert b'name="_save"' in client.get(ADD).content
    made = client.post(ADD, FORM)
    (text,) = re.findall(TEXT, made.content.decode())
    token = ApiToken.objects.get()
    call = {"authorization": f"Bearer {text}"}

    assert (token.created_by, token.scopes) == ("admin", ["status"])
    assert Client(headers=call).get("/api/v1/channels/").status_code == 200
    page = client.get(f"/admin/pushserver/apitoken/{token.pk}/change/").content.decode()
    assert text not in page
    # No cookie, session or row holds it.
    assert "no-store" in made["Cache-Control"]
    assert text not in str(client.cookies)
    assert [session.session_key for session in Session.objects.all() if text in str(session.get_decoded())] == []
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names():
            cursor.execute(f'SELECT count(*) FROM "{table}" AS row WHERE row::text LIKE %s', [f"%{text}%"])
            assert cursor.fetchone() == (0,), table

    (revoke,) = re.findall(r'href="([^"]+/operate/revoke/[^"]+)"', page)
    assert b"cannot be undone" in client.get(revoke).content
    sent = {"id": token.pk, "why": "no longer monitored", "confirmed": "1"}
    assert [client.post(revoke, sent).status_code for _ in range(2)] == [302, 302]

    assert Client(headers=call).get("/api/v1/channels/").status_code == 401
    revoked = LogEntry.objects.get(action_flag=2)
    assert revoked.change_message == "Revoked tokens: 1. Why: no longer monitored"
    assert LogEntry.objects.filter(action_flag=1).get().object_repr == str(token)


@pytest.mark.parametrize("role", ["support", "operator"])
def test_nobody_else_makes_or_revokes_tokens(client: Client, role: str) -> None:
    call_command("api_token", "create", "x", "--scope", "status")
    client.force_login(make_staff(role))

    assert client.get(ADD).status_code == 403
    sent = {"id": ApiToken.objects.get().pk, "why": "x", "confirmed": "1"}
    assert client.post("/admin/pushserver/apitoken/operate/revoke/", sent).status_code == 403
    assert ApiToken.objects.get().revoked_at is None


def test_a_form_that_is_sent_twice_makes_one_token_which_is_not_shown_again(client: Client) -> None:
    client.force_login(make_staff("admin"))

    (text,) = re.findall(TEXT, client.post(ADD, FORM).content.decode())
    again = client.post(ADD, FORM)
    page = client.get(again.url).content.decode()

    assert "There is a token of this name already" in page
    assert text not in page
    assert "messages" not in client.cookies
    assert (ApiToken.objects.count(), LogEntry.objects.count()) == (1, 1)
    with pytest.raises(CommandError, match="of this name"):
        call_command("api_token", "create", "monitoring", "--scope", "status")
    ApiToken.objects.update(revoked_at=timezone.now())
    client.post(ADD, FORM)
    assert ApiToken.objects.count() == 2


def test_the_command_line_makes_lists_and_revokes(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("api_token", "create", "monitoring", "--scope", "status", "--scope", "reports", "--days", "30")
    assert re.fullmatch(f"{TEXT}\n", capsys.readouterr().out)
    token = ApiToken.objects.get()

    call_command("api_token", "list")
    assert f"{token.pk}\tmonitoring" in capsys.readouterr().out
    call_command("api_token", "revoke", str(token.pk))
    with pytest.raises(CommandError, match="no token"):
        call_command("api_token", "revoke", str(token.pk))
