"""Decide which target gets an alert about which incident, as rows of `Alert`.

An incident alerts after 30 seconds, and again every four hours while somebody has to act. It does not alert while
another incident explains it, or after somebody has acknowledged it. Its end alerts a minute later, once for all rows of
the same incident.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

from django.db.models import Exists, OuterRef, Q

from kit.health.indicators import State
from pushserver.alerts.targets import targets
from pushserver.indicators.incidents import WELL_AFTER
from pushserver.indicators.judging import all_kinds
from pushserver.models import Alert, AlertLevel, Incident

SETTLED = timedelta(seconds=30)
REMINDED_EVERY = timedelta(hours=4)
Level, Event = AlertLevel.Level, Alert.Event


def plan(*, now: datetime) -> None:
    """Add a row for each alert that is due to a target now."""
    if labels := list(targets()):
        known = [*_begun(now), *_ended(now)]
        rows = [
            Alert(incident=incident, event=event, number=number, target=label, next_attempt_at=now)
            for incident, event, number in known
            for label in labels
        ]
        Alert.objects.bulk_create(rows, ignore_conflicts=True)


def level_of(indicator: str, levels: dict[str, AlertLevel.Level]) -> AlertLevel.Level:
    """Return the mildest state from which an indicator alerts. Its id begins with the id of its kind."""
    own = [kind for kind in levels if indicator == kind or indicator.startswith(f"{kind}-")]
    return levels.get(max(own, key=len, default=""), Level.RED)


def levels() -> dict[str, AlertLevel.Level]:
    """Return the level of each kind of indicator by its id: the chosen one, or red."""
    chosen = dict(AlertLevel.objects.values_list("kind", "level"))
    return {kind.id: Level(chosen.get(kind.id, Level.RED)) for kind in all_kinds()}


def _begun(now: datetime) -> Iterator[tuple[Incident, str, int]]:
    snoozed = Incident.objects.filter(indicator=OuterRef("indicator"), snoozed_until__gt=now)
    causes = Incident.objects.filter(Q(ended_at=None) | Q(ended_at__gt=now - SETTLED), indicator=OuterRef("cause"))
    goes_on = Incident.objects.filter(ended_at=None, began_at__lte=now - SETTLED, acknowledged_at=None)
    chosen = levels()
    for incident in goes_on.exclude(Exists(snoozed)).exclude(Exists(causes)):
        if _is_wanted(incident, level_of(incident.indicator, chosen)):
            number = (now - incident.began_at) // REMINDED_EVERY if incident.state == State.RED else 0
            yield incident, Event.STILL if number else Event.BEGAN, number


def _is_wanted(incident: Incident, level: AlertLevel.Level) -> bool:
    return level == Level.YELLOW or (level == Level.RED and incident.state == State.RED)


def _ended(now: datetime) -> Iterator[tuple[Incident, str, int]]:
    """Yield the incidents that ended. An incident that was yellow and red has two rows, and only the newest counts."""
    goes_on = Incident.objects.filter(indicator=OuterRef("indicator"), ended_at=None)
    alerted = Alert.objects.filter(incident=OuterRef("pk")).exclude(event=Event.ENDED)
    same = {"incident__indicator": OuterRef("indicator"), "incident__incident_at": OuterRef("incident_at")}
    answered = Alert.objects.filter(**same, event=Event.ENDED)
    over = Incident.objects.filter(
        Exists(alerted), ended_at__lte=now - WELL_AFTER, ended_at__gt=now - timedelta(days=1)
    )
    rows = over.exclude(Exists(goes_on)).exclude(Exists(answered)).order_by("pk")
    newest = {(row.indicator, row.incident_at): row for row in rows}
    yield from ((incident, Event.ENDED, 0) for incident in newest.values())
