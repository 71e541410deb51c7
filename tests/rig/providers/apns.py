"""Apple's push service: `POST /3/device/<token>` over HTTP/2.

Source: Apple, "Sending notification requests to APNs" and "Handling notification responses from APNs".
"""

import time
import uuid
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import unquote

import orjson

from embedded.gorush.outcomes import Platform
from tests.rig.providers.failing import fail
from tests.rig.providers.ledger import Ledger
from tests.rig.providers.messages import Break, Reply, Request, json_reply

HOSTS = ("api.push.apple.com", "api.sandbox.push.apple.com")
PATH = "/3/device/"
MAX_PAYLOAD_BYTES = 4096
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


async def answer(request: Request, ledger: Ledger) -> Reply | Break:
    if not request.path.startswith(PATH):
        return json_reply({"reason": "BadPath"}, HTTPStatus.NOT_FOUND)
    body = orjson.loads(request.body or b"{}")
    outcome = await ledger.receive(
        Platform.IOS,
        token=unquote(request.path.removeprefix(PATH)),
        topic=request.headers.get("apns-topic", ""),
        collapse_id=request.headers.get("apns-collapse-id", ""),
        headers=request.headers,
        body=body,
        data={name: value for name, value in body.items() if name != "aps"},
        refusal=_refusal(request),
    )
    if not outcome.error:
        return Reply(HTTPStatus.OK, b"", {"apns-id": request.headers.get("apns-id") or str(uuid.uuid4()).upper()})
    if outcome.refusal in fail:
        return fail[outcome.refusal]
    return _refuse(outcome.error)


def _refuse(reason: str) -> Reply:
    status = STATUS.get(reason, HTTPStatus.BAD_REQUEST)
    # Apple reports when a token died; gorush drops that.
    since = {"timestamp": time.time_ns() // 1_000_000} if status is HTTPStatus.GONE else {}
    return json_reply({"reason": reason, **since}, status)


def _refusal(request: Request) -> str:
    """Return the reason for which Apple refuses a request before it looks at the token, or an empty string."""
    if not request.headers.get("authorization", "").startswith("bearer "):
        return "MissingProviderToken"
    if request.path == PATH:
        return "MissingDeviceToken"
    if not request.headers.get("apns-topic"):
        return "MissingTopic"
    if len(request.headers.get("apns-collapse-id", "")) > MAX_COLLAPSE_ID_BYTES:
        return "BadCollapseId"
    if not request.body:
        return "PayloadEmpty"
    return "PayloadTooLarge" if len(request.body) > MAX_PAYLOAD_BYTES else ""
