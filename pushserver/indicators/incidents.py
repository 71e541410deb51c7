"""Incidents of the last thirty days: periods in which an indicator was not green.

Every snapshot updates them: those of the watch, dashboards, the API and `/metrics`. These snapshots interleave. So an
indicator that is bad again within WELL_AFTER continues its incident.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Q

from kit.db.statements import fetch
from kit.health.indicators import Indicator, State, dated
from pushserver.models import Incident

# An indicator has recovered after it was green for this time.
WELL_AFTER = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Memory:
    """The newest incident of each indicator that goes on, or ended within WELL_AFTER."""

    newest: Mapping[str, Incident]

    @property
    def states(self) -> dict[str, State]:
        """Return the state of each indicator that was bad in the last snapshot."""
        return {indicator: State(row.state) for indicator, row in self.newest.items() if row.ended_at is None}

    def owner_of(self, indicator: Indicator) -> str:
        """Return the name of the person who takes care of a bad indicator, or an empty text."""
        row = self.newest.get(indicator.id)
        return row.acknowledged_by if row and indicator.is_bad and row.state == indicator.state else ""


def recall(*, now: datetime) -> Memory:
    """Read the recent incidents, in one query."""
    recent = Incident.objects.filter(Q(ended_at=None) | Q(ended_at__gt=now - WELL_AFTER))
    return Memory({row.indicator: row for row in recent.order_by("began_at", "pk")})


def remember(indicators: Sequence[Indicator], memory: Memory, *, now: datetime) -> list[Indicator]:
    """Note begun and ended incidents. Return the indicators with the last time at which each was green.

    An unknown (grey) indicator neither begins nor ends an incident.
    """
    known = {indicator.id: indicator for indicator in indicators}
    over = [row for row in memory.newest.values() if row.ended_at is None and _is_over(row, known.get(row.indicator))]
    begun = [_begun(found, memory.newest.get(found.id), now) for found in indicators if _has_begun(found, memory)]
    if over or begun:
        _note(over, begun, now=now)
    _note_causes(memory, known)
    owned = [replace(found, owner=memory.owner_of(found)) for found in indicators]
    return dated(owned, {row.indicator: row.incident_at for row in [*memory.newest.values(), *begun]})


def _is_over(row: Incident, indicator: Indicator | None) -> bool:
    state = indicator.state if indicator else State.GREEN
    return state not in (State.GREY, row.state)


def _has_begun(indicator: Indicator, memory: Memory) -> bool:
    return indicator.is_bad and memory.states.get(indicator.id) != indicator.state


def _begun(indicator: Indicator, before: Incident | None, now: datetime) -> Incident:
    """Return the row of an incident that begins: the row before it, if that has the same state and ended just now."""
    if before and before.ended_at and before.state == indicator.state:
        return before
    return incident_of(indicator, incident_at=before.incident_at if before else now, began_at=now)


def incident_of(indicator: Indicator, **times: Any) -> Incident:
    """Return a new row about a bad indicator, which is not stored."""
    return Incident(
        indicator=indicator.id,
        name=indicator.name,
        state=indicator.state.value,
        sentence=indicator.sentence,
        cause=indicator.cause,
        **times,
    )


@transaction.atomic
def _note(over: Sequence[Incident], begun: Sequence[Incident], *, now: datetime) -> None:
    """Write the changes. If two processes saw the same change, the second one writes nothing."""
    Incident.objects.filter(pk__in=[row.pk for row in over], ended_at=None).update(ended_at=now)
    Incident.objects.bulk_create([row for row in begun if row.pk is None], ignore_conflicts=True)
    is_open = Incident.objects.filter(ended_at=None).values("indicator")
    again = Incident.objects.filter(pk__in=[row.pk for row in begun if row.pk])
    again.exclude(indicator__in=is_open).update(ended_at=None)


def _note_causes(memory: Memory, known: Mapping[str, Indicator]) -> None:
    """Store the last cause of each incident, which stays when the cause recovers first."""
    for indicator, row in memory.newest.items():
        cause = known[indicator].cause if row.ended_at is None and indicator in known else ""
        if cause not in ("", row.cause):
            Incident.objects.filter(pk=row.pk).update(cause=cause)


@transaction.atomic
def note_past(indicator: Indicator, began_at: datetime, ended_at: datetime) -> None:
    """Note an incident that could not be noted in time, unless another process has done so."""
    fetch("SELECT pg_advisory_xact_lock(hashtext('past incidents'))")
    known = Incident.objects.filter(indicator=indicator.id, began_at__lt=ended_at + WELL_AFTER)
    if known.filter(Q(ended_at=None) | Q(ended_at__gt=began_at - WELL_AFTER)).exists():
        return
    incident_of(indicator, incident_at=began_at, began_at=began_at, ended_at=ended_at).save()
