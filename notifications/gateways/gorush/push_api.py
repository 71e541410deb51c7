"""POST /api/push of gorush: the body for one push, and the result that its answer means. The module is pure.

The body is one notification with one token, in the form of status-go of 2026. gorush reports failures only: 200 without
an entry means that Apple or Google took the push (gorush.md, 1.5 and 3.7).
"""

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import orjson

from notifications.gateways.gorush.errors import UNKNOWN, ErrorRule, classify, signature_of, without_token
from notifications.messages import DRY_RUN, Content, Grade, NotificationType, Outcome, Push, Result
from registrations.messages import DeviceAddress, Environment, TokenType, read_address

NUMBERS: Mapping[int, int] = {TokenType.APN: 1, TokenType.FIREBASE: 2}  # of the platforms, in gorush's requests
# What Status' own server shows on phones. A type unknown to this server is shown as a mention, as status-go does.
TEXTS: dict[int, str] = {
    NotificationType.MESSAGE: "New message in Messenger",
    NotificationType.MENTION: "New mention or reply in Communities",
    NotificationType.REQUEST_TO_JOIN_COMMUNITY: "Someone requested to join a community you are an admin of",
    NotificationType.CONTACT_REQUEST: "Someone sent you a contact request",
}
DEEP_LINKS: dict[int, str] = {
    NotificationType.MESSAGE: "status-app://chats",
    NotificationType.CONTACT_REQUEST: "status-app://contact-requests",
}
OTHER_DEEP_LINK = "status-app://ac"
# The limit of Apple, for the whole payload, and of Google, which counts keys and values of the data (gorush.md, 3.7).
MAX_PAYLOAD_BYTES = 4096
# A number of no platform in gorush: it takes such a notification, checks it and silently drops it (gorush.md, 1.6).
NO_PLATFORM = 0


def fit(push: Push) -> tuple[dict[str, Any], bool]:
    """Return the notification for gorush, and whether it goes without its payload, because that is too large.

    A ciphertext cannot be shortened, and a device that is woken fetches the message itself.
    """
    address = read_address(push.address)
    whole = _notification(push, address, push.message)
    if not push.message or payload_size_bytes(whole) <= _limit_bytes(whole):
        return whole, False
    return _notification(push, address, b""), True


def build_request(notification: Mapping[str, Any]) -> bytes:
    """Return the JSON body for one push.

    There is one token, because gorush loses failure entries of requests with several (gorush.md, 3.2).
    """
    return orjson.dumps({"notifications": [notification]})


