"""Decide which target gets an alert about which incident, as rows of `Alert`.

An incident alerts after 30 seconds, and again every four hours while somebody has to act. It does not alert while
another indicator explains it, or after somebody has acknowledged it. Its end alerts a minute later. However often its
colour changes meanwhile, it is one incident.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

from django.db.models import Exists, Max, OuterRef, Q

from pushserver.console.health.alerts.targets import targets
from pushserver.console.health.incidents import WELL_AFTER
from pushserver.console.health.judging import all_kinds
from pushserver.models import Alert, AlertLevel, Incident

SETTLED = timedelta(seconds=30)
REMINDED_EVERY = timedelta(hours=4)
Level, Event = AlertLevel.Level, Alert.Event
AS_YELLOW = 1  # number of the beginning of an incident that was not red yet


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
    """Return the mildest state from which an indicator alerts. Its id begins with the id of its kind."""
    own = [kind for kind in levels if indicator == kind or indicator.startswith(f"{kind}-")]
    return levels.get(max(own, key=len, default=""), Level.RED)


def levels() -> dict[str, AlertLevel.Level]:
    """Return the level of each kind of indicator by its id: the chosen one, or red."""
    chosen = dict(AlertLevel.objects.values_list("kind", "level"))
    return {kind.id: Level(chosen.get(kind.id, Level.RED)) for kind in all_kinds()}


def _begun(now: datetime) -> Iterator[tuple[Incident, str, int]]:
    snoozed = Incident.objects.filter(indicator=OuterRef("indicator"), snoozed_until__gt=now)
    is_red = Q(
        red_until=None, ended_at=None
    )  # the previous version ends an incident without the end of its time in red
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
