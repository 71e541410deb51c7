"""The API as programs use it: through the whole stack of middleware, with real rows."""

from collections.abc import Callable
from contextlib import closing
from datetime import date, timedelta
from socket import socket
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid4

import pytest
from django.conf import settings
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from drf_spectacular.generators import SchemaGenerator

from kit.buckets.shared import SharedBuckets
from pushserver.api import tokens
from pushserver.api.answers import number_of
from pushserver.models import AccessRecord, ApiToken
from spark_reports.models import Anomaly, ErrorRate, PublishedDay, TokenChurn
from tests.limits.page import limit
from tests.rig import rows
from waku_bridge.models import CanaryRun

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
pytestmark = pytest.mark.django_db
every_endpoint = pytest.mark.parametrize("path", ENDPOINTS)
Api = Callable[..., Any]


@pytest.fixture(autouse=True)
def _nobody_called_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    cache.clear()
    monkeypatch.setattr("kit.api.throttling.own_buckets", lambda own=SharedBuckets(): own)  # noqa: B008


def caller(*scopes: str, **details: Any) -> Api:
    """Return a function that calls the API with a new token."""
    now = timezone.now()
    name = f"test {ApiToken.objects.count()}"
    _, text = tokens.issue(name, scopes or ApiToken.Scope.values, by="anna", now=now, **details)
    client = Client(headers={"authorization": f"Bearer {text}"})
    return lambda path, **query: client.get(f"{V1}/{path}", query)


@pytest.fixture
def api() -> Api:
    return caller()


def is_problem(response: Any, status: int) -> bool:
    assert response.headers["Content-Type"] == "application/problem+json"
    reported = response.json()
    return (response.status_code, reported["status"], reported["type"]) == (status, status, "about:blank")


@every_endpoint
def test_a_token_opens_what_its_scope_names_and_nothing_else(path: str) -> None:
    for scope in ApiToken.Scope.values:
        expected = 403 if scope != ENDPOINTS[path] else 200
        assert caller(scope)(path).status_code == expected, scope


@every_endpoint
@pytest.mark.parametrize("header", ["", "Bearer", "Bearer psk_wrong", "Token x", "Bearer \x00é", "Basic YTpi"])
def test_a_call_without_a_token_is_refused(path: str, header: str) -> None:
    response = Client(headers={"authorization": header} if header else {}).get(f"{V1}/{path}")

    assert is_problem(response, 401)
    assert response.headers["WWW-Authenticate"] == "Bearer"


def test_a_session_of_the_console_opens_nothing(admin_client: Client) -> None:
    assert admin_client.get(f"{V1}/status/").status_code == 401


def test_a_token_ends_when_it_is_revoked_or_expires() -> None:
    now = timezone.now()
    revoked = caller()
    token = ApiToken.objects.get()

    assert [tokens.revoke([token.pk], now=now) for _ in range(2)] == [1, 0]
    assert is_problem(revoked("channels/"), 401)
    assert is_problem(caller(expires_at=now - timedelta(seconds=1))("channels/"), 401)
    assert caller(expires_at=now + timedelta(minutes=1))("channels/").status_code == 200


def test_a_token_is_kept_as_a_digest_only() -> None:
    row, text = tokens.issue("test", ["status"], by="anna", now=timezone.now())

    with connection.cursor() as cursor:
        cursor.execute("SELECT row_to_json(t)::text FROM pushserver_apitoken t")
        stored = cursor.fetchone()[0]
    assert text not in stored
    assert text.startswith(row.prefix)
    assert text.encode().hex()[24:] not in stored


@pytest.mark.parametrize("scopes", [[], ["everything"], ["status", "nothing"]])
def test_a_token_needs_scopes_that_exist(scopes: list[str]) -> None:
    with pytest.raises(ValueError, match="Scopes are"):
        tokens.issue("test", scopes, by="anna", now=timezone.now())


