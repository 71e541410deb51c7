"""Firebase Cloud Messaging: `POST /v1/projects/<project>/messages:send`.

Source: Google, "REST Resource: projects.messages" and "ErrorCode". gorush forwards only `error.message`.
"""

import re
import uuid
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import orjson

from embedded.gorush.outcomes import Platform, Refusal
from tests.rig.providers.control import ACCESS_TOKEN
from tests.rig.providers.failing import fail
from tests.rig.providers.ledger import Ledger
from tests.rig.providers.messages import Break, Reply, Request, json_reply

HOSTS = ("fcm.googleapis.com",)
PATH = re.compile(r"/v1/projects/(?P<project>[a-z0-9-]+)/messages:send(\?.*)?")
MAX_MESSAGE_BYTES = 4096
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


async def answer(request: Request, ledger: Ledger) -> Reply | Break:
    if not PATH.fullmatch(request.path):
        return _refuse(HTTPStatus.NOT_FOUND, "NOT_FOUND", "Requested entity was not found.")
    if request.headers.get("authorization") != f"Bearer {ACCESS_TOKEN}":
        return _refuse(HTTPStatus.UNAUTHORIZED, "UNAUTHENTICATED", UNAUTHENTICATED)
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
    if outcome.refusal in fail:
        return fail[outcome.refusal]
    status, name, code = CODES.get(outcome.refusal, INVALID) if outcome.refusal else INVALID
    return _refuse(status, name, outcome.error, code, LONG_RETRY_AFTER if outcome.refusal is Refusal.BUSY else {})


def _collapse_id(android: Mapping[str, Any]) -> str:
    """Return the id by which a phone replaces a push: of a data message its key, of a shown one its tag."""
    return str(android.get("collapse_key") or android.get("notification", {}).get("tag", ""))


def _refuse(
    status: HTTPStatus, name: str, message: str, code: str = "", headers: Mapping[str, str] | None = None
) -> Reply:
    details = [{"@type": DETAIL, "errorCode": code}] if code else []
    error = {"code": status, "message": message, "status": name, "details": details}
    return json_reply({"error": error}, status, **(headers or {}))


def _is_too_big(message: Mapping[str, Any]) -> bool:
    """Return whether the push exceeds Google's limit, which counts notification and data."""
    parts = message.get("notification", {}), message.get("data", {})
    return sum(len(orjson.dumps(part)) for part in parts) > MAX_MESSAGE_BYTES
