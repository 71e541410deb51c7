"""The real gorush and the development one behind our gateway: each fate of a push, and what Apple and Google get."""

import base64
import json
from dataclasses import dataclass
from typing import Any

import pytest

from notifications.gateways.gorush.push_api import device_token
from notifications.messages import Outcome, Push
from registrations.messages import TokenType
from tests.rig.peers import APP_TOPIC, KEY_ID, TEAM_ID, Server, new_push, send

IOS, ANDROID = TokenType.APN, TokenType.FIREBASE


@dataclass(frozen=True, slots=True)
class Case:
    """``fate`` is a prefix from the development gorush's `outcomes.py`. ``accepted`` and ``refused`` count the pushes
    that Apple or Google received, which is the ground truth.
    """

    token_type: TokenType
    fate: str
    outcome: Outcome
    code: str = ""
    accepted: int = 0
    refused: int = 0
    message_size: int = 100
    timeout_seconds: float = 20.0
    is_guarded: bool = False

    def __str__(self) -> str:
        size = f" {self.message_size} bytes" if self.message_size != 100 else ""
        return f"{self.token_type.name} {self.fate or 'ok'}{size}"


def delivered(token_type: TokenType, fate: str = "", *, message_size: int = 100) -> Case:
    return Case(token_type, fate, Outcome.DELIVERED, accepted=1, message_size=message_size)


def dead(token_type: TokenType, fate: str, code: str, *, is_guarded: bool = False) -> Case:
    return refused(token_type, fate, Outcome.DEAD, code, is_guarded=is_guarded)


def refused(token_type: TokenType, fate: str, outcome: Outcome, code: str, *, is_guarded: bool = False) -> Case:
    return Case(token_type, fate, outcome, code, refused=1, is_guarded=is_guarded)


