"""The JSON that gorush gets, for both platforms."""

import json
from dataclasses import replace

import pytest

from notifications.gateways.gorush.request import _TEXT_KEYS, Presentation, build_request
from notifications.messages import NotificationType, Push

PRESENTATION = Presentation(
    texts={"message": "New message", "mention": "New mention", "request_to_join": "Join?", "contact_request": "Hello?"},
    deep_links={"message": "app://chats", "contact_request": "app://contacts", "other": "app://ac"},
    sound="default",
    priority="high",
)
APPLE = Push(
    notification_id=7,
    attempt_number=2,
    token_type=1,
    device_token="device-token",
    apn_topic="im.status",
    type=1,
    public_key_hash=b"\x0a\x0b",
    chat_id=b"\x0c",
    message=b"\x0d",
    collapse_id="c" * 32,
)
FIREBASE = replace(APPLE, token_type=2)
DATA = {"encryptedMessage": "0x0d", "chatId": "0x0c", "publicKey": "0x0a0b"}


def built(push):
    body = json.loads(build_request(push, PRESENTATION))
    assert list(body) == ["notifications"]
    [notification] = body["notifications"]
    return notification


def test_tells_apple_topic_collapse_id_and_deep_link():
    assert built(APPLE) == {
        "notif_id": "7-2",
        "tokens": ["device-token"],
        "platform": 1,
        "message": "New message",
        "topic": "im.status",
        "collapse_id": "c" * 32,
        "content_available": True,
        "sound": "default",
        "priority": "high",
        "push_type": "alert",
        "data": DATA | {"deepLink": "app://chats"},
    }


def test_tells_firebase_no_topic_because_there_it_addresses_everybody_subscribed():
    assert built(FIREBASE) == {
        "notif_id": "7-2",
        "tokens": ["device-token"],
        "platform": 2,
        "message": "New message",
        "android": {"collapse_key": "c" * 32, "notification": {"tag": "c" * 32}},
        "data": DATA,
    }


@pytest.mark.parametrize(
    ("notification_type", "text", "link"),
    [
        (1, "New message", "app://chats"),
        (2, "New mention", "app://ac"),
        (3, "Join?", "app://ac"),
        (4, "Hello?", "app://contacts"),
        (5, "New mention", "app://ac"),
        (-1, "New mention", "app://ac"),
        (2**31 - 1, "New mention", "app://ac"),
    ],
)
def test_every_type_has_its_text_and_link(notification_type, text, link):
    notification = built(replace(APPLE, type=notification_type))
    assert (notification["message"], notification["data"]["deepLink"]) == (text, link)
    assert built(replace(FIREBASE, type=notification_type))["message"] == text


def test_empty_fields_are_sent_as_status_go_sends_them():
    empty = replace(FIREBASE, chat_id=b"", message=b"", public_key_hash=b"")
    assert built(empty)["data"] == {"encryptedMessage": "0x", "chatId": "0x", "publicKey": "0x"}


def test_quotes_a_token_that_looks_like_json():
    assert built(replace(FIREBASE, device_token='","tokens":["x'))["tokens"] == ['","tokens":["x']


def test_every_type_that_is_notified_about_has_a_text():
    assert set(_TEXT_KEYS) == set(NotificationType) - {NotificationType.UNKNOWN}
    assert set(_TEXT_KEYS.values()) == set(PRESENTATION.texts)
