"""Tests of the JSON for gorush on both platforms, and of pushes that it would drop or take for something else."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from notifications.gateways.gorush.push_api import (
    FAULTS,
    MAX_CALL_BYTES,
    MAX_PAYLOAD_BYTES,
    TEXTS,
    build_request,
    device_token,
    find_fault,
    fit,
    payload_size_bytes,
)
from notifications.messages import AppKey, Content, Grade, NotificationType, Outcome, Push
from registrations.messages import DeviceAddress

APPLE = Push(
    notification_id=7,
    attempt_number=2,
    app=AppKey(1, "im.status"),
    address=b"device-token",
    type=1,
    public_key_hash=b"\x0a\x0b",
    chat_id=b"\x0c",
    message=b"\x0d",
    collapse_id="c" * 32,
)
FIREBASE = replace(APPLE, app=AppKey(2, ""))
DATA = {"encryptedMessage": "0x0d", "chatId": "0x0c", "publicKey": "0x0a0b"}


def built(push):
    body = json.loads(build_request(fit(push)[0]))
    assert list(body) == ["notifications"]
    [notification] = body["notifications"]
    return notification


def test_a_push_to_apple_has_topic_collapse_id_and_deep_link():
    assert built(APPLE) == {
        "notif_id": "7-2",
        "tokens": ["device-token"],
        "platform": 1,
        "message": "New message in Messenger",
        "topic": "im.status",
        "collapse_id": "c" * 32,
        "content_available": True,
        "sound": "default",
        "priority": "high",
        "push_type": "alert",
        "data": DATA | {"deepLink": "status-app://chats"},
    }


def test_a_push_to_firebase_has_no_topic_because_it_would_address_all_subscribers():
    assert built(FIREBASE) == {
        "notif_id": "7-2",
        "tokens": ["device-token"],
        "platform": 2,
        "message": "New message in Messenger",
        "android": {"notification": {"tag": "c" * 32}},
        "data": DATA,
    }


@pytest.mark.parametrize(
    ("notification_type", "text", "link"),
    [
        (1, "New message in Messenger", "status-app://chats"),
        (2, "New mention or reply in Communities", "status-app://ac"),
        (3, "Someone requested to join a community you are an admin of", "status-app://ac"),
        (4, "Someone sent you a contact request", "status-app://contact-requests"),
        (5, "New mention or reply in Communities", "status-app://ac"),
        (-1, "New mention or reply in Communities", "status-app://ac"),
        (2**31 - 1, "New mention or reply in Communities", "status-app://ac"),
    ],
)
def test_every_type_has_its_text_and_link(notification_type, text, link):
    notification = built(replace(APPLE, type=notification_type))
    assert (notification["message"], notification["data"]["deepLink"]) == (text, link)
    assert built(replace(FIREBASE, type=notification_type))["message"] == text


def test_empty_fields_and_a_token_that_looks_like_json_are_sent_as_they_are():
    odd = replace(FIREBASE, chat_id=b"", message=b"", public_key_hash=b"", address=b'","tokens":["x')
    assert built(odd)["data"] == {"encryptedMessage": "0x", "chatId": "0x", "publicKey": "0x"}
    assert built(odd)["tokens"] == ['","tokens":["x']


def test_every_type_that_is_notified_about_has_a_text():
    assert set(TEXTS) == set(NotificationType) - {NotificationType.UNKNOWN}


@pytest.mark.parametrize("push", [APPLE, FIREBASE])
def test_a_push_too_large_for_apple_or_google_goes_without_its_ciphertext(push):
    whole = payload_size_bytes(built(replace(push, message=b"")))
    fits = (MAX_PAYLOAD_BYTES - whole) // 2  # two digits per byte
    assert built(replace(push, message=b"x" * fits))["data"]["encryptedMessage"] == "0x" + "78" * fits
    assert payload_size_bytes(built(replace(push, message=b"x" * fits))) <= MAX_PAYLOAD_BYTES
    assert built(replace(push, message=b"x" * (fits + 1)))["data"]["encryptedMessage"] == "0x"


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, ""),
        ({"app": APPLE.app}, ""),
        ({"app": AppKey(3, "")}, "unknown_platform"),
        ({"app": APPLE.app, "address": b"x#1"}, "unsendable_token"),
        ({"app": APPLE.app, "address": b"a%zz"}, "unsendable_token"),
        ({"app": APPLE.app, "address": b"a\nb"}, "unsendable_token"),
        ({"app": APPLE.app, "address": b"0fA9" * 16}, ""),
        ({"address": b"x#1/%"}, ""),
        ({"address": b"\xff"}, "unsendable_token"),
        ({"address": b""}, "no_device_token"),
        ({"collapse_id": "c" * 65}, "collapse_id_too_long"),
    ],
)
def test_a_push_that_gorush_would_drop_has_a_fault(change, fault):
    found = find_fault(replace(FIREBASE, **change))
    assert (found.code if found else "") == fault
    assert found is None or (found.outcome, found.is_untried) == (FAULTS[fault], True)


# Graded pushes: gorush's fields for each grade on each platform, and the sizes ----------------------------------------

TO_APPLE = AppKey(1, "org.example.chat")
TO_GOOGLE = AppKey(2, "")
TOKEN, CALL_TOKEN = "ab" * 32, "cd" * 32
EXPIRES_AT = datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC)
WAKE = Content("New message", "default", {"v": "1", "k": "wake", "a": "0123456789abcdef", "x": "truncated"})


def message(payload: str = "AAAA") -> Content:
    return Content("New message", "default", {"v": "1", "k": "msg", "a": "0123456789abcdef", "e": payload, "f": "w"})


def push(app: AppKey, grade: Grade, *, content: Content | None = None, **fields: Any) -> Push:
    address = fields.pop("address", DeviceAddress(TOKEN))
    stored = content.encode() if content else b""
    parts = (7, 1, app, address.encode(), 0, b"", b"", stored, "c" * 16, grade, WAKE.encode())
    return Push(*parts, expires_at=EXPIRES_AT, **fields)


def body(app: AppKey, grade: Grade, **fields: Any) -> dict[str, Any]:
    return fit(push(app, grade, content=message(), **fields))[0]


def test_a_call_rings_at_apple_with_the_token_for_calls() -> None:
    address = DeviceAddress(TOKEN, CALL_TOKEN, "development")
    assert body(TO_APPLE, Grade.VOIP, address=address) == {
        "notif_id": "7-1",
        "tokens": [CALL_TOKEN],
        "platform": 1,
        "topic": "org.example.chat.voip",
        "push_type": "voip",
        "priority": "high",
        "expiration": 1767225630,
        "collapse_id": "c" * 16,
        "development": True,
        "data": message().data,
    }


@pytest.mark.requirement("XB6", "X6")
@pytest.mark.parametrize("grade", [Grade.HIGH, Grade.NORMAL])
def test_a_message_is_an_alert_at_apple_that_the_app_may_change(grade: Grade) -> None:
    assert body(TO_APPLE, grade, address=DeviceAddress(TOKEN, environment="production")) == {
        "notif_id": "7-1",
        "tokens": [TOKEN],
        "platform": 1,
        "topic": "org.example.chat",
        "push_type": "alert",
        "priority": "high",
        "mutable_content": True,
        "message": "New message",
        "sound": "default",
        "collapse_id": "c" * 16,
        "production": True,
        "data": message().data,
    }


def test_a_push_without_anything_to_show_wakes_the_app_in_the_background() -> None:
    reported = body(TO_APPLE, Grade.LOW)
    shown = (reported["push_type"], reported["priority"], reported["content_available"])
    assert shown == ("background", "normal", True)
    assert {"message", "sound", "badge", "mutable_content"} & reported.keys() == set()


@pytest.mark.parametrize(
    ("grade", "priority", "ttl"),
    [
        (Grade.VOIP, "high", "30s"),
        (Grade.HIGH, "high", None),
        (Grade.NORMAL, "high", None),
        (Grade.LOW, "normal", None),
    ],
)
def test_at_google_everything_is_a_data_message(grade: Grade, priority: str, ttl: str | None) -> None:
    reported = body(TO_GOOGLE, grade)
    android = {"priority": priority, "collapse_key": "c" * 16} | ({"ttl": ttl} if ttl else {})
    assert (reported["priority"], reported["android"], reported["data"]) == (priority, android, message().data)
    assert {"topic", "message", "title", "notification"} & reported.keys() == set()


def test_a_call_without_a_token_for_calls_or_whose_payload_was_dropped_is_an_alert() -> None:
    address = DeviceAddress(TOKEN, CALL_TOKEN)
    dropped = push(TO_APPLE, Grade.VOIP, address=address, is_payload_dropped=True)
    assert (body(TO_APPLE, Grade.VOIP)["push_type"], body(TO_APPLE, Grade.VOIP)["tokens"]) == ("alert", [TOKEN])
    assert (fit(dropped)[0]["push_type"], device_token(dropped)) == ("alert", TOKEN)
    assert device_token(push(TO_APPLE, Grade.VOIP, address=address)) == CALL_TOKEN


@pytest.mark.requirement("XB18", "X18")
@pytest.mark.parametrize("grade", Grade)
@pytest.mark.parametrize(("app", "limit"), [(TO_APPLE, MAX_PAYLOAD_BYTES), (TO_GOOGLE, 4096)])
def test_the_largest_payload_of_mod_push2_fits_and_beyond_the_budget_the_device_is_woken_with_a_marker(
    app: AppKey, grade: Grade, limit: int
) -> None:
    limit = MAX_CALL_BYTES if app is TO_APPLE and grade is Grade.VOIP else limit
    address = DeviceAddress(TOKEN, CALL_TOKEN)

    def fitted(length: int) -> Any:
        return fit(push(app, grade, content=message("A" * length), address=address))

    largest = max(length for length in range(3900, limit) if not fitted(length)[1])
    [whole, _] = fitted(largest)
    assert largest >= 3936
    size = sum(len(k) + len(v) for k, v in whole["data"].items())
    assert (payload_size_bytes(whole) if app is TO_APPLE else size) == limit
    beyond, is_truncated = fitted(largest + 1)
    assert (is_truncated, beyond["data"]) == (True, WAKE.data)


def test_the_size_is_the_one_that_apple_receives() -> None:
    sent = {"aps": {"alert": "New message", "sound": "default", "mutable-content": 1}, **message().data}
    assert payload_size_bytes(body(TO_APPLE, Grade.NORMAL)) == len(orjson.dumps(sent))


@pytest.mark.parametrize(
    "address", [b"\xff", b'{"token": 1}', b'{"token": ""}', b'{"x": "y"}', b"{", b'{"token":"a/b"}']
)
def test_an_address_that_gorush_cannot_read_is_not_sent_to(address: bytes) -> None:
    found = find_fault(Push(7, 1, TO_APPLE, address, 0, b"", b"", b"", "c", Grade.LOW, WAKE.encode()))
    assert found is not None
    assert (found.outcome, found.code, found.is_untried) == (Outcome.DEAD, "unsendable_token", True)
