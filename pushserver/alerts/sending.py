"""Sending of alerts, and repetition of those that a target refused."""

import json
from datetime import datetime, timedelta
from smtplib import SMTPException
from time import monotonic

import httpx
import structlog
from django.core.mail import EmailMessage
from django.db import transaction

from kit.http.connections import new_client, submit
from pushserver.alerts import messages
from pushserver.alerts.messages import Message
from pushserver.alerts.targets import Target, targets
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
    """Send the due alerts, those with the fewest failures first. Each row is locked, and other workers skip it."""
    until = monotonic() + IN_A_ROW_SECONDS
    Alert.objects.filter(sent_at=None, planned_at__lt=now - GIVEN_UP_AFTER).delete()
    due = Alert.objects.filter(sent_at=None, next_attempt_at__lte=now).order_by("attempt_count", "pk")
    for pk in due.values_list("pk", flat=True):
        with transaction.atomic():
            _send_row(pk, now)
        if monotonic() >= until:
            return


def _send_row(pk: int, now: datetime) -> None:
    due = Alert.objects.select_for_update(skip_locked=True, of=("self",)).select_related("incident")
    alert = due.filter(pk=pk, sent_at=None).first()
    if alert is None:
        return
    target = targets().get(alert.target)
    if target is None:  # removed from ALERTS_TO
        alert.delete()
        return
    alert.error = send(target, messages.about(alert.incident, alert.event, alert.number))
    alert.attempt_count += 1
    if alert.error:
        alert.next_attempt_at = now + min(FIRST_PAUSE * 2 ** (alert.attempt_count - 1), LONGEST_PAUSE)
    else:
        alert.sent_at = now
    alert.save()


def send(target: Target, message: Message) -> str:
    """Send one message. Return the reason of a refusal, without an address, or an empty text."""
    error = _post(target, message) if target.is_webhook else _mail(target, message)
    if error:
        log.warning("alert_not_sent", target=target.label, reason=error)
    else:
        log.info("alert_sent", target=target.label, alert_event=message.event)
    return error


def _mail(target: Target, message: Message) -> str:
    try:
        EmailMessage(message.subject, f"{message.sentence}\n", to=[target.address]).send()
    except (SMTPException, OSError) as error:
        return type(error).__name__
    return ""


def _post(target: Target, message: Message) -> str:
    try:
        status = submit(_post_json(target.address, message)).result()
    except httpx.TransportError as error:
        return type(error).__name__
    return "" if httpx.codes.is_success(status) else f"answered {status}"


async def _post_json(url: str, message: Message) -> int:
    headers = {"Content-Type": "application/json"}
    limits = {"timeout_seconds": TIMEOUT_SECONDS, "in_all_seconds": TIMEOUT_SECONDS}
    async with new_client(**limits, max_answer_bytes=MAX_ANSWER_BYTES) as client:
        answer = await client.request("POST", url, content=json.dumps(message.json).encode(), headers=headers)
        return answer.status_code
