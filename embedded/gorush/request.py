"""The body of `POST /api/push`: what gorush refuses with 400, and what it silently drops. The module is pure.

Go's decoder decides what is well-formed. A field of a wrong type refuses the whole request. `null`, unknown fields, the
case of names and any text after the first JSON value are ignored.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from embedded.gorush.outcomes import Platform

MAX_NOTIFICATIONS = 100
MAX_ANDROID_TOKENS = 500
MAX_PAYLOAD_BYTES = 4096
PRIORITIES = ("", "normal", "high")
FCM_TOPIC = re.compile(r"(/topics/)?(private/)?[a-zA-Z0-9-_.~%]*")
FIELD_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("platform", "retry", "expiration", "badge"), int),
    **dict.fromkeys(("notif_id", "to", "topic", "message", "title", "image", "priority"), str),
    **dict.fromkeys(("apns_id", "collapse_id", "push_type", "category", "thread-id", "interruption_level"), str),
    **dict.fromkeys(("content_available", "mutable_content", "production", "development"), bool),
    **dict.fromkeys(("data", "alert", "notification", "android", "webpush", "apns", "fcm_options"), dict),
    "tokens": list,
}
ANDROID_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("collapse_key", "priority", "ttl", "restricted_package_name"), str),
    **dict.fromkeys(("notification", "data"), dict),
}


class BadRequestError(ValueError):
    """A request that gorush refuses with 400. The text is its `message`."""


@dataclass(frozen=True, slots=True)
class Notification:
    """One notification: its fields as sent, the fields that gorush has, and the few that decide what happens to it."""

    fields: Mapping[str, Any]
    known: Mapping[str, Any]
    platform: int
    tokens: tuple[str, ...]
    notif_id: str
    topic: str
    message: str
    collapse_id: str


def read_push(body: bytes) -> list[Notification]:
    """Return the notifications of a request. Raises BadRequestError with one of gorush's three texts."""
    listed = _listed(body)
    if not listed:
        raise BadRequestError("Notifications field is empty.")
    if len(listed) > MAX_NOTIFICATIONS:
        raise BadRequestError(f"Number of notifications({len(listed)}) over limit({MAX_NOTIFICATIONS})")
    return listed


def _listed(body: bytes) -> list[Notification]:
    try:
        listed = _known(_decode(body), {"notifications": list})["notifications"]
        return [_notification(fields or {}) for fields in listed]
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise BadRequestError("Missing notifications field.") from exc


def _decode(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        # Go reads the first value, whatever follows, and replaces bytes that are not UTF-8.
        return json.JSONDecoder().raw_decode(body.decode(errors="replace").lstrip())[0]


def _notification(fields: Mapping[str, Any]) -> Notification:
    known = _known(fields, FIELD_TYPES)
    platform = known.get("platform", 0)
    _known(known.get("android", {}), ANDROID_TYPES)
    return Notification(
        fields=fields,
        known=known,
        platform=platform,
        tokens=_tokens(known),
        notif_id=known.get("notif_id", ""),
        topic=known.get("topic", ""),
        message=known.get("message", ""),
        collapse_id=_collapse_id(known, platform),
    )


def _known(fields: Mapping[str, Any], types: Mapping[str, type]) -> dict[str, Any]:
    """Return the fields that gorush has, without unknown ones.

    Raises TypeError for a field of a wrong type.
    """
    lower = ((name.lower(), value) for name, value in fields.items())
    known = {name: value for name, value in lower if value is not None and name in types}
    for name, value in known.items():
        if type(value) is not types[name]:  # not isinstance: True is an int to Python
            raise TypeError(name)
    return known


def _tokens(known: Mapping[str, Any]) -> tuple[str, ...]:
    tokens = tuple("" if token is None else token for token in known.get("tokens", ()))
    if not all(isinstance(token, str) for token in tokens):
        raise TypeError("tokens")
    return tokens


def _collapse_id(known: Mapping[str, Any], platform: int) -> str:
    """Return the id by which a phone replaces a push: of a data message its key, of a shown one its tag."""
    if platform != Platform.ANDROID:
        return str(known.get("collapse_id", ""))
    android = known.get("android", {})
    return str(android.get("collapse_key") or (android.get("notification") or {}).get("tag", ""))


def is_enabled(notification: Notification) -> bool:
    """Return whether gorush handles the platform. It drops others before counting. Huawei is off here."""
    return notification.platform in (Platform.IOS, Platform.ANDROID)


def count(notification: Notification) -> int:
    """Return the number of pushes as gorush counts them: one for each token, and one for a topic."""
    return len(notification.tokens) + bool(notification.topic)


def addressed_tokens(notification: Notification) -> tuple[str, ...]:
    """Return the tokens that gorush sends to. `to` is ignored on iOS."""
    to = notification.known.get("to") if notification.platform == Platform.ANDROID else ""
    return (*notification.tokens, to) if to else notification.tokens


def is_unaddressed(notification: Notification) -> bool:
    """Return whether gorush drops a notification without an address, or with too many. Only Android has this check."""
    tokens = addressed_tokens(notification)
    is_android = notification.platform == Platform.ANDROID
    return is_android and (not (tokens or notification.topic) or len(tokens) > MAX_ANDROID_TOKENS)


def is_invalid(notification: Notification) -> bool:
    """Return whether the Firebase SDK refuses to send this. One invalid field drops all of an Android notification."""
    known = notification.known
    priorities = known.get("priority", ""), known.get("android", {}).get("priority") or ""
    return notification.platform == Platform.ANDROID and not (
        all(addressed_tokens(notification))
        and all(priority in PRIORITIES for priority in priorities)
        and FCM_TOPIC.fullmatch(notification.topic)
    )


def is_too_large(notification: Notification) -> bool:
    """Return whether the payload exceeds the limits of Apple and Google."""
    data, text = notification.known.get("data", {}), notification.message
    if notification.platform == Platform.ANDROID:
        return _size({"body": text} if text else {}) + _size(data) > MAX_PAYLOAD_BYTES
    sound, is_available = notification.fields.get("sound"), notification.known.get("content_available")
    aps = {"alert": text, "sound": sound, "content-available": int(bool(is_available))}
    return _size({"aps": {name: value for name, value in aps.items() if value}, **data}) > MAX_PAYLOAD_BYTES


def _size(body: object) -> int:
    return len(orjson.dumps(body))
