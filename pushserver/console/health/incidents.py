"""Incidents of the last thirty days: periods in which an indicator was not green.

Every snapshot updates them: those of the watch, dashboards, the API and `/metrics`. These snapshots interleave, and an
indicator may flap. So two periods go on after a pause shorter than WELL_AFTER: the incident, and its time in red.
Alerts and acknowledgements belong to the incident, whatever its colours were.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.contrib.postgres.expressions import ArraySubquery
from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Coalesce, JSONObject, Now

from kit.db.base import fetch
from kit.db.partitions import delete_in_chunks
from pushserver.console.health.verdicts import State, Verdict, dated
from pushserver.console.models import Alert, Incident, ServerStart

# An indicator has recovered after it was green for this time.
WELL_AFTER = timedelta(minutes=1)
KEPT = timedelta(days=30)
# An indicator may notice a fault this long before its cause does, and recover this long after it.
NOTICED_BEFORE, OUTLASTS = timedelta(minutes=5), timedelta(minutes=15)
MAX_EFFECTS = 20
_IS_END_SENT = Exists(Alert.objects.filter(incident=OuterRef("pk"), event=Alert.Event.ENDED))


@dataclass(frozen=True, slots=True)
class Memory:
    """The newest incident of each indicator that goes on, or ended within WELL_AFTER."""

    newest: Mapping[str, Incident]

    @property
    def states(self) -> dict[str, State]:
        """Return the state of each indicator that was bad in the last snapshot."""
        return {indicator: State(row.state) for indicator, row in self.newest.items() if row.ended_at is None}

    def owner_of(self, indicator: Verdict) -> str:
        """Return the name of the person who takes care of a bad indicator, or an empty text."""
        row = self.newest.get(indicator.id)
        return row.acknowledged_by if row and indicator.is_bad else ""


def recall(*, now: datetime) -> Memory:
    """Read the recent incidents, in one query."""
    recent = Incident.objects.filter(Q(ended_at=None) | Q(ended_at__gt=now - WELL_AFTER))
    return Memory({row.indicator: row for row in recent.order_by("began_at", "pk")})


def remember(indicators: Sequence[Verdict], memory: Memory, *, now: datetime) -> list[Verdict]:
    """Note begun, changed and ended incidents. Return the indicators with the time since when each is not green."""
    known = {indicator.id: indicator for indicator in indicators}
    begun = [incident_of(found, now) for found in indicators if found.is_bad and found.id not in memory.newest]
    near = [*memory.newest.values(), *begun]
    for incident in begun:
        incident.cause = cause_of(incident, near, known, now)
    seen = [(row, changes(row, near, known, now)) for row in memory.newest.values()]
    changed = [(row, columns) for row, columns in seen if columns]
    if changed or begun:
        _note(changed, begun)
    owned = [replace(found, owner=memory.owner_of(found)) for found in indicators]
    return dated(owned, {row.indicator: row.began_at for row in near})


def cause_of(incident: Incident, near: Sequence[Incident], known: Mapping[str, Verdict], now: datetime) -> str:
    """Return the id of the indicator that explains an incident, or else the one that did. The function is pure.

    It is the one that the snapshot names. Without one, it is an incident that began before, or within WELL_AFTER, and
    is or just was red: an indicator may notice a fault before its cause does, and recover later. ``near`` has the
    incidents that go on or ended within WELL_AFTER. If one of them explains the cause, it explains this one, too.
    """
    own = known.get(incident.indicator)
    cause = own.cause if own else ""
    if own and not (cause or incident.cause):
        until = min(incident.began_at + WELL_AFTER, incident.ended_at or now)  # what is over follows from nothing later
        early = (other for other in near if other.red_from and other.began_at <= until)
        red = (other for other in early if other.red_until is None or now - other.red_until < WELL_AFTER)
        kinds = ((other.indicator, known[other.indicator].kind) for other in red if other.indicator in known)
        cause = next((indicator for indicator, kind in kinds if kind.explains(own.kind)), "")
    causes = {other.indicator: other.cause for other in near}
    root = causes.get(cause, "")
    return root if root in causes and root != incident.indicator else cause or incident.cause


def changes(
    incident: Incident, near: Sequence[Incident], known: Mapping[str, Verdict], now: datetime
) -> dict[str, Any]:
    """Return the columns of an incident that change with its indicator. The function is pure.

    An unknown (grey) indicator begins and ends nothing, and one that is gone has recovered.
    """
    columns: dict[str, Any] = {"cause": cause_of(incident, near, known, now)}
    indicator = known.get(incident.indicator)
    if indicator is None or indicator.state != State.GREY:
        columns |= _times(incident, indicator, now)
    return {name: value for name, value in columns.items() if getattr(incident, name) != value}


def _times(incident: Incident, indicator: Verdict | None, now: datetime) -> dict[str, Any]:
    columns: dict[str, Any] = {"ended_at": incident.ended_at or now}
    if indicator and indicator.is_bad:
        columns = {"ended_at": None, "state": indicator.state.value}
    if indicator and indicator.state == State.RED:
        columns["red_until"] = None
        if incident.red_from is None or (incident.red_until and now - incident.red_until >= WELL_AFTER):
            columns |= {"red_from": now, "sentence": indicator.sentence}
    elif incident.red_from:
        columns["red_until"] = incident.red_until or now
    return columns


def follow(newest: Sequence[Incident], indicators: Sequence[Verdict], now: datetime) -> list[Incident]:
    """Change the newest incidents of indicators as a snapshot says, without the database. Return those that begin."""
    near = [row for row in newest if row.ended_at is None or now - row.ended_at < WELL_AFTER]
    known = {indicator.id: indicator for indicator in indicators}
    names = {row.indicator for row in near}
    begun = [incident_of(found, now) for found in indicators if found.is_bad and found.id not in names]
    near += begun
    for row in (row for row in near if row.indicator in known):
        for name, value in changes(row, near, known, now).items():
            setattr(row, name, value)
    return begun


def incident_of(indicator: Verdict, began_at: datetime, ended_at: datetime | None = None) -> Incident:
    """Return a new incident of a bad indicator, which is not stored."""
    is_red = indicator.state == State.RED
    return Incident(
        indicator=indicator.id,
        name=indicator.name,
        state=indicator.state.value,
        sentence=indicator.sentence,
        cause=indicator.cause,
        incident_at=began_at,
        began_at=began_at,
        ended_at=ended_at,
        red_from=began_at if is_red else None,
        red_until=ended_at if is_red else None,
    )


# One fault, one row --------------------------------------------------------------------------------------------------
def causes_of(incident: Incident | None = None) -> QuerySet[Incident]:
    """Return the incidents of the cause of an incident, or of that of each row of a query, each with the end of its
    time in red as ``over_at``. Only what is red explains others.
    """
    indicator, began_at = (incident.cause, incident.began_at) if incident else (OuterRef("cause"), OuterRef("began_at"))
    over_at = Coalesce("red_until", "ended_at")  # the previous version ends an incident without `red_until`
    return (
        Incident.objects.annotate(over_at=over_at)
        .filter(Q(over_at=None) | Q(over_at__gte=began_at - WELL_AFTER), indicator=indicator)
        .filter(red_from__lte=began_at + NOTICED_BEFORE)
        .order_by("began_at")
    )


def is_own() -> Q:
    """Return the condition of incidents that follow from no other, or outlast the one that they followed from.

    One that goes on does so as soon as its cause is not red. Most have no cause, and PostgreSQL looks for none then.
    """
    late = Coalesce(OuterRef("ended_at") - OUTLASTS, Now())
    return Q(cause="") | Q(~Exists(causes_of().filter(Q(over_at=None) | Q(over_at__gte=late))))


def with_effects() -> QuerySet[Incident]:
    """Return the incidents, each with its ``effects``: those that follow from it, as dicts."""
    effects = Incident.objects.filter(
        cause=OuterRef("indicator"),
        began_at__gte=OuterRef("began_at") - NOTICED_BEFORE,
        began_at__lte=Coalesce(OuterRef("ended_at"), Now()) + WELL_AFTER,
    )
    shown = effects.order_by("began_at").values(shown=JSONObject(pk="pk", name="name", sentence="sentence"))
    return Incident.objects.annotate(effects=ArraySubquery(shown[:MAX_EFFECTS]))


@transaction.atomic
def _note(changed: Sequence[tuple[Incident, Mapping[str, Any]]], begun: Sequence[Incident]) -> None:
    """Write the changes. If two processes saw the same change, the second one writes nothing."""
    is_open = Incident.objects.filter(ended_at=None).values("indicator")
    for row, columns in changed:
        same = Incident.objects.filter(pk=row.pk, **{name: getattr(row, name) for name in columns})
        if row.ended_at:  # it goes on, unless another process has begun the next one or sent its end
            same = same.exclude(indicator__in=is_open).exclude(_IS_END_SENT)
        same.update(**columns)
    Incident.objects.bulk_create(begun, ignore_conflicts=True)


@transaction.atomic
def note_past(incident: Incident, *, now: datetime) -> Incident:
    """Note an incident that could not be noted in time. Return its row, which another process may have written."""
    fetch("SELECT pg_advisory_xact_lock(hashtext('past incidents'))")
    same = Incident.objects.filter(
        Q(ended_at=None) | Q(ended_at__gt=incident.began_at - WELL_AFTER),
        indicator=incident.indicator,
        began_at__lt=(incident.ended_at or now) + WELL_AFTER,
    )
    row = (Incident.objects.filter(pk=incident.pk) if incident.pk else same).order_by("pk").last()
    if row is None:
        incident.save()
        return incident
    times: dict[str, Any] = {}
    if incident.began_at < row.began_at:
        times = {"began_at": incident.began_at, "incident_at": incident.began_at, "red_from": incident.red_from}
    if incident.ended_at and row.ended_at and incident.ended_at > row.ended_at:  # it went on
        times |= {name: getattr(incident, name) for name in ("ended_at", "red_from", "red_until", "sentence")}
    if times:
        Incident.objects.filter(pk=row.pk).update(**times)
    return row


def purge(*, now: datetime) -> Iterator[int]:
    """Delete incidents that ended before KEPT, and starts after which another one was that long ago: what ran until now
    tells whether the server's key was changed since. Yields how many rows each step deleted.
    """
    yield from delete_in_chunks(Incident.objects.filter(ended_at__lt=now - KEPT).order_by("ended_at"))
    later = ServerStart.objects.filter(started_at__gt=OuterRef("started_at"), started_at__lt=now - KEPT)
    yield from delete_in_chunks(ServerStart.objects.filter(Exists(later)).order_by("started_at"))
