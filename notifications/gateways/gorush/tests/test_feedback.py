"""Tests of the feedback webhook: who may call it, what it reads, and that it only writes a note for operators."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.conf import LazySettings
from django.forms.models import model_to_dict
from django.http import HttpResponse
from django.test import Client
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from notifications.messages import Outcome, Result
from notifications.models import Attempt, Notification, NotificationRequest
from pushserver.console.gorush.feedback import read_failure
from registrations.messages import TokenType
from registrations.models import Route
from tests.rig.delivering import claimed, make_due, record
from tests.rig.rows import make_attempt, make_notification, make_route

SECRET = "a-secret-of-the-hook-that-is-long-enough"
TOKEN = "the-full-device-token-of-somebody"
ENTRY = {
    "notif_id": "1-1",
    "type": "failed-push",
    "platform": "android",
    "token": "**********",
    "message": "New message in Messenger",
    "error": "Requested entity was not found.",
}

Call = Callable[..., HttpResponse]


@pytest.fixture(autouse=True)
def hook_is_open(settings: LazySettings) -> None:
    settings.GORUSH_HOOK_SECRET = SECRET


@pytest.fixture
def call(db: None) -> Call:
    client = Client(enforce_csrf_checks=True)

    def post(body: Any, secret: str = SECRET) -> HttpResponse:
        content = body if isinstance(body, bytes) else json.dumps(body)
        return client.post("/hooks/gorush", content, "application/json", headers={"X-Gorush-Secret": secret})

    return post


def entry_about(attempt: Attempt, **changes: Any) -> dict[str, Any]:
    return {**ENTRY, "notif_id": f"{attempt.notification_id}-{attempt.number}", **changes}


def late_codes() -> list[str]:
    return list(Attempt.objects.order_by("pk").values_list("late_code", flat=True))


@pytest.mark.parametrize("outcome", [None, *Outcome])
def test_the_code_of_a_failure_is_stored_beside_its_attempt(call: Call, outcome: str | None) -> None:
    attempt, other = make_attempt(outcome=outcome), make_attempt()
    assert call(entry_about(attempt)).status_code == 200
    attempt.refresh_from_db()
    other.refresh_from_db()
    assert (attempt.late_code, attempt.outcome, other.late_code) == ("unregistered", outcome, "")


def test_the_code_of_an_attempt_under_way_stays_when_its_result_comes(call: Call) -> None:
    [held] = claimed(make_due())
    call(entry_about(Attempt.objects.get()))
    assert late_codes() == ["unregistered"]
    record([(held, Result(Outcome.TRANSIENT))])
    assert late_codes() == ["unregistered"]


@pytest.mark.parametrize(
    ("token_type", "changes", "code"),
    [
        (TokenType.APN, {"platform": "ios", "error": "BadDeviceToken", "token": ""}, "BadDeviceToken"),
        (TokenType.FIREBASE, {"token": "*" * 19}, "unregistered"),
        (TokenType.FIREBASE, {"error": "something new"}, "unknown"),
        (TokenType.FIREBASE, {"message": None, "token": None, "more": [1]}, "unregistered"),
    ],
    ids=["empty token", "masked token", "unknown error", "other fields"],
)
def test_an_entry_is_read_by_the_rules(call: Call, token_type: int, changes: dict[str, Any], code: str) -> None:
    attempt = make_attempt(token_type=token_type)
    assert call(entry_about(attempt, **changes)).status_code == 200
    assert late_codes() == [code]


@pytest.mark.parametrize("state", Notification.State)
def test_no_state_route_or_reply_changes(call: Call, state: str) -> None:
    """A caller with the secret can neither silence a phone nor cause any push."""
    route = make_route(token_type=TokenType.FIREBASE)
    notification = make_notification(route=route, state=state)
    attempt = make_attempt(notification, outcome=Outcome.DELIVERED)
    rows = (route, notification, notification.request)
    before = [model_to_dict(row) for row in rows]
    for error in ("Requested entity was not found.", "NotRegistered", "message is too big", "Quota exceeded"):
        assert call(entry_about(attempt, error=error)).status_code == 200
    fresh = (Route.objects.get(), Notification.objects.get(), NotificationRequest.objects.get())
    assert [model_to_dict(row) for row in fresh] == before


def test_a_replay_and_a_second_failure_change_nothing(call: Call) -> None:
    make_attempt(started_at=timezone.now() - timedelta(hours=2))
    for attempt in Attempt.objects.all():
        assert call(entry_about(attempt)).status_code == 200
    assert late_codes() == [""]  # a replay of long ago
    attempt = make_attempt()
    for error in ("Quota exceeded", "Quota exceeded", "Requested entity was not found."):
        assert call(entry_about(attempt, error=error)).status_code == 200
    assert late_codes() == ["", "quota_exceeded"]


@pytest.mark.parametrize(
    "changes",
    [
        *({"notif_id": "999999999-1"}, {"notif_id": "9999999999999999999999-1"}, {"notif_id": "{id}-2"}),
        *({"notif_id": "one-two"}, {"notif_id": "-1--1"}, {"notif_id": "\u0661-\u0661"}, {"notif_id": "1-1\n"}),
        *({"notif_id": ""}, {"type": "succeeded-push"}, {"platform": "huawei"}, {"platform": "ios"}),
    ],
    ids=repr,
)
def test_an_entry_about_no_attempt_of_ours_is_accepted_and_ignored(call: Call, changes: dict[str, str]) -> None:
    attempt = make_attempt()
    entry = entry_about(attempt, **changes)
    entry["notif_id"] = entry["notif_id"].replace("{id}", str(attempt.notification_id))
    assert call(entry).status_code == 200
    assert call({name: value for name, value in ENTRY.items() if name != "notif_id"}).status_code == 200
    assert late_codes() == [""]


@pytest.mark.parametrize("secret", ["", "wrong", SECRET[:-1], SECRET + "x", SECRET.upper(), "é"])
def test_refuses_a_wrong_secret(call: Call, secret: str) -> None:
    attempt = make_attempt()
    assert call(entry_about(attempt), secret).status_code == 403
    assert late_codes() == [""]


@pytest.mark.parametrize("host", ["push-server-web", "web.push.svc.cluster.local:8000", "10.0.0.7"])
def test_gorush_may_call_the_server_by_any_name(client: Client, settings: LazySettings, host: str, db: None) -> None:
    """Within a cluster it knows the name of a service, which is no name of the console."""
    settings.ALLOWED_HOSTS = ["localhost", "push.example.org"]
    headers = {"X-Gorush-Secret": SECRET, "host": host}
    assert client.post("/hooks/gorush", ENTRY, "application/json", headers=headers).status_code == 200
    assert client.get("/admin/", headers={"host": host}).status_code == 400


def test_the_hook_takes_posts_only_and_does_not_exist_without_a_secret(call: Call, settings: LazySettings) -> None:
    assert call(b"\x00", "wrong").status_code == 403  # no body is read without the secret
    assert Client().get("/hooks/gorush", headers={"X-Gorush-Secret": SECRET}).status_code == 405
    settings.GORUSH_HOOK_SECRET = ""
    assert (call(ENTRY, "").status_code, Client().get("/hooks/gorush").status_code) == (404, 404)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\x00",
        b"[" * 60_000,
        [],
        [ENTRY],
        None,
        {},
        {**ENTRY, "notif_id": 1},
        {**ENTRY, "error": {"a": 1}},
        {**ENTRY, "type": 1},
        {**ENTRY, "platform": ["ios"]},
        {name: value for name, value in ENTRY.items() if name != "error"},
    ],
    ids=repr,
)
def test_refuses_a_body_that_is_no_entry(call: Call, body: Any) -> None:
    assert call(body).status_code == 400


def test_takes_a_body_just_within_the_limit_and_refuses_a_larger_one(call: Call) -> None:
    attempt = make_attempt()
    small = json.dumps(entry_about(attempt, message="")).encode()
    padded = json.dumps(entry_about(attempt, message="x" * (64 * 1024 - len(small)))).encode()
    assert [call(body).status_code for body in (padded + b" ", padded + b" " * 20_000_000, padded)] == [413, 413, 200]
    assert late_codes() == ["unregistered"]


def test_no_token_message_or_header_is_stored_or_logged(
    call: Call, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    attempt = make_attempt(token_type=TokenType.APN)
    error = f'Post "https://api.push.apple.com/3/device/{TOKEN}": EOF'
    entry = entry_about(attempt, platform="ios", token=TOKEN, message="secret text", error=error)
    with caplog.at_level("DEBUG"):
        for body, secret in [(entry, SECRET), (entry, "wrong-secret"), (b"secret text", SECRET)]:
            call(body, secret)
    shown = caplog.text + "".join(capfd.readouterr()) + repr(Attempt.objects.values())
    assert not [secret for secret in (TOKEN, "secret text", SECRET, "wrong-secret") if secret in shown]
    assert late_codes() == ["connection_lost"]


@given(
    st.binary()
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps).map(str.encode)
    | st.dictionaries(st.sampled_from(sorted(ENTRY)), st.text() | st.none()).map(json.dumps).map(str.encode)
)
def test_no_bytes_break_the_reader(body: bytes) -> None:
    read_failure(body)