def test_the_api_returns_the_registrations_of_a_key(api: Api) -> None:
    registration = rows.make_registration()
    rows.make_registration()

    (reported,) = api("registrations/", key_hash=bytes(registration.public_key_hash).hex()).json()["results"]

    assert reported["installation_id"] == registration.installation_id
    assert (reported["state"], reported["route"]["state"], reported["version"]) == (
        "active",
        "active",
        registration.version,
    )
    assert api("registrations/", installation_id=registration.installation_id).json()["results"] == [reported]


@pytest.mark.parametrize("spell", [str, str.upper, lambda text: text.replace("-", "")])
@pytest.mark.parametrize("sent", [str, str.upper, lambda text: text.replace("-", "").upper()])
def test_an_installation_is_found_however_its_id_is_spelled(
    api: Api, spell: Callable[[str], str], sent: Callable[[str], str]
) -> None:
    installation_id = str(uuid4())
    rows.make_registration(installation_id=sent(installation_id))

    (reported,) = api("registrations/", installation_id=spell(installation_id)).json()["results"]

    assert reported["installation_id"] == sent(installation_id)


def test_the_api_returns_a_notification_with_its_request_and_attempts(api: Api) -> None:
    notification = rows.make_notification()
    rows.make_attempt(notification, outcome="transient", code="unreachable", latency_ms=12)

    message_id = bytes(notification.request.message_id).hex()
    [listed] = api("notifications/", message_id=message_id).json()["results"]
    reported = api(f"notifications/{listed['id']}/").json()

    assert [attempt["code"] for attempt in reported["attempts"]] == ["unreachable"]
    assert reported["request"]["amm_message_id"] == bytes(notification.request.request_key).hex()
    assert reported["id"] == listed["id"]


# A parameter that is empty after cleaning filters nothing.
SPACES = [
    "registrations/?key_hash=%20",
    "registrations/?installation_id=%09%20",
    "notifications/?message_id=%20&key_hash=%0A",
    "registrations/?limit=5",
]


@limit("only for one key hash, installation or message, else {status}.")
@pytest.mark.parametrize("path", ["registrations/", "notifications/", "registrations/?key_hash=", *SPACES])
def test_a_list_of_rows_about_people_needs_a_filter(api: Api, path: str, status: int) -> None:
    response = api(path)

    assert is_problem(response, status)
    assert "key_hash" in response.json()["errors"]


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("registrations/", {"key_hash": "nonsense"}),
        ("registrations/", {"key_hash": "ab" * 63}),
        ("registrations/", {"installation_id": "' OR 1=1"}),
        ("notifications/", {"message_id": "\x00" * 64}),
        ("error-rates/", {"day": "yesterday"}),
        ("error-rates/", {"hour": "noon"}),
    ],
)
def test_a_wrong_parameter_is_named(api: Api, path: str, query: dict[str, str]) -> None:
    response = api(path, **query)

    assert is_problem(response, 400)
    assert set(response.json()["errors"]) == set(query)


@pytest.mark.parametrize(
    ("path", "status"), [("notifications/987654/", 404), ("nothing/", 404), ("channels/?cursor=x", 404)]
)
def test_an_unknown_address_is_answered_with_a_problem(api: Api, path: str, status: int) -> None:
    assert is_problem(api(path), status)


def test_an_endpoint_that_reads_accepts_no_other_method(api: Api) -> None:
    _, text = tokens.issue("another", ApiToken.Scope.values, by="anna", now=timezone.now())
    client = Client(headers={"authorization": f"Bearer {text}"})

    for method in (client.post, client.put, client.patch, client.delete, client.options):
        for path in ("channels/", "status/", "notifications/1/"):
            assert is_problem(method(f"{V1}/{path}"), 405)


