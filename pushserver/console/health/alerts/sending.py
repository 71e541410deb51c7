"""Sending of alerts, and repetition of those that a target refused."""

import json
from datetime import datetime, timedelta
from time import monotonic

import httpx
import structlog
from django.core.mail import EmailMessage
from django.db.models import Exists, OuterRef

from kit.http import ask, new_client, submit
from pushserver.console.health.alerts import messages
from pushserver.console.health.alerts.messages import Message
from pushserver.console.health.alerts.targets import Target, targets
from pushserver.models import Alert

log = structlog.get_logger(__name__)

TIMEOUT_SECONDS = 5.0
MAX_ANSWER_BYTES = 16_384
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=15), timedelta(minutes=10)
# An alert that was refused for this long is deleted, because it is out of date.
GIVEN_UP_AFTER = timedelta(days=1)
# Budget of one pass: a mail server that hangs delays the next snapshot of the watch. Later alerts wait for that.
IN_A_ROW_SECONDS = 5.0


def send_due(*, now: datetime) -> None:
    """Send the due alerts, those with the fewest failures first. A worker takes each before it sends it.

    A target gets the alerts about one incident in their order: the end waits until it has accepted the beginning.
    """
    until = monotonic() + IN_A_ROW_SECONDS
    Alert.objects.filter(sent_at=None, planned_at__lt=now - GIVEN_UP_AFTER).delete()
    same = {"incident": OuterRef("incident"), "target": OuterRef("target")}
    before = Alert.objects.filter(**same, sent_at=None, pk__lt=OuterRef("pk"))
    due = Alert.objects.filter(~Exists(before), sent_at=None, next_attempt_at__lte=now).order_by("attempt_count", "pk")
    for alert in due.select_related("incident"):
        _send_row(alert, now)
        if monotonic() >= until:
            return


def _send_row(alert: Alert, now: datetime) -> None:
    """Send an alert, unless another worker has taken it. PostgreSQL would end a transaction that waits for a target."""
    target = targets().get(alert.target)
    if target is None:  # removed from ALERTS_TO
        alert.delete()
        return
    same = Alert.objects.filter(pk=alert.pk, sent_at=None, attempt_count=alert.attempt_count)
    if same.update(attempt_count=alert.attempt_count + 1, next_attempt_at=now + LONGEST_PAUSE):
        attempt(alert, target, now)
        alert.save()


def attempt(alert: Alert, target: Target, now: datetime) -> None:
    """Send an alert, and note the result in it, without storing it."""
    alert.error = send(target, messages.about(alert.incident, alert.event, alert.number))
    alert.attempt_count += 1
    if alert.error:
        alert.next_attempt_at = now + min(FIRST_PAUSE * 2 ** (alert.attempt_count - 1), LONGEST_PAUSE)
    else:
        alert.sent_at = now


def send(target: Target, message: Message) -> str:
    """Send one message. Return the reason of a refusal, without an address, or an empty text."""
    try:
        error = _post(target, message) if target.is_webhook else _mail(target, message)
    except Exception as failure:  # noqa: BLE001 - whatever is wrong with one target, the others get their alerts
        error = type(failure).__name__
    if error:
        log.warning("alert_not_sent", target=target.label, reason=error)
    else:
        log.info("alert_sent", target=target.label, alert_event=message.event)
    return error


def _mail(target: Target, message: Message) -> str:
    EmailMessage(message.subject, f"{message.sentence}\n", to=[target.address]).send()
    return ""


def _post(target: Target, message: Message) -> str:
    body = {"text": message.text} if target.takes_text_alone else message.json
    status = submit(_post_json(target.address, json.dumps(body).encode())).result()
    return "" if httpx.codes.is_success(status) else f"answered {status}"


async def _post_json(url: str, body: bytes) -> int:
    headers = {"Content-Type": "application/json"}
    async with new_client() as client:
        answer = await ask(
            client, "POST", url, seconds=TIMEOUT_SECONDS, content=body, headers=headers, max_bytes=MAX_ANSWER_BYTES
        )
        return answer.status_code
