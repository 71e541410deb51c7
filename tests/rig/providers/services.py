"""Push services of Apple and Google, and the record of all pushes that came there: the ground truth for "sent once".

Sources: Apple, "Sending notification requests to APNs" and "Handling notification responses from APNs", for
`POST /3/device/<token>`; Google, "REST Resource: projects.messages" and "ErrorCode", for
`POST /v1/projects/<project>/messages:send`, of which gorush forwards only `error.message`.
"""

import asyncio
import re
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import orjson

from embedded.gorush.outcomes import PAGE, Outcome, Platform, Refusal, decide
from embedded.gorush.server import Faults
from tests.rig.providers.http import Break, Reply, Request, json_reply

ACCESS_TOKEN = "an-access-token"
APPLE = ("api.push.apple.com", "api.sandbox.push.apple.com")
APPLE_PATH = "/3/device/"
MAX_BYTES = 4096
MAX_COLLAPSE_ID_BYTES = 64
STATUS: Mapping[str, HTTPStatus] = {
    "Unregistered": HTTPStatus.GONE,
    "ExpiredToken": HTTPStatus.GONE,
    "InvalidProviderToken": HTTPStatus.FORBIDDEN,
    "MissingProviderToken": HTTPStatus.FORBIDDEN,
    "PayloadTooLarge": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "TooManyRequests": HTTPStatus.TOO_MANY_REQUESTS,
    "InternalServerError": HTTPStatus.INTERNAL_SERVER_ERROR,
    "ServiceUnavailable": HTTPStatus.SERVICE_UNAVAILABLE,
}
GOOGLE = ("fcm.googleapis.com",)
GOOGLE_PATH = re.compile(r"/v1/projects/(?P<project>[a-z0-9-]+)/messages:send(\?.*)?")
DETAIL = "type.googleapis.com/google.firebase.fcm.v1.FcmError"
TOO_BIG = Refusal.BIG.text(Platform.ANDROID, "")
UNAUTHENTICATED = "Request had invalid authentication credentials."

INVALID = (HTTPStatus.BAD_REQUEST, "INVALID_ARGUMENT", "INVALID_ARGUMENT")
UNREGISTERED = (HTTPStatus.NOT_FOUND, "NOT_FOUND", "UNREGISTERED")
UNAVAILABLE = (HTTPStatus.SERVICE_UNAVAILABLE, "UNAVAILABLE", "UNAVAILABLE")
# HTTP status, google.rpc status and FCM's own code.
CODES: Mapping[Refusal, tuple[HTTPStatus, str, str]] = {
    Refusal.DEAD: UNREGISTERED,
    Refusal.EXPIRED: UNREGISTERED,
    Refusal.UNINSTALLED: UNREGISTERED,
    Refusal.WRONG: (HTTPStatus.FORBIDDEN, "PERMISSION_DENIED", "SENDER_ID_MISMATCH"),
    Refusal.CONFIG: (HTTPStatus.FORBIDDEN, "PERMISSION_DENIED", ""),
    Refusal.TOPIC: (HTTPStatus.UNAUTHORIZED, "UNAUTHENTICATED", "THIRD_PARTY_AUTH_ERROR"),
    Refusal.QUOTA: (HTTPStatus.TOO_MANY_REQUESTS, "RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED"),
    Refusal.BUSY: UNAVAILABLE,
    Refusal.OUTAGE: UNAVAILABLE,
    Refusal.INTERNAL: (HTTPStatus.INTERNAL_SERVER_ERROR, "INTERNAL", "INTERNAL"),
}
# Longer than the Firebase SDK waits: it gives up at once, where it otherwise tries five times in 7 s.
LONG_RETRY_AFTER = {"retry-after": "300"}
# A load balancer answers in front of Apple and Google, or nothing does.
FAILURES: Mapping[Refusal | None, Reply | Break] = {
    Refusal.HTML: Reply(HTTPStatus.BAD_GATEWAY, PAGE.encode(), {"content-type": "text/html"}),
    Refusal.LOST: Break.CLOSE,
    Refusal.RESET: Break.RESET,
}


@dataclass(frozen=True, slots=True)
class Received:
    """One push. ``error`` is the reason of its refusal, empty if it was accepted. ``body`` is the JSON as sent,
    ``data`` the app's part of it.
    """

    id: int
    received_ms: int
    platform: str
    token: str
    topic: str
    collapse_id: str
    error: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    data: Mapping[str, Any]


