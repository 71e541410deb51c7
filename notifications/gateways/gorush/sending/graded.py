"""The body of POST /api/push for a push that states its urgency and its content.

At Apple, a push of low grade wakes the app in the background. A call goes to the token for calls, with a topic of its
own. Anything else is an alert that the app may change before it is shown. At Firebase everything is a data message:
only the app decides what to show.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from notifications.gateways.gorush.sending.platforms import NUMBERS
from notifications.messages import Content, Grade, Push
from registrations.messages import DeviceAddress, Environment, TokenType, read_address

# The limits of Apple, for the whole payload, and of Google, for keys and values of the data.
MAX_APPLE_BYTES = 4096
MAX_CALL_BYTES = 5120
MAX_FIREBASE_BYTES = 4096
CALL_TOPIC_SUFFIX = ".voip"
CALL_TTL = "30s"


class Fitted(NamedTuple):
    """A push within the limits: gorush's notification, and whether the payload was too large for it."""

    notification: dict[str, Any]
    is_truncated: bool


def fit(push: Push) -> Fitted:
    """Return the notification for gorush, without the payload if that is too large.

    A ciphertext cannot be shortened, and a device that is woken fetches the message itself.
    """
    address = read_address(push.address)
    if push.message:
        notification = _notification(push, address, Content.decode(push.message))
        if _is_within_limit(notification):
            return Fitted(notification, is_truncated=False)
    wake = _notification(push, address, Content.decode(push.wake))
    return Fitted(wake, is_truncated=bool(push.message))


def _notification(push: Push, address: DeviceAddress, content: Content) -> dict[str, Any]:
    is_ringing = rings(push, address)
    common = {
        "notif_id": notif_id(push),
        "tokens": [address.call_token if is_ringing else address.token],
        "platform": NUMBERS[push.channel.token_type],
        "data": dict(content.data),
    }
    if push.channel.token_type != TokenType.APN:
        return common | _firebase(push)
    own = _call(push) if is_ringing else _background(push) if push.grade == Grade.LOW else _alert(push, content)
    return common | {"collapse_id": push.collapse_id} | _environment(address) | own


def notif_id(push: Push) -> str:
    """Return the id of a notification's attempt, the only reliable key for gorush's later reports."""
    return f"{push.notification_id}-{push.attempt_number}"


def _firebase(push: Push) -> dict[str, Any]:
    """Return the fields for Firebase only.

    The priority is given twice, because only recent versions of gorush apply the outer one to data messages. There is
    no `topic`: for Firebase it means all subscribers, in addition to the token. Only the collapse key makes one of a
    push that is sent again: a data message has no tag, and no id in it tells the app that it had this push before.
    """
    priority = "normal" if push.grade == Grade.LOW else "high"
    android = {"priority": priority, "collapse_key": push.collapse_id}
    return {"priority": priority, "android": android | ({"ttl": CALL_TTL} if push.grade == Grade.VOIP else {})}


def _call(push: Push) -> dict[str, Any]:
    expiration = {"expiration": int(push.expires_at.timestamp())} if push.expires_at else {}
    topic = push.channel.app_topic + CALL_TOPIC_SUFFIX
    return {"topic": topic, "push_type": "voip", "priority": "high"} | expiration


def _background(push: Push) -> dict[str, Any]:
    return {
        "topic": push.channel.app_topic,
        "push_type": "background",
        "priority": "normal",
        "content_available": True,
    }


def _alert(push: Push, content: Content) -> dict[str, Any]:
    return {
        "topic": push.channel.app_topic,
        "push_type": "alert",
        "priority": "high",
        "mutable_content": True,
        "message": content.text,
        **({"sound": content.sound} if content.sound else {}),
    }


def _environment(address: DeviceAddress) -> dict[str, bool]:
    return {Environment(address.environment).value: True} if address.environment else {}


def _is_within_limit(notification: Mapping[str, Any]) -> bool:
    if notification["platform"] == NUMBERS[TokenType.APN]:
        is_call = notification["push_type"] == "voip"
        return apple_size_bytes(notification) <= (MAX_CALL_BYTES if is_call else MAX_APPLE_BYTES)
    return firebase_size_bytes(notification) <= MAX_FIREBASE_BYTES


def apple_size_bytes(notification: Mapping[str, Any]) -> int:
    """Return the size of what Apple receives. gorush puts the data beside `aps`, and none of our keys has that name."""
    aps = {
        "alert": notification.get("message"),
        "sound": notification.get("sound"),
        "mutable-content": 1 if notification.get("mutable_content") else None,
        "content-available": 1 if notification.get("content_available") else None,
    }
    return len(orjson.dumps({"aps": {name: value for name, value in aps.items() if value}} | notification["data"]))


def firebase_size_bytes(notification: Mapping[str, Any]) -> int:
    """Return the size of the data as Google counts it."""
    return sum(len(key.encode()) + len(value.encode()) for key, value in notification["data"].items())


def rings(push: Push, address: DeviceAddress) -> bool:
    """Return whether a push goes to the token for calls, so that the device rings.

    A push that was refused there goes to the usual token next.
    """
    return push.grade == Grade.VOIP and bool(address.call_token) and not push.is_payload_dropped
