"""Tests of the JSON for gorush, on both platforms."""

import json
from dataclasses import replace

import pytest

from notifications.gateways.gorush.sending.push_api import (
    MAX_PAYLOAD_BYTES,
    TEXTS,
    build_request,
    payload_size_bytes,
)
from notifications.messages import ChannelKey, NotificationType, Push

APPLE = Push(
    notification_id=7,
    attempt_number=2,
    channel=ChannelKey(1, "im.status"),
    address=b"device-token",
    type=1,
    public_key_hash=b"\x0a\x0b",
    chat_id=b"\x0c",
    message=b"\x0d",
    collapse_id="c" * 32,
)
FIREBASE = replace(APPLE, channel=ChannelKey(2, ""))
DATA = {"encryptedMessage": "0x0d", "chatId": "0x0c", "publicKey": "0x0a0b"}


def built(push):
    body = json.loads(build_request(push))
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


def test_empty_fields_are_sent_as_status_go_sends_them():
    empty = replace(FIREBASE, chat_id=b"", message=b"", public_key_hash=b"")
    assert built(empty)["data"] == {"encryptedMessage": "0x", "chatId": "0x", "publicKey": "0x"}


def test_quotes_a_token_that_looks_like_json():
    assert built(replace(FIREBASE, address=b'","tokens":["x'))["tokens"] == ['","tokens":["x']


def test_every_type_that_is_notified_about_has_a_text():
    assert set(TEXTS) == set(NotificationType) - {NotificationType.UNKNOWN}


@pytest.mark.parametrize("push", [APPLE, FIREBASE])
def test_a_push_too_large_for_apple_or_google_goes_without_its_ciphertext(push):
    whole = payload_size_bytes(built(replace(push, message=b"")))
    fits = (MAX_PAYLOAD_BYTES - whole) // 2  # two digits per byte
    assert built(replace(push, message=b"x" * fits))["data"]["encryptedMessage"] == "0x" + "78" * fits
    assert payload_size_bytes(built(replace(push, message=b"x" * fits))) <= MAX_PAYLOAD_BYTES
    assert built(replace(push, message=b"x" * (fits + 1)))["data"]["encryptedMessage"] == "0x"


@pytest.mark.parametrize("push", [APPLE, FIREBASE])
def test_the_data_never_contains_apples_own_key(push):
    assert "aps" not in built(push)["data"]
