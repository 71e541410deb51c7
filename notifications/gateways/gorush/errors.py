"""What gorush's error strings mean. First match wins; an unknown string is transient: nothing is lost by trying.

gorush passes on Apple's reason verbatim, Google's human text without its code, and transport errors with the full
device token in them. So rules give a code of our own, and the text itself goes nowhere.
"""

from dataclasses import dataclass

from notifications.messages import Outcome
from registrations.messages import TokenType


@dataclass(frozen=True, slots=True)
class ErrorRule:
    """``text`` is compared in lower case: the whole error, or a part of it."""

    code: str
    outcome: Outcome
    text: str
    is_exact: bool = False

    def matches(self, error: str) -> bool:
        return error == self.text if self.is_exact else self.text in error


def _reasons(outcome: Outcome, *reasons: str) -> list[ErrorRule]:
    """Apple's reasons, exact, under their own names."""
    return [ErrorRule(reason, outcome, reason.lower(), is_exact=True) for reason in reasons]


def _parts(outcome: Outcome, code: str, *texts: str) -> list[ErrorRule]:
    return [ErrorRule(code, outcome, text.lower()) for text in texts]


APPLE = [
    *_reasons(
        Outcome.DEAD,
        *("Unregistered", "ExpiredToken", "BadDeviceToken", "DeviceTokenNotForTopic", "MissingDeviceToken"),
    ),
    *_reasons(Outcome.CONFIG, "TopicDisallowed", "BadTopic", "MissingTopic", "BadCertificate"),
    *_reasons(Outcome.CONFIG, "BadCertificateEnvironment", "Forbidden", "InvalidProviderToken", "MissingProviderToken"),
    *_reasons(Outcome.CONFIG, "UnrelatedKeyIdInToken", "BadEnvironmentKeyIdInToken", "ExpiredProviderToken"),
    *_reasons(Outcome.TRANSIENT, "TooManyProviderTokenUpdates", "TooManyRequests", "IdleTimeout"),
    *_reasons(Outcome.TRANSIENT, "InternalServerError", "ServiceUnavailable", "Shutdown"),
    *_reasons(Outcome.PAYLOAD, "PayloadTooLarge", "PayloadEmpty", "BadCollapseId", "BadExpirationDate", "BadMessageId"),
    *_reasons(Outcome.PAYLOAD, "BadPriority", "InvalidPushType", "DuplicateHeaders", "BadPath", "MethodNotAllowed"),
    ErrorRule("empty", Outcome.TRANSIENT, "", is_exact=True),
    *_parts(Outcome.TRANSIENT, "not_json", "invalid character"),
    *_parts(Outcome.CONFIG, "tls", "certificate has expired", "revoked certificate", "bad certificate", "x509:"),
    *_parts(Outcome.CONFIG, "tls", "failed to verify certificate"),
    *_parts(Outcome.TRANSIENT, "unreachable", "no such host", "connection refused", "dial tcp", "bad gateway"),
    *_parts(Outcome.AMBIGUOUS, "timeout", "client.timeout exceeded", "context deadline exceeded"),
    *_parts(Outcome.AMBIGUOUS, "cancelled", "context canceled"),
    *_parts(Outcome.AMBIGUOUS, "connection_lost", 'post "https://api.'),
]

FIREBASE = [
    *_parts(Outcome.DEAD, "unregistered", "requested entity was not found", "uninstalled or unregistered"),
    ErrorRule("unregistered", Outcome.DEAD, "notregistered", is_exact=True),
    *_parts(Outcome.DEAD, "invalid_token", "not a valid fcm registration token", "invalid registration"),
    *_parts(Outcome.DEAD, "sender_id_mismatch", "senderid mismatch"),
    *_parts(Outcome.PAYLOAD, "too_large", "message is too big"),
    *_parts(Outcome.PAYLOAD, "invalid_argument", "request contains an invalid argument", "invalid value at"),
    *_parts(Outcome.PAYLOAD, "invalid_argument", "invalid data payload key", "exactly one of token"),
    *_parts(Outcome.PAYLOAD, "invalid_argument", "priority must be", "malformed topic", "invalid message at index"),
    *_parts(Outcome.PAYLOAD, "invalid_argument", "invalid image url", "you can specify up to 500"),
    *_parts(Outcome.PAYLOAD, "invalid_argument", "please provide at least one device token"),
    *_parts(Outcome.CONFIG, "permission", "permission '", "has not been used in project"),
    *_parts(Outcome.CONFIG, "permission", "firebase cloud messaging api", "invalid authentication credentials"),
    *_parts(Outcome.CONFIG, "permission", "missing required authentication", "unauthenticated", "invalid_grant"),
    *_parts(Outcome.CONFIG, "third_party_auth", "auth error from apns or web push service"),
    *_parts(Outcome.CONFIG, "service_account", "private key should be a pem"),
    *_parts(Outcome.TRANSIENT, "http_429", "cannot fetch token: 429"),
    *_parts(Outcome.CONFIG, "service_account", "cannot fetch token: 4"),
    *_parts(Outcome.TRANSIENT, "cannot_fetch_token", "cannot fetch token"),
    *_parts(Outcome.TRANSIENT, "quota_exceeded", "quota exceeded", "resource has been exhausted", "rate exceeded"),
    *_parts(Outcome.TRANSIENT, "unavailable", "currently unavailable"),
    *_parts(Outcome.TRANSIENT, "internal", "internal error"),
    *_parts(Outcome.TRANSIENT, "http_5xx", "unexpected http response with status: 5"),
    *_parts(Outcome.TRANSIENT, "http_429", "unexpected http response with status: 429"),
    *_parts(Outcome.CONFIG, "http_4xx", "unexpected http response with status: 4"),
    *_parts(Outcome.TRANSIENT, "unreachable", "failed to establish a connection"),
    *_parts(Outcome.CONFIG, "tls", "x509", "failed to verify certificate"),
    *_parts(Outcome.AMBIGUOUS, "timeout", "timed out while making", "context deadline exceeded"),
    *_parts(Outcome.AMBIGUOUS, "cancelled", "context canceled"),
    *_parts(Outcome.AMBIGUOUS, "connection_lost", "unknown error while making", "error while parsing response"),
]

UNKNOWN = ErrorRule("unknown", Outcome.TRANSIENT, "")


def classify(token_type: int, error: str) -> ErrorRule:
    """The rule that an error string of gorush falls under."""
    text = error.strip().lower()
    rules = APPLE if token_type == TokenType.APN else FIREBASE
    return next((rule for rule in rules if rule.matches(text)), UNKNOWN)
