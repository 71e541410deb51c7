"""Remember since when a light is not green, and for how long it was not: the incidents of the last thirty days.

Beat and every dashboard remember it, so what one of them has seen the others find. They look at different moments:
what is bad again within a minute has never been well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q

from pushserver.models import Incident
from pushserver.state.lights import Level, Light

KEPT = timedelta(days=30)
# A light has to be green for so long before it has been well.
WELL_AFTER = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Memory:
    """The incidents that go on or ended a moment ago, the newest of each light."""

    newest: Mapping[str, Incident]

    @property
    def levels(self) -> dict[str, Level]:
        """Return the levels of the lights that were not green when somebody looked last."""
        return {light: Level(row.level) for light, row in self.newest.items() if row.ended_at is None}


def recall(*, now: datetime) -> Memory:
    """Read what is known of the lights, in one query."""
    recent = Incident.objects.filter(Q(ended_at=None) | Q(ended_at__gt=now - WELL_AFTER))
    return Memory({row.light: row for row in recent.order_by("began_at", "pk")})


def remember(lights: Sequence[Light], memory: Memory, *, now: datetime) -> list[Light]:
    """Return the lights with the time at which they were green the last time, and note what changed.

    A light that nothing is known about neither begins nor ends anything.
    """
    known = {light.id: light for light in lights}
    over = [row for row in memory.newest.values() if row.ended_at is None and _is_over(row, known.get(row.light))]
    begun = [_begun(light, memory.newest.get(light.id), now) for light in lights if _has_begun(light, memory)]
    if over or begun:
        _note(over, begun, now=now)
    since = {row.light: row.incident_at for row in [*memory.newest.values(), *begun]}
    return [_dated(light, since) for light in lights]


def _is_over(row: Incident, light: Light | None) -> bool:
    level = light.finding.level if light else Level.GREEN
    return level not in (Level.GREY, row.level)


def _has_begun(light: Light, memory: Memory) -> bool:
    return light.finding.is_bad and memory.levels.get(light.id) != light.finding.level


def _begun(light: Light, before: Incident | None, now: datetime) -> Incident:
    """Return the row of what begins: the one before, where it was the same and ended only a moment ago."""
    if before and before.ended_at and before.level == light.finding.level:
        return before
    return Incident(
        light=light.id,
        name=light.name,
        level=light.finding.level.value,
        words=light.finding.words,
        incident_at=before.incident_at if before else now,
        began_at=now,
    )


@transaction.atomic
def _note(over: Sequence[Incident], begun: Sequence[Incident], *, now: datetime) -> None:
    """Write what changed. Of two who saw the same, the second one writes nothing."""
    Incident.objects.filter(pk__in=[row.pk for row in over], ended_at=None).update(ended_at=now)
    Incident.objects.bulk_create([row for row in begun if row.pk is None], ignore_conflicts=True)
    is_open = Incident.objects.filter(ended_at=None).values("light")
    again = Incident.objects.filter(pk__in=[row.pk for row in begun if row.pk])
    again.exclude(light__in=is_open).update(ended_at=None)


def _dated(light: Light, since: Mapping[str, datetime]) -> Light:
    if light.finding.since or not light.finding.is_bad:
        return light
    return replace(light, finding=replace(light.finding, since=since.get(light.id)))
