"""Reading gorush's answer to one notification with one token (gorush.md, 1.5 and 3.7).

gorush reports failures only: 200 without an entry means that Apple or Google took the push.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from notifications.gateways.gorush.errors import UNKNOWN, ErrorRule, classify
from notifications.gateways.gorush.redaction import signature_of, without_token
from notifications.gateways.gorush.request import device_token, notif_id
from notifications.messages import Outcome, Push, Result

HTTP_OK = 200
HTTP_BAD_REQUEST = 400
HTTP_TOO_MANY_REQUESTS = 429
HTTP_SERVER_ERROR = 500
HTTP_GATEWAY_TIMEOUT = 504
MAX_RETRY_AFTER_SECONDS = 3600.0
# The code of a result when gorush took a push of the canary and was told to send it nowhere.
DRY_RUN = "dry_run"
MASK = "*"  # what gorush writes in place of parts of a token
NOT_UNDERSTOOD = Result(Outcome.AMBIGUOUS, "not_understood")
DROPPED = Result(Outcome.CONFIG, "dropped")


def read_response(status: int, body: bytes, push: Push, rules: Sequence[ErrorRule], *, retry_after: str = "") -> Result:
    """Return what the answer says about ``push``, by these rules. What is not understood is never read as success."""
    if status != HTTP_OK:
        return _read_status(status, retry_after)
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return Result(Outcome.AMBIGUOUS, "not_json")
    if not isinstance(answer, dict) or answer.get("success") != "ok" or not isinstance(answer.get("logs"), list | None):
        return NOT_UNDERSTOOD
    entries = answer.get("logs") or []
    return _read_entries(entries, push, rules) if entries else _read_silence(answer.get("counts"))


def read_dry_run(result: Result) -> Result:
    """Return what the answer to a dry run says, given what `read_response` made of it. In a dry run, to be dropped is
    to succeed.
    """
    is_taken = result == DROPPED or result.outcome is Outcome.DELIVERED
    return Result(Outcome.DELIVERED, DRY_RUN, is_dry_run=True) if is_taken else result


def _read_status(status: int, retry_after: str) -> Result:
    code = f"http_{status}"
    if status == HTTP_BAD_REQUEST:
        return Result(Outcome.PAYLOAD, code)
    if status == HTTP_GATEWAY_TIMEOUT:  # it comes from a proxy: gorush has the push and may be sending it
        return Result(Outcome.AMBIGUOUS, code)
    if status == HTTP_TOO_MANY_REQUESTS or status >= HTTP_SERVER_ERROR:
        # A 500 means that the queue was full: with one notification per request, nothing of it was sent.
        return Result(Outcome.TRANSIENT, code, retry_after_seconds=_seconds(retry_after))
    return Result(Outcome.CONFIG, code)


def _seconds(retry_after: str) -> float:
    return min(float(retry_after), MAX_RETRY_AFTER_SECONDS) if retry_after.isascii() and retry_after.isdigit() else 0.0


def _read_silence(counts: Any) -> Result:
    """Return what an answer without failures means.

    gorush also counts what it was asked to send: nothing, when it drops pushes of this platform.
    """
    if counts is not None and type(counts) is not int:  # not isinstance: True is an int to Python
        return NOT_UNDERSTOOD
    if counts is None or counts > 0:
        return Result(Outcome.DELIVERED)
    return DROPPED if counts == 0 else NOT_UNDERSTOOD


def _read_entries(entries: list[Any], push: Push, rules: Sequence[ErrorRule]) -> Result:
    errors = [entry["error"] for entry in entries if isinstance(entry, dict) and _is_about(entry, push)]
    return _read_error(errors[-1], push, rules) if errors else NOT_UNDERSTOOD


def _is_about(entry: Mapping[str, Any], push: Push) -> bool:
    """Return whether this is an error of the one token that was sent, which may be masked or missing."""
    sent_as = entry.get("notif_id") or notif_id(push)
    token = entry.get("token") or ""
    is_ours = isinstance(token, str) and (
        token == device_token(push)
        or not token
        or (MASK in token and all(shown in device_token(push) for shown in token.split(MASK)))
    )
    return is_ours and sent_as == notif_id(push) and isinstance(entry.get("error"), str)


def _read_error(error: str, push: Push, rules: Sequence[ErrorRule]) -> Result:
    token = device_token(push)
    redacted = without_token(error, token)
    rule = classify(push.channel.token_type, redacted, rules)
    if rule is UNKNOWN:
        # A token made of the words of Apple or Google hides them. Then the words count, as they would without it.
        rule = classify(push.channel.token_type, without_token(error, ""), rules)
    text = signature_of(redacted, token)
    return Result(
        rule.outcome,
        rule.code,
        is_guarded=rule.is_guarded,
        retry_base_seconds=rule.retry_base_seconds,
        unknown_signature=text if rule is UNKNOWN else "",
        error=text,
    )
