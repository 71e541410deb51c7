"""Requests that Apple and Google get, field by field, once the real gorush has rewritten ours."""

import base64
import json

import pytest

from notifications.gateways.gorush.sending.push_api import device_token
from notifications.messages import Push
from registrations.messages import TokenType
from tests.rig.peers import APP_TOPIC, KEY_ID, TEAM_ID, Server, new_push, send

pytestmark = pytest.mark.peers


def received(server: Server, push: Push) -> dict:
    """Return the one push that this request led to, to any device."""
    last = server.last_push()
    send([server.url], push)
    (only,) = server.pushes(since=last)
    return only


def test_apple_gets_one_push_that_replaces_its_own_repetition(real_gorush: Server) -> None:
    push = new_push(TokenType.APN, message=b"\x01\x02")
    only = received(real_gorush, push)
    headers = {name: value for name, value in only["headers"].items() if name.startswith("apns-")}
    assert headers == {
        "apns-topic": APP_TOPIC,
        "apns-push-type": "alert",
        "apns-priority": "10",
        "apns-collapse-id": push.collapse_id,
    }
    assert only["token"] == device_token(push)
    assert only["body"] == {
        "aps": {"alert": "New message in Messenger", "content-available": 1, "sound": "default"},
        "encryptedMessage": "0x0102",
        "chatId": "0x" + push.chat_id.hex(),
        "publicKey": "0x" + push.public_key_hash.hex(),
        "deepLink": "status-app://chats",
    }


def test_apple_gets_a_token_signed_by_the_configured_key(real_gorush: Server) -> None:
    scheme, _, jwt = received(real_gorush, new_push(TokenType.APN))["headers"]["authorization"].partition(" ")
    header, claims = (json.loads(base64.urlsafe_b64decode(part + "==")) for part in jwt.split(".")[:2])
    assert (scheme, header["alg"], header["kid"], claims["iss"]) == ("bearer", "ES256", KEY_ID, TEAM_ID)


def test_google_gets_one_message_for_the_token_and_none_for_a_topic(real_gorush: Server) -> None:
    push = new_push(TokenType.FIREBASE, message=b"\x01\x02")
    only = received(real_gorush, push)
    assert only["body"] == {
        "message": {
            "token": device_token(push),
            "notification": {"body": "New message in Messenger"},
            "data": {
                "encryptedMessage": "0x0102",
                "chatId": "0x" + push.chat_id.hex(),
                "publicKey": "0x" + push.public_key_hash.hex(),
            },
            "android": {"notification": {"tag": push.collapse_id}},
        }
    }
