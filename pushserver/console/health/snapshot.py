"""The health of the whole server at one moment: facts, the hour before it, and the indicators."""

from dataclasses import dataclass, replace
from datetime import datetime

import structlog
from django.db import Error, transaction

from kit.db.base import timeouts
from kit.db.reasons import is_closed, reason
from kit.processes.status import ChangeFilter
from pushserver.console.health import asking, judging, stored
from pushserver.console.health.history import traffic
from pushserver.console.health.hour import Hour, read_hour
from pushserver.console.health.incidents import recall, remember
from pushserver.console.health.indicators import Indicator, dated
from pushserver.console.health.judging import Facts, Reached

log = structlog.get_logger(__name__)

REFUSALS = ChangeFilter()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The facts of one moment, the hour before it, and the indicators, causes before effects."""

    facts: Facts
    hour: Hour
    indicators: list[Indicator]


def take_snapshot(*, now: datetime) -> Snapshot:
    """Ask the servers, read the database, judge, and note begun and ended incidents.

    While the database cannot be read and written in time, nothing is noted, and the indicators from its facts are
    unknown.
    """
    reached = asking.RECENT.get()
    refusal = ""
    if not reached.database:
        try:
            with timeouts(stored.TIMEOUTS), transaction.atomic():
                seen = _with_database(reached, now)
            REFUSALS.has_changed("")
            return seen  # noqa: TRY300 - the rest is for failures
        except Error as error:
            refusal = reason(error)
            reached = replace(reached, database=refusal) if is_closed(error) else reached
            if REFUSALS.has_changed(refusal):
                log.warning("facts_not_read", reason=refusal)
    facts = Facts(now, reached, None, refusal)
    return Snapshot(facts, Hour(traffic.minutes(now), {}), dated(judging.judge(facts), reached.incidents))


def _with_database(reached: Reached, now: datetime) -> Snapshot:
    hour = read_hour(now)
    memory = recall(now=now)
    facts = Facts(now, reached, stored.read(hour, memory.states, now=now, is_blind=bool(reached.broker)))
    return Snapshot(facts, hour, remember(judging.judge(facts), memory, now=now))


def readiness() -> list[Indicator]:
    """Return the indicators that decide readiness, without waiting for the database."""
    reached = asking.RECENT.get()
    return dated(judging.readiness(reached), reached.incidents)


def is_bad_at_a_glance() -> bool:
    """Return whether a server around us or a worker is bad, without reading a table."""
    return any(found.is_bad for found in judging.from_reached(asking.RECENT.get()))