class Ledger:
    """Record of pushes. ``faults`` apply to all pushes. A push that is answered late was received at once."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._received: list[Received] = []
        self._tries: Counter[tuple[str, str]] = Counter()

    async def receive(
        self,
        platform: Platform,
        *,
        token: str,
        topic: str,
        collapse_id: str,
        headers: Mapping[str, str],
        body: Mapping[str, Any],
        data: Mapping[str, Any],
        refusal: str = "",
    ) -> Outcome:
        """Record one push, wait for its delay, and return its outcome: ``refusal``, or the fate that its
        token names.
        """
        outcome = Outcome(error=refusal) if refusal else decide(token, platform, self._tries[token, collapse_id])
        self._tries[token, collapse_id] += 1
        error, now_ms, name = outcome.upstream_error, time.time_ns() // 1_000_000, platform.name.lower()
        number = len(self._received) + 1
        self._received.append(Received(number, now_ms, name, token, topic, collapse_id, error, headers, body, data))
        await asyncio.sleep((outcome.delay_ms + self._faults.delay_ms) / 1000)
        return outcome

    def since(self, push_id: int) -> list[dict[str, Any]]:
        """Return the pushes after this id, oldest first."""
        return [asdict(push) for push in self._received[push_id:]]


async def answer_as_apple(request: Request, ledger: Ledger) -> Reply | Break:
    if not request.path.startswith(APPLE_PATH):
        return json_reply({"reason": "BadPath"}, HTTPStatus.NOT_FOUND)
    body = orjson.loads(request.body or b"{}")
    outcome = await ledger.receive(
        Platform.IOS,
        token=unquote(request.path.removeprefix(APPLE_PATH)),
        topic=request.headers.get("apns-topic", ""),
        collapse_id=request.headers.get("apns-collapse-id", ""),
        headers=request.headers,
        body=body,
        data={name: value for name, value in body.items() if name != "aps"},
        refusal=_refusal_of_apple(request),
    )
    if not outcome.error:
        return Reply(HTTPStatus.OK, b"", {"apns-id": request.headers.get("apns-id") or str(uuid.uuid4()).upper()})
    if outcome.refusal in FAILURES:
        return FAILURES[outcome.refusal]
    return _refuse_as_apple(outcome.error)


def _refuse_as_apple(reason: str) -> Reply:
    status = STATUS.get(reason, HTTPStatus.BAD_REQUEST)
    # Apple reports when a token died; gorush drops that.
    since = {"timestamp": time.time_ns() // 1_000_000} if status is HTTPStatus.GONE else {}
    return json_reply({"reason": reason, **since}, status)


def _refusal_of_apple(request: Request) -> str:
    """Return the reason for which Apple refuses a request before it looks at the token, or an empty string."""
    if not request.headers.get("authorization", "").startswith("bearer "):
        return "MissingProviderToken"
    if request.path == APPLE_PATH:
        return "MissingDeviceToken"
    if not request.headers.get("apns-topic"):
        return "MissingTopic"
    if len(request.headers.get("apns-collapse-id", "")) > MAX_COLLAPSE_ID_BYTES:
        return "BadCollapseId"
    if not request.body:
        return "PayloadEmpty"
    return "PayloadTooLarge" if len(request.body) > MAX_BYTES else ""


async def answer_as_google(request: Request, ledger: Ledger) -> Reply | Break:
    if not GOOGLE_PATH.fullmatch(request.path):
        return _refuse_as_google(HTTPStatus.NOT_FOUND, "NOT_FOUND", "Requested entity was not found.")
    if request.headers.get("authorization") != f"Bearer {ACCESS_TOKEN}":
        return _refuse_as_google(HTTPStatus.UNAUTHORIZED, "UNAUTHENTICATED", UNAUTHENTICATED)
    body = orjson.loads(request.body)
    message = body["message"]
    outcome = await ledger.receive(
        Platform.ANDROID,
        token=message.get("token", ""),
        topic=message.get("topic", ""),
        collapse_id=_collapse_id(message.get("android", {})),
        headers=request.headers,
        body=body,
        data=message.get("data", {}),
        refusal=TOO_BIG if _is_too_big(message) else "",
    )
    if not outcome.error:
        return json_reply({"name": f"projects/status-im/messages/0:{uuid.uuid4().int % 10**16}"})
    if outcome.refusal in FAILURES:
        return FAILURES[outcome.refusal]
    status, name, code = CODES.get(outcome.refusal, INVALID) if outcome.refusal else INVALID
    return _refuse_as_google(
        status, name, outcome.error, code, LONG_RETRY_AFTER if outcome.refusal is Refusal.BUSY else {}
    )


def _collapse_id(android: Mapping[str, Any]) -> str:
    """Return the id by which a phone replaces a push: of a data message its key, of a shown one its tag."""
    return str(android.get("collapse_key") or android.get("notification", {}).get("tag", ""))


def _refuse_as_google(
    status: HTTPStatus, name: str, message: str, code: str = "", headers: Mapping[str, str] | None = None
) -> Reply:
    details = [{"@type": DETAIL, "errorCode": code}] if code else []
    error = {"code": status, "message": message, "status": name, "details": details}
    return json_reply({"error": error}, status, **(headers or {}))


def _is_too_big(message: Mapping[str, Any]) -> bool:
    """Return whether the push exceeds Google's limit, which counts notification and data."""
    parts = message.get("notification", {}), message.get("data", {})
    return sum(len(orjson.dumps(part)) for part in parts) > MAX_BYTES
