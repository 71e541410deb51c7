"""The body of `POST /api/push`, in the one shape that this server sends. The module is pure.

gorush refuses a whole request for one field of a wrong type, and ignores `null` and unknown fields. It takes several
notifications and tokens, and topics for Firebase, which reach every subscriber. It drops a wrong priority for Firebase
without an error. These are refused here, so that no flow comes to rely on them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from embedded.gorush.outcomes import Platform

MAX_PAYLOAD_BYTES = 4096
# The fields that this server sends. `sound` has any type.
FIELD_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("platform", "expiration"), int),
    **dict.fromkeys(("notif_id", "topic", "message", "priority", "collapse_id", "push_type"), str),
    **dict.fromkeys(("content_available", "mutable_content", "production", "development"), bool),
    **dict.fromkeys(("data", "android"), dict),
    "tokens": list,
}
ANDROID_TYPES: Mapping[str, type] = {**dict.fromkeys(("collapse_key", "priority", "ttl"), str), "notification": dict}


class BadRequestError(ValueError):
    """A request that is refused with 400, and this text as its `message`."""


@dataclass(frozen=True, slots=True)
class Notification:
    """The notification of a request: its fields as sent. ``platform`` is None for one that gorush does not handle.

    gorush drops such a notification before it counts, which a dry run relies on.
    """

    fields: Mapping[str, Any]
    token: str
    platform: Platform | None

    @property
    def count(self) -> int:
        """Return the number of pushes as gorush counts them: one for the token, and one for a topic."""
        return 1 + bool(self.text("topic")) if self.platform else 0

    @property
    def collapse_id(self) -> str:
        """Return the id by which a phone replaces a push: of a data message its key, of a shown one its tag."""
        if self.platform is not Platform.ANDROID:
            return self.text("collapse_id")
        android = self.fields.get("android") or {}
        return str(android.get("collapse_key") or (android.get("notification") or {}).get("tag") or "")

    @property
    def is_too_large(self) -> bool:
        """Return whether the payload exceeds the limits of Apple and Google."""
        data, text = self.fields.get("data") or {}, self.text("message")
        if self.platform is Platform.ANDROID:
            return len(orjson.dumps({"body": text} if text else {}) + orjson.dumps(data)) > MAX_PAYLOAD_BYTES
        is_available = int(bool(self.fields.get("content_available")))
        aps = {"alert": text, "sound": self.text("sound"), "content-available": is_available}
        payload = {"aps": {name: value for name, value in aps.items() if value}} | data
        return len(orjson.dumps(payload)) > MAX_PAYLOAD_BYTES

    def text(self, name: str) -> str:
        return self.fields.get(name) or ""


def read_push(body: bytes) -> Notification:
    """Return the notification of a request. Raises BadRequestError, with gorush's own text where it has one."""
    try:
        listed = _checked(orjson.loads(body), {"notifications": list})["notifications"]
        for fields in listed:
            _checked(_checked(fields, FIELD_TYPES).get("android") or {}, ANDROID_TYPES)
        tokens = [token for fields in listed for token in fields.get("tokens") or []]
        if not all(isinstance(token, str) for token in tokens):
            raise TypeError("tokens")  # noqa: TRY301 - as any other wrong type
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise BadRequestError("Missing notifications field.") from exc
    if not listed:
        raise BadRequestError("Notifications field is empty.")
    number = listed[0].get("platform")
    each = Notification(listed[0], "".join(tokens), Platform(number) if number in set(Platform) else None)
    # gorush would drop the rest for Firebase, or send it to others, too.
    is_sound = each.token and each.text("priority") in ("", "normal", "high") and not each.text("topic")
    if len(listed) != 1 or len(tokens) != 1 or (each.platform is Platform.ANDROID and not is_sound):
        raise BadRequestError("The development gorush takes one notification to one token.")
    return each


def _checked(fields: Mapping[str, Any], types: Mapping[str, type]) -> Mapping[str, Any]:
    """Return the fields. Raises TypeError for one of a wrong type."""
    for name, value in fields.items():
        if value is not None and type(value) is not types.get(name, type(value)):  # True is an int to isinstance
            raise TypeError(name)
    return fields