def test_too_many_calls_are_refused(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.API_CALLS_PER_MINUTE = 2
    monkeypatch.setattr("kit.api.throttling.ANONYMOUS_PER_MINUTE", 1)
    one, other = caller(), caller()

    assert [one("channels/").status_code for _ in range(3)] == [200, 200, 429]
    assert other("channels/").status_code == 200
    assert is_problem(one("channels/"), 429)
    assert [Client().get(f"{V1}/channels/").status_code for _ in range(2)] == [401, 429]


def test_many_ipv6_addresses_of_one_network_share_one_limit_of_wrong_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kit.api.throttling.ANONYMOUS_PER_MINUTE", 2)
    addresses = [f"2001:db8::{number:x}" for number in range(4)]
    codes = [Client(REMOTE_ADDR=address).get(f"{V1}/channels/").status_code for address in addresses]
    assert codes == [401, 401, 429, 429]
    assert Client(REMOTE_ADDR="2001:db8:0:1::1").get(f"{V1}/channels/").status_code == 401


def test_without_redis_the_status_is_answered_and_no_call_is_throttled(api: Api, settings: Any) -> None:
    with closing(socket()) as free:
        free.bind(("127.0.0.1", 0))
        away = f"redis://127.0.0.1:{free.getsockname()[1]}/0"  # bound, but not listening
        settings.REDIS_URL, settings.CACHES = away, {"default": {**settings.CACHES["default"], "LOCATION": away}}

        reported = api("status/")
        assert (reported.status_code, reported.json()["status"]) == (200, "not ready")
        [broker] = [found for found in reported.json()["indicators"] if found["id"] == "broker"]
        assert (broker["state"], broker["sentence"]) == ("act now", "Redis does not answer")
        assert is_problem(Client().get(f"{V1}/channels/"), 401)


def test_a_long_list_comes_in_pages_that_count_nothing(api: Api) -> None:
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


def test_the_api_returns_reports_by_day(api: Api) -> None:
    for day in (date(2026, 11, 1), date(2026, 11, 2)):
        make_reports(day)

    for path in ("error-rates/", "token-churn/", "anomalies/"):
        assert [row["day"] for row in api(path, from_day="2026-11-02").json()["results"]] == ["2026-11-02"]
        assert len(api(path).json()["results"]) == 2
        assert len(api(path, bridge="waku").json()["results"]) == 2
        assert api(path, bridge="xmpp").json()["results"] == []
    assert api("error-rates/", stage="dispatch", day="2026-11-01").json()["results"][0]["rate"] == 0.5


@pytest.mark.parametrize("path", ["error-rates/", "token-churn/", "anomalies/"])
def test_programs_get_no_made_up_report(api: Api, path: str) -> None:
    """A program cannot see the banner of made-up reports."""
    make_reports(date(2026, 11, 1))
    published = PublishedDay.objects.create(day=date(2026, 11, 1), event_count=1, published_at=timezone.now())
    assert len(api(path).json()["results"]) == 1

    published.is_made_up = True
    published.save()
    assert api(path).json()["results"] == []


def make_reports(day: date) -> None:
    place = {"day": day, "platform": "apn", "bridge": "waku"}
    rates = {
        "usual_days": 7,
        "rate": 0.5,
        "rate_low": 0.4,
        "rate_high": 0.6,
        "events": 5,
        "total": 10,
        "is_failure": True,
    }
    ErrorRate.objects.create(stage="dispatch", outcome="dead", **place, **rates)
    zero = [field.name for field in TokenChurn._meta.fields if field.get_internal_type() == "BigIntegerField"]
    TokenChurn.objects.create(**place, **dict.fromkeys(zero, 0))
    band = {
        "usual_days": 7,
        "value": 0.5,
        "usual": 0.1,
        "band_low": 0.0,
        "band_high": 0.2,
        "z_score": 9.0,
        "events": 5,
        "total": 10,
    }
    Anomaly.objects.create(figure="error rate", stage="dispatch", **place, **band)


def test_the_api_returns_the_channels(api: Api) -> None:
    rows.make_channel((1, "im.status"))
    rows.make_channel((2, ""))
    rows.make_halt("paused", (1, "im.status"), by="ann", reason="x")

    reported = {row["app_topic"]: row for row in api("channels/").json()["results"]}

    paused, running = reported["im.status"], reported[""]
    assert (paused["platform"], paused["state"]) == ("APN", "paused")
    assert (paused["reason"], paused["changed_by"]) == ("x", "ann")
    assert (running["state"], running["since"], running["deaths_distrusted_since"]) == ("running", None, None)


def test_the_api_returns_the_last_round_trips_of_the_canary_link_by_link(api: Api) -> None:
    rows.make_canary_run(register_ms=3, register_answer_ms=90)
    rows.make_canary_run(
        state="broken", broken_link="register_answer", cause="bridge", register_ms=4, detail="nobody reads"
    )

    broken, passed = api("canary/").json()["results"]

    assert (broken["state"], broken["broken_link"], broken["cause"]) == ("broken", "register_answer", "bridge")
    assert broken["links"][:3] == [
        {"link": "register", "result": "held", "ms": 4},
        {"link": "register_answer", "result": "broken", "ms": None},
        {"link": "query", "result": "not reached", "ms": None},
    ]
    assert [link["link"] for link in passed["links"]] == CanaryRun.Link.values
    assert [run["id"] for run in api("canary/", state="passed").json()["results"]] == [passed["id"]]
    assert is_problem(api("canary/", state="sick"), 400)


def test_the_api_returns_round_trips_through_the_xmpp_server_link_by_link(api: Api) -> None:
    rows.make_xmpp_canary_run(register_ms=3, push_ms=8, gateway_ms=20, unregister_ms=4)
    rows.make_xmpp_canary_run(state="broken", broken_link="push", cause="xmpp_server", register_ms=4)

    broken, passed = api("xmpp-canary/").json()["results"]

    assert (broken["state"], broken["broken_link"], broken["cause"]) == ("broken", "push", "xmpp_server")
    assert [(link["link"], link["result"], link["ms"]) for link in broken["links"]] == [
        ("register", "held", 4),
        ("push", "broken", None),
        ("gateway", "not reached", None),
        ("unregister", "not reached", None),
    ]
    assert not {"device", "pseudonym"} & passed.keys()
    assert [run["id"] for run in api("xmpp-canary/", state="passed").json()["results"]] == [passed["id"]]
    assert is_problem(api("xmpp-canary/", state="sick"), 400)


def test_reading_personal_records_is_noted_in_the_access_log(api: Api) -> None:
    notification = rows.make_notification()
    key_hash = bytes(notification.public_key_hash).hex()

    [listed] = api("notifications/", key_hash=key_hash).json()["results"]
    api(f"notifications/{listed['id']}/")
    api("channels/")

    opened = list(AccessRecord.objects.values_list("page", "object_id", "user"))
    assert opened == [("api.notifications", str(notification.pk), None)] * 2


def test_nobody_reads_notifications_by_counting_and_each_attempt_is_noted(api: Api) -> None:
    notifications = [rows.make_notification() for _ in range(3)]
    key_hash = bytes(notifications[0].public_key_hash).hex()
    [own] = [row["id"] for row in api("notifications/", key_hash=key_hash).json()["results"]]
    near = [str(UUID(int=UUID(own).int ^ 1 << bit)) for bit in range(0, 128, 8)]
    tried = [*near, *(number for each in notifications for number in (str(UUID(int=each.pk)), str(each.pk)))]
    AccessRecord.objects.all().delete()

    assert {api(f"notifications/{each}/").status_code for each in tried} == {404}

    noted = AccessRecord.objects.order_by("pk").values_list("page", "object_id")
    assert list(noted) == [("api.notifications.missed", each) for each in tried]


def test_anybody_may_read_the_schema_and_it_is_made_once(client: Client) -> None:
    first = client.get("/api/schema")

    with patch.object(SchemaGenerator, "get_schema", side_effect=AssertionError):
        again = client.get("/api/schema/?format=json", HTTP_ACCEPT="text/html")

    assert (first.status_code, again.status_code, again.content) == (200, 200, first.content)
    assert first.content == (settings.BASE_DIR / "docs/openapi.yaml").read_bytes()
    assert first["Cache-Control"] == "public, max-age=3600"


def test_the_docs_page_has_no_inline_script(client: Client) -> None:
    page = client.get("/api/docs/").content.decode()

    assert "swagger" in page
    assert not [part for part in page.split("<script")[1:] if "src=" not in part.split(">")[0]]