def as_dry_run(notification: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same push for no platform: gorush takes it, and sends nothing to Apple or Google."""
    return {name: value for name, value in notification.items() if name != "topic"} | {"platform": NO_PLATFORM}


def notif_id(push: Push) -> str:
    """Return the id of a notification's attempt, the only reliable key for gorush's later reports."""
    return f"{push.notification_id}-{push.attempt_number}"


def _limit_bytes(notification: Mapping[str, Any]) -> int:
    return MAX_CALL_BYTES if notification.get("push_type") == "voip" else MAX_PAYLOAD_BYTES


def payload_size_bytes(notification: Mapping[str, Any]) -> int:
    """Return the size of what Apple or Google receives of a notification, rather too high than too low."""
    data, shown = notification["data"], notification.get("message")
    if notification["platform"] == NUMBERS[TokenType.APN]:
        aps = {
            "alert": shown,
            "sound": notification.get("sound"),
            "mutable-content": 1 if notification.get("mutable_content") else None,
            "content-available": 1 if notification.get("content_available") else None,
        }
        # gorush puts the data beside `aps`, and none of our keys has that name.
        return len(orjson.dumps({"aps": {name: value for name, value in aps.items() if value}} | data))
    if shown is None:  # a data message, of which Google counts keys and values
        return sum(len(key.encode()) + len(value.encode()) for key, value in data.items())
    return len(orjson.dumps({"notification": {"body": shown}, "data": data, "android": notification["android"]}))


def _notification(push: Push, address: DeviceAddress, payload: bytes) -> dict[str, Any]:
    is_apple = push.app.token_type == TokenType.APN
    own = _graded(push, address, payload) if push.grade else _of_messenger(push, payload, is_apple=is_apple)
    return {
        "notif_id": notif_id(push),
        "tokens": [address.call_token if rings(push, address) else address.token],
        "platform": NUMBERS[push.app.token_type],
        **({"topic": push.app.app_topic, "collapse_id": push.collapse_id} if is_apple else {}),
        **own,
    }


# Pushes of the messenger ----------------------------------------------------------------------------------------------


def _of_messenger(push: Push, payload: bytes, *, is_apple: bool) -> dict[str, Any]:
    data = {
        "encryptedMessage": "0x" + payload.hex(),
        "chatId": "0x" + push.chat_id.hex(),
        "publicKey": "0x" + push.public_key_hash.hex(),
    }
    shown = {"message": TEXTS.get(push.type, TEXTS[NotificationType.MENTION]), "data": data}
    if not is_apple:
        # There is no `topic`: for Firebase it addresses all subscribers, too. A push that is sent again replaces the
        # first on the phone by its tag. There is no collapse key: for a phone that is off, Google keeps the messages of
        # four keys, and a hundred without a key.
        return shown | {"android": {"notification": {"tag": push.collapse_id}}}
    data["deepLink"] = DEEP_LINKS.get(push.type, OTHER_DEEP_LINK)
    return shown | {
        "content_available": True,
        "sound": "default",
        "priority": "high",  # or normal: gorush drops any other value without an error
        "push_type": "alert",
    }


# Pushes that state their urgency and their content --------------------------------------------------------------------

# At Apple, a push of low grade wakes the app in the background. A call goes to the token for calls, with a topic of its
# own. Anything else is an alert that the app may change before it is shown. At Firebase everything is a data message:
# only the app decides what to show.

MAX_CALL_BYTES = 5120
CALL_TOPIC_SUFFIX = ".voip"
CALL_TTL = "30s"


def _graded(push: Push, address: DeviceAddress, payload: bytes) -> dict[str, Any]:
    content = Content.decode(payload or push.wake)
    if push.app.token_type != TokenType.APN:
        own = _firebase(push)
    else:
        own = _call(push) if rings(push, address) else _background() if push.grade == Grade.LOW else _alert(content)
        own |= {Environment(address.environment).value: True} if address.environment else {}
    return own | {"data": dict(content.data)}


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
    topic = push.app.app_topic + CALL_TOPIC_SUFFIX
    return {"topic": topic, "push_type": "voip", "priority": "high"} | expiration


def _background() -> dict[str, Any]:
    return {"push_type": "background", "priority": "normal", "content_available": True}


def _alert(content: Content) -> dict[str, Any]:
    sound = {"sound": content.sound} if content.sound else {}
    return {"push_type": "alert", "priority": "high", "mutable_content": True, "message": content.text} | sound


def rings(push: Push, address: DeviceAddress) -> bool:
    """Return whether a push goes to the token for calls, so that the device rings.

    A push that was refused there goes to the usual token next.
    """
    return push.grade == Grade.VOIP and bool(address.call_token) and not push.is_payload_dropped


# Pushes that must not be sent -----------------------------------------------------------------------------------------

MAX_COLLAPSE_ID_BYTES = 64  # Apple's limit
# gorush writes Apple's tokens into a URL unescaped: "x#1" would reach the device of "x", and "a%zz" would reach none.
_IN_A_URL = re.compile(r"[A-Za-z0-9._~:@!$&'()*+,;=-]+")
# The result of each fault. A token that can never be sent counts as a dead one.
FAULTS = {
    "unknown_platform": Outcome.PAYLOAD,
    "no_device_token": Outcome.DEAD,
    "unsendable_token": Outcome.DEAD,
    "collapse_id_too_long": Outcome.PAYLOAD,
}


def find_fault(push: Push) -> Result | None:
    """Return the result of a push that must not even be sent, or None."""
    code = _fault(push)
    return Result(FAULTS[code], code, is_untried=True) if code else None


def _fault(push: Push) -> str:
    if push.app.token_type not in NUMBERS:
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
    return push.app.token_type != TokenType.APN or _IN_A_URL.fullmatch(token) is not None


def device_token(push: Push) -> str:
    """Return the token that a push goes to: the one for calls, or the device's usual one.

    Raises ValueError for an address that is not one of gorush's.
    """
    address = read_address(push.address)
    return address.call_token if rings(push, address) else address.token


# Answers --------------------------------------------------------------------------------------------------------------

MAX_RETRY_AFTER_SECONDS = 3600.0
MASK = "*"  # what gorush writes in place of parts of a token
NOT_UNDERSTOOD = Result(Outcome.AMBIGUOUS, "not_understood")
DROPPED = Result(Outcome.CONFIG, "dropped")


def read_response(status: int, body: bytes, push: Push, rules: Sequence[ErrorRule], *, retry_after: str = "") -> Result:
    """Return the result of ``push`` in gorush's answer, by these rules.

    An answer of gorush's own form without an entry about this push is a success, whatever its ``counts``: another
    attempt would double the push. No other answer is read as success, because the push may not have reached a gorush.
    """
    if status != HTTPStatus.OK:
        return _read_status(status, body, retry_after)
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return Result(Outcome.AMBIGUOUS, "not_json")
    if not isinstance(answer, dict) or answer.get("success") != "ok":
        return NOT_UNDERSTOOD
    logs = answer.get("logs") or []
    if not isinstance(logs, list) or not all(isinstance(entry, dict) for entry in logs):
        return NOT_UNDERSTOOD
    entries = [entry for entry in logs if _names(entry, push)]
    return _read_entries(entries, push, rules) if entries else _read_silence(answer.get("counts"))


def read_dry_run(result: Result) -> Result:
    """Return the result of a dry run, given what `read_response` returned. A dropped dry run is a success."""
    is_taken = result == DROPPED or result.outcome is Outcome.DELIVERED
    return Result(Outcome.DELIVERED, DRY_RUN, is_dry_run=True) if is_taken else result


def _read_status(status: int, body: bytes, retry_after: str) -> Result:
    code = f"http_{status}"
    if status == HTTPStatus.BAD_REQUEST and _is_of_gorush(body):
        return Result(Outcome.PAYLOAD, code)
    if status == HTTPStatus.GATEWAY_TIMEOUT:  # a proxy sent it: gorush has the push and may be sending it
        return Result(Outcome.AMBIGUOUS, code)
    if status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        # A 500 means that the queue was full. The request has one notification, so nothing of it was sent.
        return Result(Outcome.TRANSIENT, code, retry_after_seconds=_seconds(retry_after))
    return Result(Outcome.CONFIG, code)


def _is_of_gorush(body: bytes) -> bool:
    """Return whether gorush itself refused a request.

    A proxy, or a port that expects TLS, answers any request with 400, and no push must end because of that.
    """
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return isinstance(answer, dict) and answer.get("code") == HTTPStatus.BAD_REQUEST


def _seconds(retry_after: str) -> float:
    return min(float(retry_after), MAX_RETRY_AFTER_SECONDS) if retry_after.isascii() and retry_after.isdigit() else 0.0


def _read_silence(counts: Any) -> Result:
    """Return the result of an answer without a failure of this push.

    gorush counts the pushes that it was to send: 0 when it drops pushes of this platform. Other servers that speak its
    protocol write something else there, which means nothing.
    """
    is_nothing_sent = type(counts) is int and counts == 0  # not isinstance: False is an int to Python
    return DROPPED if is_nothing_sent else Result(Outcome.DELIVERED)


def _read_entries(entries: list[dict[str, Any]], push: Push, rules: Sequence[ErrorRule]) -> Result:
    """Return the result of the last error of our token in this attempt. Other entries may be of another attempt."""
    errors = [
        entry["error"]
        for entry in entries
        if _has_token(entry, push) and _has_id(entry, push) and isinstance(entry.get("error"), str)
    ]
    return _read_error(errors[-1], push, rules) if errors else NOT_UNDERSTOOD


def _names(entry: Mapping[str, Any], push: Push) -> bool:
    """Return whether an entry may be about this push: by its token, or by the id of the attempt."""
    is_text = isinstance(entry.get("token") or "", str)
    return not is_text or _has_token(entry, push) or entry.get("notif_id") == notif_id(push)


def _has_token(entry: Mapping[str, Any], push: Push) -> bool:
    """Return whether the token of an entry is the one that was sent. It may be masked or missing."""
    token = entry.get("token") or ""
    return isinstance(token, str) and (
        token == device_token(push)
        or not token
        or (MASK in token and all(shown in device_token(push) for shown in token.split(MASK)))
    )


def _has_id(entry: Mapping[str, Any], push: Push) -> bool:
    return (entry.get("notif_id") or notif_id(push)) == notif_id(push)


def _read_error(error: str, push: Push, rules: Sequence[ErrorRule]) -> Result:
    token = device_token(push)
    redacted = without_token(error, token)
    # A token made of words of Apple or Google must not count as theirs. If replacing it hides their own words, the
    # unredacted error counts.
    readings = (without_token(error, token, min_length=1), redacted, without_token(error, ""))
    known = (rule for text in readings if (rule := classify(push.app.token_type, text, rules)) is not UNKNOWN)
    rule = next(known, UNKNOWN)
    return Result(
        rule.outcome,
        rule.code,
        is_guarded=rule.is_guarded,
        retry_base_seconds=rule.retry_base_seconds,
        error=signature_of(redacted, token),
    )
