"""The health of the whole server at one moment: the facts and the indicators."""

from datetime import datetime
from typing import NamedTuple

import structlog
from django.db import Error, transaction

from kit.db.base import timeouts
from kit.db.reasons import is_closed, reason
from kit.processes.status import ChangeFilter
from pushserver.console.health import asking, indicators, stored, traffic
from pushserver.console.health.hour import Hour, read_hour
from pushserver.console.health.incidents import recall, remember
from pushserver.console.health.indicators import judge
from pushserver.console.health.verdicts import Facts, Verdict, dated

log = structlog.get_logger(__name__)

REFUSALS = ChangeFilter()


class Snapshot(NamedTuple):
    """The facts of one moment, and the indicators, causes before effects. With ``is_noted`` incidents are stored."""

    facts: Facts
    indicators: list[Verdict]
    is_noted: bool

    @property
    def hour(self) -> Hour:
        """Return the last hour by the minute."""
        found: Hour = self.facts["hour"]
        return found


def take_snapshot(*, now: datetime) -> Snapshot:
    """Ask the servers, read the database, judge, and note begun and ended incidents.

    While the database cannot be read and written in time, nothing is noted, and the indicators from its facts are
    unknown.
    """
    facts = Facts(asking.RECENT.get(), now=now)
    if not facts["database"]:
        try:
            with timeouts(stored.TIMEOUTS), transaction.atomic():
                seen = _with_database(facts)
            REFUSALS.has_changed("")
            return seen  # noqa: TRY300 - the rest is for failures
        except Error as error:
            facts["refusal"] = refusal = reason(error)
            facts["database"] = refusal if is_closed(error) else ""
            if REFUSALS.has_changed(refusal):
                log.warning("facts_not_read", reason=refusal)
    facts |= {"hour": Hour(traffic.minutes(now), {}), "is_slow": True}
    return Snapshot(facts, dated(judge(facts), facts["incidents"]), is_noted=False)


def _with_database(asked: Facts) -> Snapshot:
    now = asked["now"]
    memory = recall(now=now)
    facts = stored.read(asked, read_hour(now), memory.states)
    return Snapshot(facts, remember(judge(facts), memory, now=now), is_noted=True)


def readiness() -> list[Verdict]:
    """Return the indicators that decide readiness, without waiting for the database."""
    facts = asking.RECENT.get()
    return dated(indicators.readiness(facts), facts["incidents"])


def is_bad_at_a_glance() -> bool:
    """Return whether a server around us or a worker is bad, without reading a table."""
    return any(found.is_bad for found in judge(asking.RECENT.get()))
