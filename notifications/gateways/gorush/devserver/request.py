"""The body of `POST /api/push`: what gorush refuses with 400, and what it drops without a word. Pure.

Go's decoder decides what is well-formed: a field of a wrong type refuses the whole request, `null` and unknown fields
are ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from notifications.gateways.gorush.devserver.outcomes import Platform

MAX_NOTIFICATIONS = 100
MAX_ANDROID_TOKENS = 500
MAX_PAYLOAD_BYTES = 4096
PRIORITIES = ("", "normal", "high")
FIELD_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("platform", "retry", "expiration", "badge"), int),
    **dict.fromkeys(("notif_id", "to", "topic", "message", "title", "image", "priority"), str),
    **dict.fromkeys(("apns_id", "collapse_id", "push_type", "category", "thread-id", "interruption_level"), str),
    **dict.fromkeys(("content_available", "mutable_content", "production", "development"), bool),
    **dict.fromkeys(("data", "alert", "notification", "android", "webpush", "apns", "fcm_options"), dict),
    "tokens": list,
}


class BadRequestError(ValueError):
    """gorush's 400; the text is its `message`."""


@dataclass(frozen=True, slots=True)
class Notification:
    """One notification as sent, and the few fields that decide what happens to it."""

    fields: Mapping[str, Any]
    platform: int
    tokens: tuple[str, ...]
    notif_id: str
    topic: str
    message: str
    collapse_id: str


def read_push(body: bytes) -> list[Notification]:
    """Read the notifications. Raises BadRequestError with one of gorush's three texts."""
    listed = _listed(body)
    if not listed:
        raise BadRequestError("Notifications field is empty.")
    if len(listed) > MAX_NOTIFICATIONS:
        raise BadRequestError(f"Number of notifications({len(listed)}) over limit({MAX_NOTIFICATIONS})")
    return listed


def _listed(body: bytes) -> list[Notification]:
    try:
        listed = orjson.loads(body)["notifications"]
        if not isinstance(listed, list):
            raise TypeError("not a list")  # noqa: TRY301
        return [_notification(fields or {}) for fields in listed]
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise BadRequestError("Missing notifications field.") from exc


def _notification(fields: Mapping[str, Any]) -> Notification:
    known = {name: value for name, value in fields.items() if value is not None and name in FIELD_TYPES}
    for name, value in known.items():
        if type(value) is not FIELD_TYPES[name]:  # not isinstance: True is an int to Python
            raise TypeError(name)
    platform = known.get("platform", 0)
    return Notification(
        fields=fields,
        platform=platform,
        tokens=_tokens(known),
        notif_id=known.get("notif_id", ""),
        topic=known.get("topic", ""),
        message=known.get("message", ""),
        collapse_id=_collapse_id(known, platform),
    )


def _tokens(known: Mapping[str, Any]) -> tuple[str, ...]:
    tokens = tuple(known.get("tokens", ()))
    if not all(isinstance(token, str) for token in tokens):
        raise TypeError("tokens")
    return tokens


def _collapse_id(known: Mapping[str, Any], platform: int) -> str:
    if platform == Platform.ANDROID:
        return str(known.get("android", {}).get("collapse_key", ""))
    return str(known.get("collapse_id", ""))


def count(notification: Notification) -> int:
    """Count like gorush: one for a topic besides the tokens, nothing for Huawei, which is disabled here."""
    if notification.platform == Platform.HUAWEI:
        return 0
    return len(notification.tokens) + bool(notification.topic)


def addressed_tokens(notification: Notification) -> tuple[str, ...]:
    """Return the tokens gorush sends to; of what it drops nothing shows but this emptiness.

    An Android notification with one invalid field is dropped as a whole, because the library refuses it before sending.
    """
    if notification.platform == Platform.IOS:
        return notification.tokens  # `to` is ignored on iOS
    if notification.platform != Platform.ANDROID:
        return ()
    to = notification.fields.get("to") or ""
    tokens = (*notification.tokens, to) if to else notification.tokens
    is_valid = all(tokens) and len(tokens) <= MAX_ANDROID_TOKENS
    return tokens if is_valid and (notification.fields.get("priority") or "") in PRIORITIES else ()


def is_too_large(notification: Notification) -> bool:
    """Say whether the payload exceeds what Apple and Google take, counting text and data only."""
    data = notification.fields.get("data") or {}
    payload = {"aps": {"alert": notification.message, "sound": "default", "content-available": 1}, **data}
    return len(orjson.dumps(payload)) > MAX_PAYLOAD_BYTES
