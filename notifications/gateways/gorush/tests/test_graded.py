"""Tests of graded pushes: gorush's fields for each grade on each platform, and the sizes."""

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from embedded.gorush.request import FIELD_TYPES
from notifications.gateways.gorush.sending.graded import MAX_APPLE_BYTES, MAX_CALL_BYTES, apple_size_bytes, fit
from notifications.gateways.gorush.sending.push_api import device_token, find_fault
from notifications.messages import ChannelKey, Content, Grade, Outcome, Push
from registrations.routes.addresses import DeviceAddress

APPLE = ChannelKey(1, "org.example.chat")
GOOGLE = ChannelKey(2, "")
TOKEN, CALL_TOKEN = "ab" * 32, "cd" * 32
EXPIRES_AT = datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC)
WAKE = Content("New message", "default", {"v": "1", "k": "wake", "a": "0123456789abcdef", "x": "truncated"})


def message(payload: str = "AAAA") -> Content:
    return Content("New message", "default", {"v": "1", "k": "msg", "a": "0123456789abcdef", "e": payload, "f": "w"})


def push(channel: ChannelKey, grade: Grade, *, content: Content | None = None, **fields: Any) -> Push:
    address = fields.pop("address", DeviceAddress(TOKEN))
    stored = content.encode() if content else b""
    return Push(
        7,
        1,
        channel,
        address.encode(),
        0,
        b"",
        b"",
        stored,
        "c" * 16,
        grade,
        WAKE.encode(),
        expires_at=EXPIRES_AT,
        **fields,
    )


def body(channel: ChannelKey, grade: Grade, **fields: Any) -> dict[str, Any]:
    return fit(push(channel, grade, content=message(), **fields)).notification


def test_a_call_rings_at_apple_with_the_token_for_calls() -> None:
    address = DeviceAddress(TOKEN, CALL_TOKEN, "development")
    assert body(APPLE, Grade.VOIP, address=address) == {
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
    assert body(APPLE, grade, address=DeviceAddress(TOKEN, environment="production")) == {
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
    reported = body(APPLE, Grade.LOW)
    assert (reported["push_type"], reported["priority"], reported["content_available"]) == (
        "background",
        "normal",
        True,
    )
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
    reported = body(GOOGLE, grade)
    android = {"priority": priority, "collapse_key": "c" * 16} | ({"ttl": ttl} if ttl else {})
    assert (reported["priority"], reported["android"], reported["data"]) == (priority, android, message().data)
    assert {"topic", "message", "title", "notification"} & reported.keys() == set()


@pytest.mark.parametrize("channel", [APPLE, GOOGLE])
@pytest.mark.parametrize("grade", list(Grade))
def test_every_field_has_the_type_that_gorush_expects(channel: ChannelKey, grade: Grade) -> None:
    reported = body(channel, grade, address=DeviceAddress(TOKEN, CALL_TOKEN, "production"))
    unknown = reported.keys() - FIELD_TYPES.keys()
    assert unknown <= {"push_type", "mutable_content", "expiration", "development", "production", "sound"}
    assert [name for name in reported.keys() - unknown if type(reported[name]) is not FIELD_TYPES[name]] == []


def test_a_call_to_a_device_without_a_token_for_calls_is_an_alert() -> None:
    assert (body(APPLE, Grade.VOIP)["push_type"], body(APPLE, Grade.VOIP)["tokens"]) == ("alert", [TOKEN])


def test_a_call_whose_payload_was_dropped_is_an_alert() -> None:
    address = DeviceAddress(TOKEN, CALL_TOKEN)
    dropped = push(APPLE, Grade.VOIP, address=address, is_payload_dropped=True)
    assert fit(dropped).notification["push_type"] == "alert"
    assert device_token(dropped) == TOKEN
    assert device_token(push(APPLE, Grade.VOIP, address=address)) == CALL_TOKEN


@pytest.mark.requirement("XB18", "X18")
@pytest.mark.parametrize("channel", [APPLE, GOOGLE])
@pytest.mark.parametrize("grade", [Grade.HIGH, Grade.NORMAL, Grade.LOW, Grade.VOIP])
def test_the_largest_payload_of_mod_push2_fits(channel: ChannelKey, grade: Grade) -> None:
    address = DeviceAddress(TOKEN, CALL_TOKEN)
    fitted = fit(push(channel, grade, content=message("A" * 3936), address=address))
    assert not fitted.is_truncated
    assert fitted.notification["data"]["e"] == "A" * 3936


@pytest.mark.requirement("XB18", "X18")
@pytest.mark.parametrize(
    ("channel", "grade", "limit"),
    [(APPLE, Grade.NORMAL, MAX_APPLE_BYTES), (APPLE, Grade.VOIP, MAX_CALL_BYTES), (GOOGLE, Grade.NORMAL, 4096)],
)
def test_beyond_the_budget_the_device_is_woken_with_a_marker(channel: ChannelKey, grade: Grade, limit: int) -> None:
    address = DeviceAddress(TOKEN, CALL_TOKEN)

    def fitted(length: int) -> Any:
        return fit(push(channel, grade, content=message("A" * length), address=address))

    largest = max(length for length in range(3900, limit) if not fitted(length).is_truncated)
    if channel is APPLE:
        assert apple_size_bytes(fitted(largest).notification) == limit
    else:
        assert sum(len(k) + len(v) for k, v in fitted(largest).notification["data"].items()) == limit
    beyond = fitted(largest + 1)
    assert beyond.is_truncated
    assert beyond.notification["data"] == WAKE.data
    assert beyond.notification["data"]["x"] == "truncated"


def test_the_size_is_the_one_that_apple_receives() -> None:
    reported = body(APPLE, Grade.NORMAL)
    sent = {"aps": {"alert": "New message", "sound": "default", "mutable-content": 1}, **message().data}
    assert apple_size_bytes(reported) == len(orjson.dumps(sent))


@pytest.mark.parametrize(
    "address", [b"\xff", b'{"token": 1}', b'{"token": ""}', b'{"x": "y"}', b"{", b'{"token":"a/b"}']
)
def test_an_address_that_gorush_cannot_read_is_not_sent_to(address: bytes) -> None:
    found = find_fault(Push(7, 1, APPLE, address, 0, b"", b"", b"", "c", Grade.LOW, WAKE.encode()))
    assert found is not None
    assert (found.outcome, found.code, found.is_untried) == (Outcome.DEAD, "unsendable_token", True)
