"""Remember since when an indicator is not green, and for how long it was not: the incidents of the last thirty days.

Every snapshot updates them: those of the watch, dashboards, the API and `/metrics`. They are taken at different
moments, so an indicator that is bad again within a minute has never been well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q

from kit.db.statements import fetch
from kit.health.indicators import Indicator, State, dated
from pushserver.models import Incident

# An indicator has to be green for so long before it has been well.
WELL_AFTER = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Memory:
    """The incidents that go on or ended a moment ago, the newest of each indicator."""

    newest: Mapping[str, Incident]

    @property
    def states(self) -> dict[str, State]:
        """Return the states of the indicators that were bad in the last snapshot."""
        return {indicator: State(row.state) for indicator, row in self.newest.items() if row.ended_at is None}

    def owner_of(self, indicator: Indicator) -> str:
        """Return who takes care of what is bad, or nothing."""
        row = self.newest.get(indicator.id)
        return row.acknowledged_by if row and indicator.is_bad and row.state == indicator.state else ""


def recall(*, now: datetime) -> Memory:
    """Read what is known of the indicators, in one query."""
    recent = Incident.objects.filter(Q(ended_at=None) | Q(ended_at__gt=now - WELL_AFTER))
    return Memory({row.indicator: row for row in recent.order_by("began_at", "pk")})


def remember(indicators: Sequence[Indicator], memory: Memory, *, now: datetime) -> list[Indicator]:
    """Return the indicators with the time at which they were green the last time, and note what changed.

    An indicator that nothing is known about neither begins nor ends anything.
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
    """Return the row of what begins: the one before, where it was the same and ended only a moment ago."""
    if before and before.ended_at and before.state == indicator.state:
        return before
    return Incident(
        indicator=indicator.id,
        name=indicator.name,
        state=indicator.state.value,
        sentence=indicator.sentence,
        incident_at=before.incident_at if before else now,
        began_at=now,
        cause=indicator.cause,
    )


@transaction.atomic
def _note(over: Sequence[Incident], begun: Sequence[Incident], *, now: datetime) -> None:
    """Write what changed. Of two who saw the same, the second one writes nothing."""
    Incident.objects.filter(pk__in=[row.pk for row in over], ended_at=None).update(ended_at=now)
    Incident.objects.bulk_create([row for row in begun if row.pk is None], ignore_conflicts=True)
    is_open = Incident.objects.filter(ended_at=None).values("indicator")
    again = Incident.objects.filter(pk__in=[row.pk for row in begun if row.pk])
    again.exclude(indicator__in=is_open).update(ended_at=None)


def _note_causes(memory: Memory, known: Mapping[str, Indicator]) -> None:
    """Keep what explained each incident last, also when that has been put right before it."""
    for indicator, row in memory.newest.items():
        cause = known[indicator].cause if row.ended_at is None and indicator in known else ""
        if cause not in ("", row.cause):
            Incident.objects.filter(pk=row.pk).update(cause=cause)


@transaction.atomic
def note_past(indicator: Indicator, began_at: datetime, ended_at: datetime) -> None:
    """Note an incident that could not be noted while it went on, unless another process has done so."""
    fetch("SELECT pg_advisory_xact_lock(hashtext('past incidents'))")
    known = Incident.objects.filter(indicator=indicator.id, began_at__lt=ended_at + WELL_AFTER)
    if known.filter(Q(ended_at=None) | Q(ended_at__gt=began_at - WELL_AFTER)).exists():
        return
    Incident.objects.create(
        indicator=indicator.id,
        name=indicator.name,
        state=indicator.state.value,
        sentence=indicator.sentence,
        incident_at=began_at,
        began_at=began_at,
        ended_at=ended_at,
    )
