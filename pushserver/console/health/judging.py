"""The list of all health indicators, made from the facts of all apps. The module does no I/O: facts in, indicators out.

Readiness depends only on the answers of the servers around us and on the cache (`Reached`). So `/readyz` answers within
seconds in every state of the database.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pushserver.console.health import filling, pages, space
from pushserver.console.health.filling import Filling
from pushserver.console.health.indicators import DATABASE_SILENT, Group, Indicator, Kind, State, explained
from pushserver.console.health.kinds import delivery, reports, results, server, traffic
from pushserver.console.health.kinds.delivery import DeliveryFacts
from pushserver.console.health.kinds.reports import ReportsFacts
from pushserver.console.health.kinds.results import ResultFacts
from pushserver.console.health.kinds.traffic import TrafficFacts
from pushserver.console.health.space import Past, Volume
from pushserver.console.parts import Operations, parts

REGISTRATIONS = Kind(
    *("registrations", Group.IN, "Registrations", "PushServerRegistrationsFilling", pages.REGISTRATIONS)
)
OWN_KINDS = (
    *(*server.KINDS, REGISTRATIONS, *delivery.KINDS, results.RESULTS),
    *(traffic.TRAFFIC, *reports.KINDS),
)


@dataclass(frozen=True, slots=True)
class Reached:
    """Answers of the servers around us, and the heartbeats in the cache.

    ``database`` and ``broker`` have the reason why each cannot be used, or are empty. ``silent_seconds`` has the
    seconds without work of each process of `batches`, and is None while PostgreSQL does not answer. ``parts`` has the
    answers for each gateway and bridge, and ``incidents`` the beginning of each open incident by indicator.
    ``volumes`` are those that this process sees, with the ``past`` of their free space. ``waits_for`` is the fault for
    which processes of this machine wait at their start.
    """

    database: str = ""
    broker: str = ""
    queues: Sequence[server.Queue] = ()
    silent_seconds: Sequence[float] | None = None
    parts: Mapping[Operations, Any] = field(default_factory=dict)
    incidents: Mapping[str, datetime] = field(default_factory=dict)
    volumes: Sequence[Volume] = ()
    past: Mapping[str, Past] = field(default_factory=dict)
    waits_for: str = ""


@dataclass(frozen=True, slots=True)
class Stored:
    """Facts from the database. ``is_slow`` is true if counting the backlog took too long. ``parts`` has the facts of
    each gateway and bridge.
    """

    is_slow: bool = False
    counted_until: datetime | None = None
    lost_key: server.LostKey | None = None
    delivery: DeliveryFacts = field(default_factory=DeliveryFacts)
    results: ResultFacts = field(default_factory=ResultFacts)
    traffic: TrafficFacts = field(default_factory=TrafficFacts)
    registrations: Filling = field(default_factory=lambda: Filling("MAX_REGISTRATIONS", "registrations"))
    reports: ReportsFacts = field(default_factory=ReportsFacts)
    parts: Mapping[Operations, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts of one moment. ``stored`` is None while the database does not answer in time, or cannot be written.
    ``refusal`` says why then.
    """

    now: datetime
    reached: Reached
    stored: Stored | None
    refusal: str = ""


def all_kinds() -> list[Kind]:
    """Return all kinds of indicators, causes before effects."""
    known = [*OWN_KINDS, *(kind for part in parts() for kind in part.kinds)]
    groups = list(Group)
    return sorted(known, key=lambda kind: (groups.index(kind.group), not kind.decides_readiness))


def judge(facts: Facts) -> list[Indicator]:
    """Return all indicators, causes before effects."""
    reached, stored = facts.reached, facts.stored
    is_slow = stored is None or stored.is_slow
    found = [*from_reached(reached), server.database_speed(reached.database, facts.refusal, is_slow=is_slow)]
    found += _from_database(stored, facts, found) if stored else _unknown(found, reached)
    known = all_kinds()
    return explained(sorted(found, key=lambda indicator: known.index(indicator.kind)))


def readiness(reached: Reached) -> list[Indicator]:
    """Return the indicators that decide whether the server is ready."""
    return [indicator for indicator in from_reached(reached) if indicator.kind.decides_readiness]


def from_reached(reached: Reached) -> Iterator[Indicator]:
    """Yield the indicators that need no table of the database."""
    is_redis_down = bool(reached.broker)
    disk = space.judge(server.DISK, reached.volumes, reached.past)
    yield disk
    yield server.database(reached.database, _red_disk_of("PostgreSQL", disk, reached.volumes))
    yield server.broker(reached.broker, _red_disk_of("Redis", disk, reached.volumes))
    yield server.batches(reached.silent_seconds, reached.waits_for)
    yield server.workers(reached.queues, is_redis_down=is_redis_down)
    for part, own in reached.parts.items():
        yield from part.judge_reached(own, is_redis_down=is_redis_down)


def _red_disk_of(name: str, disk: Indicator, volumes: Sequence[Volume]) -> str:
    """Return the id of a red disk, if a volume that we see has the data of this name. Else its server is elsewhere."""
    return disk.id if disk.state == State.RED and any(name in volume.name for volume in volumes) else ""


def _unknown(found: Sequence[Indicator], reached: Reached) -> Iterator[Indicator]:
    """Yield a grey indicator for each kind that only the database can judge."""
    known = {indicator.kind for indicator in found}
    for kind in (*OWN_KINDS, *(kind for part in reached.parts for kind in part.kinds)):
        if kind not in known:
            yield Indicator(kind, State.GREY, DATABASE_SILENT)


def _from_database(stored: Stored, facts: Facts, known: Sequence[Indicator]) -> Iterator[Indicator]:
    """Yield the indicators from the facts in the database. ``known`` are those from the answers of the servers."""
    now, reached = facts.now, facts.reached
    of_parts = [
        one for part, own in stored.parts.items() for one in part.judge_stored(own, reached.parts.get(part), now)
    ]
    gateways = [one for one in (*known, *of_parts) if one.kind.group == Group.OUT]
    yield server.key(stored.lost_key)
    yield server.beat(stored.counted_until, reached.queues, now)
    yield filling.judge(REGISTRATIONS, stored.registrations)
    yield delivery.sending(stored.delivery, gateways)
    yield delivery.delivery(stored.delivery.due, now)
    yield delivery.channels(stored.delivery, now)
    yield delivery.dead_tokens(stored.delivery.deaths_distrusted)
    yield results.results(stored.results, _advice)
    yield delivery.answers(stored.delivery.overdue_seconds, now)
    yield traffic.traffic(stored.traffic, stored.counted_until, now)
    yield reports.reports(stored.reports)
    yield reports.anomalies(stored.reports)
    yield from of_parts


def _advice(code: str) -> str:
    """Return the advice of the first gateway or bridge that has one for the code."""
    return next(filter(None, (part.advice(code) for part in parts())), "")
