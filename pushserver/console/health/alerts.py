"""Alerts: each target of ALERTS_TO gets a mail or webhook when an indicator gets bad, and when it has recovered.

    watch ──▶ snapshot ──▶ incidents ──▶ plan ──▶ Alert rows ──▶ send_due ──▶ mail, webhook

Each message is a row of `Alert`. So only one worker sends it, and repeats it until the target accepts it. An incident
alerts after 30 seconds, and again every four hours while somebody has to act. It does not alert while another indicator
explains it, or after somebody has acknowledged it. Its end alerts a minute later. However often its colour changes
meanwhile, it is one incident. While PostgreSQL cannot be read or written, each worker alerts from memory (`watch`).

See docs/console.md.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from time import monotonic
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import structlog
from django.conf import settings
from django.core.mail import EmailMessage
from django.db.models import Exists, Max, OuterRef, Q

from kit.display import exact, host_of
from kit.http import ask, new_client, submit
from pushserver.console.health.incidents import WELL_AFTER
from pushserver.console.health.indicators import kind_of, kinds_of
from pushserver.console.models import Alert, AlertLevel, Incident
from pushserver.console.parts import parts

log = structlog.get_logger(__name__)

SETTLED = timedelta(seconds=30)
REMINDED_EVERY = timedelta(hours=4)
Level, Event = AlertLevel.Level, Alert.Event
AS_YELLOW = 1  # number of the beginning of an incident that was not red yet
TIMEOUT_SECONDS = 5.0
MAX_ANSWER_BYTES = 16_384
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=15), timedelta(minutes=10)
# An alert that was refused for this long is deleted, because it is out of date.
GIVEN_UP_AFTER = timedelta(days=1)
# Budget of one pass: a mail server that hangs delays the next snapshot of the watch. Later alerts wait for that.
IN_A_ROW_SECONDS = 5.0
GOOGLE_CHAT = "chat.googleapis.com"
TEST = "This is a test. Alerts about the indicators of the push server arrive here."


def targets() -> dict[str, str]:
    """Return the targets by their labels. A target is a mail address or the URL of a webhook, which may hold a secret:
    only labels are stored and shown.
    """
    return {label_of(target): target for target in settings.ALERTS_TO}


def label_of(target: str) -> str:
    """Return the mail address, or the host of the webhook with the first digits of the hash of its URL."""
    if "://" not in target:
        return target
    return f"{host_of(target)} ({hashlib.sha256(target.encode()).hexdigest()[:8]})"


# Which target gets an alert about which incident ----------------------------------------------------------------------
def plan(*, now: datetime) -> None:
    """Add a row for each alert that is due to a target now."""
    if labels := list(targets()):
        known = [*_begun(now), *_ended(now)]
        rows = [
            Alert(incident=incident, event=event, number=number, target=label, planned_at=now, next_attempt_at=now)
            for incident, event, number in known
            for label in labels
        ]
        Alert.objects.bulk_create(rows, ignore_conflicts=True)


def due(
    incident: Incident, level: AlertLevel.Level, now: datetime, alerted: tuple[datetime | None, datetime | None, int]
) -> Iterator[tuple[str, int]]:
    """Yield event and number of each alert that is due about an open incident. The function is pure.

    An incident alerts once in red, and, where ``level`` is yellow, once before. ``alerted`` has the times of its last
    alert and of the last one in red, and the number of reminders.
    """
    alerted_at, alerted_red_at, reminders = alerted
    if level != Level.NEVER and incident.red_from and incident.is_red and now - incident.red_from >= SETTLED:
        yield Event.BEGAN, 0
        if alerted_red_at and now - alerted_red_at >= REMINDED_EVERY:
            yield Event.STILL, reminders + 1
    elif level == Level.YELLOW and alerted_at is None and now - incident.began_at >= SETTLED:
        yield Event.BEGAN, AS_YELLOW


def level_of(indicator: str, levels: Mapping[str, AlertLevel.Level]) -> AlertLevel.Level:
    """Return the mildest state from which an indicator alerts."""
    return levels.get(kind_of(indicator, levels), Level.RED)


def levels() -> dict[str, AlertLevel.Level]:
    """Return the level of each kind of indicator by its id: the chosen one, or red."""
    chosen = dict(AlertLevel.objects.values_list("kind", "level"))
    return {kind.id: Level(chosen.get(kind.id, Level.RED)) for kind in kinds_of(parts())}


def _begun(now: datetime) -> Iterator[tuple[Incident, str, int]]:
    snoozed = Incident.objects.filter(indicator=OuterRef("indicator"), snoozed_until__gt=now)
    # The previous version ends an incident without the end of its time in red.
    is_red = Q(red_until=None, ended_at=None)
    is_red_or_was = Q(red_from__isnull=False) & (is_red | Q(red_until__gt=now - SETTLED))
    causes = Incident.objects.filter(is_red_or_was, indicator=OuterRef("cause"))  # only a red indicator explains others
    goes_on = Incident.objects.filter(ended_at=None, acknowledged_at=None).exclude(Exists(snoozed) | Exists(causes))
    chosen = levels()
    alerted_rows = goes_on.annotate(
        alerted_at=Max("alerts__planned_at"),
        alerted_red_at=Max("alerts__planned_at", filter=~Q(alerts__event=Event.BEGAN, alerts__number=AS_YELLOW)),
        reminders=Max("alerts__number", filter=Q(alerts__event=Event.STILL)),
    )
    for incident in alerted_rows:
        alerted = (incident.alerted_at, incident.alerted_red_at, incident.reminders or 0)
        for event, number in due(incident, level_of(incident.indicator, chosen), now, alerted):
            yield incident, event, number


def _ended(now: datetime) -> Iterator[tuple[Incident, str, int]]:
    alerted = Alert.objects.filter(incident=OuterRef("pk"))
    span = {"ended_at__lte": now - WELL_AFTER, "ended_at__gt": now - timedelta(days=1)}
    over = Incident.objects.filter(Exists(alerted), **span).exclude(Exists(alerted.filter(event=Event.ENDED)))
    yield from ((incident, Event.ENDED, 0) for incident in over)


# Messages -------------------------------------------------------------------------------------------------------------
# A webhook gets JSON. Chats with simple webhooks, such as Slack and Mattermost, show its ``text``; Google Chat gets
# nothing else. Its ``id`` stays the same when an alert is sent again.
class Message(NamedTuple):
    """An alert: the subject and text of a mail, and the JSON of a webhook."""

    subject: str
    words: str
    json: dict[str, Any]


def message(identity: str, event: str, subject: str, words: str, **facts: Any) -> Message:
    text = f"{subject}. {words}"
    return Message(subject, words, {"id": identity, "event": event, "text": text, **facts})


def about(incident: Incident, event: str, number: int = 0) -> Message:
    """Return the message about the beginning, a reminder or the end of an incident."""
    began_at, ended_at = exact(incident.began_at), exact(incident.ended_at) if incident.ended_at else None
    own = incident.pk or f"{incident.indicator}-{incident.began_at:%Y%m%dT%H%M%S}"  # an incident without a row
    is_over = event == Alert.Event.ENDED
    if is_over and ended_at:
        words = f"It was bad from {began_at} to {ended_at}: {incident.sentence}"
    else:
        words = f"{'It goes on. ' if event == Alert.Event.STILL else ''}Since {began_at}: {incident.sentence}"
    return message(
        f"{own}-{event}" + (f"-{number}" if number else ""),
        event,
        f"Push server: {incident.name}: {'fine again' if is_over else incident.worst}",
        words,
        indicator=incident.indicator,
        name=incident.name,
        state=incident.worst,
        sentence=incident.sentence,
        began_at=began_at,
        ended_at=ended_at,
    )


# Sending --------------------------------------------------------------------------------------------------------------
def send_due(*, now: datetime) -> None:
    """Send the due alerts, those with the fewest failures first. A worker takes each before it sends it.

    A target gets the alerts about one incident in their order: the end waits until it has accepted the beginning.
    """
    until = monotonic() + IN_A_ROW_SECONDS
    Alert.objects.filter(sent_at=None, planned_at__lt=now - GIVEN_UP_AFTER).delete()
    same = {"incident": OuterRef("incident"), "target": OuterRef("target")}
    before = Alert.objects.filter(**same, sent_at=None, pk__lt=OuterRef("pk"))
    waiting = Alert.objects.filter(~Exists(before), sent_at=None, next_attempt_at__lte=now).order_by(
        "attempt_count", "pk"
    )
    for alert in waiting.select_related("incident"):
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


def attempt(alert: Alert, target: str, now: datetime) -> None:
    """Send an alert, and note the result in it, without storing it."""
    alert.error = send(target, about(alert.incident, alert.event, alert.number))
    alert.attempt_count += 1
    if alert.error:
        alert.next_attempt_at = now + min(FIRST_PAUSE * 2 ** (alert.attempt_count - 1), LONGEST_PAUSE)
    else:
        alert.sent_at = now


def send(target: str, message: Message) -> str:
    """Send one message. Return the reason of a refusal, without an address, or an empty text."""
    try:
        error = _post(target, message) if "://" in target else _mail(target, message)
    except Exception as failure:  # noqa: BLE001 - whatever is wrong with one target, the others get their alerts
        error = type(failure).__name__
    if error:
        log.warning("alert_not_sent", target=label_of(target), reason=error)
    else:
        log.info("alert_sent", target=label_of(target), alert_event=message.json["event"])
    return error


def _mail(target: str, message: Message) -> str:
    EmailMessage(message.subject, f"{message.words}\n", to=[target]).send()
    return ""


def _post(target: str, message: Message) -> str:
    # Google Chat refuses JSON with a field that it does not know.
    takes_text_alone = urlsplit(target).hostname == GOOGLE_CHAT
    body = {"text": message.json["text"]} if takes_text_alone else message.json
    status = submit(_post_json(target, json.dumps(body).encode())).result()
    return "" if httpx.codes.is_success(status) else f"answered {status}"


async def _post_json(url: str, body: bytes) -> int:
    headers = {"Content-Type": "application/json"}
    async with new_client() as client:
        answer = await ask(
            client, "POST", url, seconds=TIMEOUT_SECONDS, content=body, headers=headers, max_bytes=MAX_ANSWER_BYTES
        )
        return answer.status_code