CASES = [
    *(delivered(platform, fate) for platform in (IOS, ANDROID) for fate in ("", "slow300-")),
    *(dead(IOS, fate, "Unregistered") for fate in ("dead-", "slow300-dead-")),
    dead(IOS, "expired-", "ExpiredToken"),
    dead(IOS, "bad-", "BadDeviceToken", is_guarded=True),
    dead(IOS, "wrong-", "DeviceTokenNotForTopic", is_guarded=True),
    dead(ANDROID, "dead-", "unregistered", is_guarded=True),
    *(dead(ANDROID, fate, "unregistered") for fate in ("expired-", "uninstalled-")),
    *(dead(ANDROID, fate, "invalid_token", is_guarded=True) for fate in ("bad-", "invalid-")),
    dead(ANDROID, "wrong-", "sender_id_mismatch", is_guarded=True),
    refused(IOS, "config-", Outcome.CONFIG, "InvalidProviderToken"),
    refused(IOS, "topic-", Outcome.CONFIG, "TopicDisallowed"),
    refused(ANDROID, "config-", Outcome.CONFIG, "permission"),
    refused(ANDROID, "topic-", Outcome.CONFIG, "third_party_auth", is_guarded=True),
    refused(IOS, "big-", Outcome.PAYLOAD, "PayloadTooLarge"),
    refused(IOS, "argument-", Outcome.PAYLOAD, "BadPriority"),
    refused(ANDROID, "big-", Outcome.PAYLOAD, "too_large"),
    refused(ANDROID, "argument-", Outcome.PAYLOAD, "invalid_argument"),
    # In hex, the ciphertext has half of the space that the limit of 4096 bytes leaves. A longer one is left out.
    *(delivered(IOS, message_size=size) for size in (1830, 1860)),
    *(delivered(ANDROID, message_size=size) for size in (1800, 1910)),
    refused(IOS, "quota-", Outcome.TRANSIENT, "TooManyRequests"),
    *(refused(IOS, fate, Outcome.TRANSIENT, "ServiceUnavailable") for fate in ("busy-", "outage-", "flaky1-")),
    refused(IOS, "internal-", Outcome.TRANSIENT, "InternalServerError"),
    refused(IOS, "html-", Outcome.TRANSIENT, "not_json"),
    refused(ANDROID, "quota-", Outcome.TRANSIENT, "quota_exceeded"),
    *(refused(ANDROID, fate, Outcome.TRANSIENT, "unavailable") for fate in ("busy-", "flaky1-")),
    refused(ANDROID, "internal-", Outcome.TRANSIENT, "internal"),
    refused(ANDROID, "html-", Outcome.TRANSIENT, "google_5xx"),
    # The Firebase SDK sends five times before it reports the error.
    Case(ANDROID, "outage-", Outcome.TRANSIENT, "unavailable", refused=5),
    *(refused(platform, "new-", Outcome.TRANSIENT, "unknown") for platform in (IOS, ANDROID)),
    # The push is accepted, but the connection breaks before the answer. Firebase's SDK sends it five times, and only
    # the tag makes one of them on the phone.
    *(Case(IOS, fate, Outcome.AMBIGUOUS, "connection_lost", accepted=1) for fate in ("lost-", "reset-")),
    *(Case(ANDROID, fate, Outcome.AMBIGUOUS, "connection_lost", accepted=5) for fate in ("lost-", "reset-")),
    # Our gateway gives up, and gorush does not.
    Case(IOS, "slow1500-", Outcome.AMBIGUOUS, "timeout", accepted=1, timeout_seconds=0.5),
    Case(ANDROID, "slow1500-", Outcome.AMBIGUOUS, "timeout", accepted=1, timeout_seconds=0.5),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_our_verdict_and_the_pushes_received(server: Server, case: Case) -> None:
    push = new_push(case.token_type, case.fate, message=bytes(case.message_size))
    result = send([server.url], push, timeout_seconds=case.timeout_seconds)
    assert (result.outcome, result.code, result.is_guarded) == (case.outcome, case.code, case.is_guarded)
    received = server.pushes_to(device_token(push), at_least=case.accepted + case.refused)
    errors = [one["error"] for one in received]
    assert (errors.count(""), len(errors) - errors.count("")) == (case.accepted, case.refused)
    # The Firebase SDK's repetitions have the same id, so on the phone they replace each other.
    assert {one["collapse_id"] for one in received} == {push.collapse_id}


# Requests that Apple and Google get, field by field, once the real gorush has rewritten ours.


def received(server: Server, push: Push) -> dict[str, Any]:
    """Return the one push that this request led to, to any device."""
    last = server.last_push()
    send([server.url], push)
    (only,) = server.pushes(since=last)
    return only


def data_of(push: Push) -> dict[str, str]:
    hashes = {"chatId": "0x" + push.chat_id.hex(), "publicKey": "0x" + push.public_key_hash.hex()}
    return {"encryptedMessage": "0x0102", **hashes}


@pytest.mark.peers
def test_apple_gets_one_push_that_replaces_its_own_repetition_and_a_token_signed_by_the_configured_key(
    real_gorush: Server,
) -> None:
    push = new_push(IOS, message=b"\x01\x02")
    only = received(real_gorush, push)
    headers = {name: value for name, value in only["headers"].items() if name.startswith("apns-")}
    assert headers == {
        "apns-topic": APP_TOPIC,
        "apns-push-type": "alert",
        "apns-priority": "10",
        "apns-collapse-id": push.collapse_id,
    }
    assert only["token"] == device_token(push)
    aps = {"alert": "New message in Messenger", "content-available": 1, "sound": "default"}
    assert only["body"] == {"aps": aps, **data_of(push), "deepLink": "status-app://chats"}
    scheme, _, jwt = only["headers"]["authorization"].partition(" ")
    header, claims = (json.loads(base64.urlsafe_b64decode(part + "==")) for part in jwt.split(".")[:2])
    assert (scheme, header["alg"], header["kid"], claims["iss"]) == ("bearer", "ES256", KEY_ID, TEAM_ID)


@pytest.mark.peers
def test_google_gets_one_message_for_the_token_and_none_for_a_topic(real_gorush: Server) -> None:
    push = new_push(ANDROID, message=b"\x01\x02")
    assert received(real_gorush, push)["body"] == {
        "message": {
            "token": device_token(push),
            "notification": {"body": "New message in Messenger"},
            "data": data_of(push),
            "android": {"notification": {"tag": push.collapse_id}},
        }
    }
