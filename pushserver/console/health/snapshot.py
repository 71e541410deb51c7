"""The health of the whole server at one moment: the facts and the indicators, and the probes that show it.

`/healthz` shows that this process runs, and `/readyz` whether the server processes messages, or why not. Both are open
to anybody. `/readyz` shows the indicators that decide readiness, with numbers in place of hosts, and no user, password,
path or exception text. The API shows all of them, with hosts.
"""

from datetime import datetime
from typing import NamedTuple

import structlog
from django.db import Error, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from kit.db.base import timeouts
from kit.db.reasons import is_closed, reason
from kit.processes.status import ChangeFilter
from pushserver.console.health import asking, indicators, stored
from pushserver.console.health.history import Hour, no_hour, read_hour
from pushserver.console.health.incidents import recall, remember
from pushserver.console.health.indicators import judge
from pushserver.console.health.verdicts import Facts, Verdict, dated, is_ready, to_json, without_hosts

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
    facts |= {"hour": no_hour(now), "is_slow": True}
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


# Probes ---------------------------------------------------------------------------------------------------------------
@never_cache
@require_safe
def healthz(_request: HttpRequest) -> HttpResponse:
    return JsonResponse({"status": "ok"})


@never_cache
@require_safe
def readyz(_request: HttpRequest) -> HttpResponse:
    found = readiness()
    response = JsonResponse(to_json(without_hosts(found)), status=200 if is_ready(found) else 503)
    # Django would log this 503 as an error every few seconds, but it is a regular answer.
    setattr(response, "_has_been_logged", True)  # noqa: B010 - undeclared, hence unknown to type checkers
    return response
