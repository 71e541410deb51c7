"""gorush's feedback hook, `POST /hooks/gorush`: a second report of each push that failed (gorush.md, 2.1).

The hook only writes `Attempt.late_code` for operators, once. No state, route, retry or reply depends on it
(docs/decisions/0127-gorush-and-errors.md).
"""

import hmac
import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import orjson
from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, UnreadablePostError
from django.urls import path
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from kit.db.clock import database_now
from notifications.gateways.gorush.errors import TOKEN_TYPES, classify, without_token
from notifications.gateways.gorush.models import current_rules
from notifications.models import EndedAttempt, OpenNotification

SECRET_HEADER = "X-Gorush-Secret"  # noqa: S105 - a name
MAX_BODY_BYTES = 64 * 1024
READ = ("type", "platform", "error", "notif_id")  # gorush leaves out the last one when it is empty
NOTIF_ID = re.compile(r"([1-9][0-9]{0,17})-([1-9][0-9]{0,8})")
# gorush gives up every push within this time, so an older entry is a replay.
MAX_AGE = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Failure:
    """One entry of the hook. ``attempt`` has the notification's id and the attempt's number, if it may be one of ours.

    ``error`` may contain the device token.
    """

    attempt: tuple[int, int] | None
    token_type: int | None
    error: str = field(repr=False)


@csrf_exempt  # gorush has no cookies; the header with the secret protects the hook
@never_cache
def receive_feedback(request: HttpRequest) -> HttpResponse:
    """Take one entry of the hook, if a secret is set for it."""
    if not settings.GORUSH_HOOK_SECRET:
        raise Http404
    return _receive(request)


@require_POST
def _receive(request: HttpRequest) -> HttpResponse:
    """Return 200 for any entry that can be read, also for one about no attempt of ours.

    gorush logs every other status as an error.
    """
    if not _is_authentic(request):
        return HttpResponse(status=403)
    body = _read_body(request)
    if len(body) > MAX_BODY_BYTES:
        return HttpResponse(status=413)
    failure = read_failure(body)
    if failure is None:
        return HttpResponse(status=400)
    note(failure, now=database_now())
    return HttpResponse(status=200)


def _is_authentic(request: HttpRequest) -> bool:
    presented = request.headers.get(SECRET_HEADER, "").encode(errors="replace")
    return hmac.compare_digest(presented, settings.GORUSH_HOOK_SECRET.encode())


def _read_body(request: HttpRequest) -> bytes:
    """Return enough of the body to show whether it is too large, or nothing of a body that was cut off."""
    try:
        return request.read(MAX_BODY_BYTES + 1)
    except UnreadablePostError:
        return b""


def read_failure(body: bytes) -> Failure | None:
    """Return the entry, or None for a body that is none.

    The token is not read: it may be masked, empty or missing.
    """
    try:
        entry = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(entry, dict) or not all(isinstance(entry.get(name, ""), str) for name in READ):
        return None
    if not {"type", "platform", "error"} <= entry.keys():
        return None
    return Failure(_attempt(entry), TOKEN_TYPES.get(entry["platform"]), entry["error"])


def _attempt(entry: dict[str, Any]) -> tuple[int, int] | None:
    found = NOTIF_ID.fullmatch(entry.get("notif_id", "")) if entry["type"] == "failed-push" else None
    return (int(found[1]), int(found[2])) if found else None


def note(failure: Failure, *, now: datetime) -> None:
    """Write the error's code beside the attempt, if it is recent enough and has no such code yet."""
    if failure.attempt is None or failure.token_type is None:
        return
    notification_id, number = failure.attempt
    rules = current_rules()
    rules.refresh()
    rule = classify(failure.token_type, without_token(failure.error, ""), rules.rules)
    same = {"gateway": "gorush", "token_type": failure.token_type, "late_code": ""}
    under_way = OpenNotification.objects.filter(
        pk=notification_id, attempt_count=number, state=OpenNotification.State.IN_FLIGHT, **same
    )
    if not under_way.update(late_code=rule.code):
        ended = EndedAttempt.objects.filter(notification=notification_id, number=number, **same)
        ended.filter(started_at__gte=now - MAX_AGE).update(late_code=rule.code)


urlpatterns = [path("gorush", receive_feedback, name="gorush_feedback")]
