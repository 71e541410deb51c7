"""Verdicts of our gateway on every fate of a push: one table for the development gorush and the real one."""

from dataclasses import dataclass

from notifications.messages import Outcome
from registrations.messages import TokenType

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
    return Case(token_type, fate, Outcome.DEAD, code, refused=1, is_guarded=is_guarded)


def refused(token_type: TokenType, fate: str, outcome: Outcome, code: str, *, is_guarded: bool = False) -> Case:
    return Case(token_type, fate, outcome, code, refused=1, is_guarded=is_guarded)


CASES = [
    delivered(IOS),
    delivered(ANDROID),
    delivered(IOS, "slow300-"),
    delivered(ANDROID, "slow300-"),
    dead(IOS, "dead-", "Unregistered"),
    dead(IOS, "slow300-dead-", "Unregistered"),
    dead(IOS, "expired-", "ExpiredToken"),
    dead(IOS, "bad-", "BadDeviceToken", is_guarded=True),
    dead(IOS, "wrong-", "DeviceTokenNotForTopic", is_guarded=True),
    dead(ANDROID, "dead-", "unregistered", is_guarded=True),
    dead(ANDROID, "expired-", "unregistered"),
    dead(ANDROID, "uninstalled-", "unregistered"),
    dead(ANDROID, "bad-", "invalid_token", is_guarded=True),
    dead(ANDROID, "invalid-", "invalid_token", is_guarded=True),
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
    delivered(IOS, message_size=1830),
    delivered(IOS, message_size=1860),
    delivered(ANDROID, message_size=1800),
    delivered(ANDROID, message_size=1910),
    refused(IOS, "quota-", Outcome.TRANSIENT, "TooManyRequests"),
    refused(IOS, "busy-", Outcome.TRANSIENT, "ServiceUnavailable"),
    refused(IOS, "outage-", Outcome.TRANSIENT, "ServiceUnavailable"),
    refused(IOS, "internal-", Outcome.TRANSIENT, "InternalServerError"),
    refused(IOS, "html-", Outcome.TRANSIENT, "not_json"),
    refused(IOS, "flaky1-", Outcome.TRANSIENT, "ServiceUnavailable"),
    refused(ANDROID, "quota-", Outcome.TRANSIENT, "quota_exceeded"),
    refused(ANDROID, "busy-", Outcome.TRANSIENT, "unavailable"),
    refused(ANDROID, "internal-", Outcome.TRANSIENT, "internal"),
    refused(ANDROID, "html-", Outcome.TRANSIENT, "google_5xx"),
    refused(ANDROID, "flaky1-", Outcome.TRANSIENT, "unavailable"),
    # The Firebase SDK sends five times before it reports the error.
    Case(ANDROID, "outage-", Outcome.TRANSIENT, "unavailable", refused=5),
    refused(IOS, "new-", Outcome.TRANSIENT, "unknown"),
    refused(ANDROID, "new-", Outcome.TRANSIENT, "unknown"),
    # The push is accepted, but the connection breaks before the answer. Firebase's SDK sends it five times, and only
    # the tag makes one of them on the phone.
    Case(IOS, "lost-", Outcome.AMBIGUOUS, "connection_lost", accepted=1),
    Case(ANDROID, "lost-", Outcome.AMBIGUOUS, "connection_lost", accepted=5),
    Case(IOS, "reset-", Outcome.AMBIGUOUS, "connection_lost", accepted=1),
    Case(ANDROID, "reset-", Outcome.AMBIGUOUS, "connection_lost", accepted=5),
    # Our gateway gives up, and gorush does not.
    Case(IOS, "slow1500-", Outcome.AMBIGUOUS, "timeout", accepted=1, timeout_seconds=0.5),
    Case(ANDROID, "slow1500-", Outcome.AMBIGUOUS, "timeout", accepted=1, timeout_seconds=0.5),
]
