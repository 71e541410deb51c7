"""The body of POST /api/push: one notification with one token, in the shape of status-go of 2026."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from notifications.gateways.gorush.graded import fit, rings
from notifications.gateways.gorush.platforms import NUMBERS
from notifications.messages import NotificationType, Outcome, Push, Result
from registrations.addresses import read_address
from registrations.messages import TokenType


@dataclass(frozen=True, slots=True)
class Presentation:
    """How a push looks and sounds on the phone. Keys of the texts: message, mention,
    request_to_join, contact_request.
    """

    texts: Mapping[str, str]
    deep_links: Mapping[str, str]
    sound: str
    priority: str


_TEXT_KEYS: dict[int, str] = {
    NotificationType.MESSAGE: "message",
    NotificationType.MENTION: "mention",
    NotificationType.REQUEST_TO_JOIN_COMMUNITY: "request_to_join",
    NotificationType.CONTACT_REQUEST: "contact_request",
}
# The most that Apple and Google take, as they count it (gorush.md, 3.7).
MAX_PAYLOAD_BYTES = 4096
NO_CIPHERTEXT = "0x"
# A number that gorush knows no platform by: it takes such a notification, checks it and silently drops it (gorush.md,
# 1.6).
NO_PLATFORM = 0
# A type that this server does not know yet is shown as a mention, as status-go does.
_GENERIC = "mention"


def build_request(push: Push, presentation: Presentation) -> bytes:
    """Return the JSON body for one push.

    There is one token, because gorush loses failure entries of requests with several (gorush.md, 3.2). A push that
    would be too large goes without its ciphertext at once: a phone that is woken can fetch the message itself.
    """
    notification = _notification(push, presentation)
    if payload_size_bytes(notification) > MAX_PAYLOAD_BYTES:
        notification["data"]["encryptedMessage"] = NO_CIPHERTEXT
    return orjson.dumps({"notifications": [notification]})


def build_dry_run(push: Push, presentation: Presentation) -> bytes:
    """Return the JSON body of the same push for no platform: gorush takes it, and neither Apple nor
    Google hears of it.
    """
    full = fit(push, notif_id(push)).notification if push.grade else _notification(push, presentation)
    notification = full | {"platform": NO_PLATFORM}
    notification.pop("topic", None)
    return orjson.dumps({"notifications": [notification]})


def payload_size_bytes(notification: dict[str, Any]) -> int:
    """Return the size of what Apple or Google receive of a notification for gorush, a little more rather than less."""
    text, data = notification["message"], notification["data"]
    if notification["platform"] == NUMBERS[TokenType.APN]:
        # gorush puts the data beside `aps`, and none of our keys has that name.
        return len(
            orjson.dumps({"aps": {"alert": text, "content-available": 1, "sound": notification["sound"]}} | data)
        )
    return len(orjson.dumps({"notification": {"body": text}, "data": data, "android": notification["android"]}))


def _notification(push: Push, presentation: Presentation) -> dict[str, Any]:
    notification: dict[str, Any] = {
        "notif_id": notif_id(push),
        "tokens": [device_token(push)],
        "platform": NUMBERS[push.channel.token_type],
        "message": presentation.texts[_TEXT_KEYS.get(push.type, _GENERIC)],
        "data": {
            "encryptedMessage": "0x" + push.message.hex(),
            "chatId": "0x" + push.chat_id.hex(),
            "publicKey": "0x" + push.public_key_hash.hex(),
        },
    }
    if push.channel.token_type == TokenType.APN:
        _address_apple(notification, push, presentation)
    else:
        _address_firebase(notification, push)
    return notification


def notif_id(push: Push) -> str:
    """Return the name of notification and attempt, the only reliable way to correlate what gorush says later."""
    return f"{push.notification_id}-{push.attempt_number}"


def _address_apple(notification: dict[str, Any], push: Push, presentation: Presentation) -> None:
    notification |= {
        "topic": push.channel.apn_topic,
        "collapse_id": push.collapse_id,
        "content_available": True,
        "sound": presentation.sound,
        "priority": presentation.priority,
        "push_type": "alert",
    }
    links = presentation.deep_links
    notification["data"]["deepLink"] = links.get(_TEXT_KEYS.get(push.type, _GENERIC), links["other"])


def _address_firebase(notification: dict[str, Any], push: Push) -> None:
    """Add what only Firebase takes. There is no `topic`: for Firebase it means all subscribers, in addition to the
    token.
    """
    notification["android"] = {"collapse_key": push.collapse_id, "notification": {"tag": push.collapse_id}}


MAX_COLLAPSE_ID_BYTES = 64  # Apple's limit
# gorush writes Apple's tokens into a URL as they are: "x#1" would reach the device of "x", and "a%zz" would reach none.
_IN_A_URL = re.compile(r"[A-Za-z0-9._~:@!$&'()*+,;=-]+")
# What each fault makes of the push. A token that can never be sent is treated as a dead one.
FAULTS = {
    "unknown_platform": Outcome.PAYLOAD,
    "no_device_token": Outcome.DEAD,
    "unsendable_token": Outcome.DEAD,
    "collapse_id_too_long": Outcome.PAYLOAD,
}


def find_fault(push: Push) -> Result | None:
    """Return what is wrong with a push that must not even be sent, or None."""
    code = _fault(push)
    return Result(FAULTS[code], code, is_untried=True) if code else None


def _fault(push: Push) -> str:
    if push.channel.token_type not in NUMBERS:
        return "unknown_platform"
    if not push.address:
        return "no_device_token"
    if not _is_sendable(push):
        return "unsendable_token"
    return "" if len(push.collapse_id.encode()) <= MAX_COLLAPSE_ID_BYTES else "collapse_id_too_long"


def _is_sendable(push: Push) -> bool:
    try:
        token = device_token(push)
    except ValueError:
        return False
    return push.channel.token_type != TokenType.APN or _IN_A_URL.fullmatch(token) is not None


def device_token(push: Push) -> str:
    """Return the token that a push goes to: that for calls, or the device's usual one.

    Raises ValueError for an address that is not one of gorush's.
    """
    address = read_address(push.address)
    return address.call_token if rings(push, address) else address.token
