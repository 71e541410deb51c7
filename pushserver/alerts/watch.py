"""The watch: a thread of each worker for maintenance that takes snapshots.

So incidents are noted and alert also while no page of the console is open.
"""

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from datetime import datetime
from time import monotonic

import structlog
from django.db import Error, connection, transaction
from django.utils import timezone

from kit.db.reasons import reason
from kit.db.timeouts import timeouts
from kit.health.indicators import Indicator, State
from kit.processes.threads import RestartingThread
from pushserver.alerts import planning, sending
from pushserver.alerts.targets import targets
from pushserver.indicators import incidents, keys, stored
from pushserver.indicators.snapshot import is_bad_at_a_glance, take_snapshot
from pushserver.models import Alert, AlertLevel, Incident, ServerStart
from pushserver.start.release import version

log = structlog.get_logger(__name__)

# Periods in seconds. A glance asks the servers around us and reads no table. A snapshot takes some ten statements.
GLANCE_SECONDS = 5.0
SNAPSHOT_SECONDS = 15.0
# Pause before the first snapshot, while other processes start and run their first checks.
START_SECONDS = 15.0


class Watch(RestartingThread):
    """Takes a snapshot every 15 seconds, and every 5 while a server around us is away or somebody has to act."""

    def __init__(self) -> None:
        super().__init__("watch")
        self._started_at = timezone.now()
        self._is_start_noted = False
        self._unnoted = Unnoted()

    def work(self) -> None:
        self.stopped.wait(START_SECONDS)
        is_bad, seen_at = True, monotonic()
        while not self.stopped.is_set():
            if is_bad or monotonic() - seen_at >= SNAPSHOT_SECONDS or is_bad_at_a_glance():
                is_bad, seen_at = self.look(timezone.now()), monotonic()
                connection.close_if_unusable_or_obsolete()
            self.stopped.wait(GLANCE_SECONDS)

    def look(self, now: datetime) -> bool:
        """Take a snapshot, note new and ended incidents, and send alerts. Return whether somebody has to act."""
        seen = take_snapshot(now=now)
        if not (seen.facts.stored and self._alert(seen.indicators, now)):
            self._unnoted.look(seen.indicators, now)
        return any(indicator.state == State.RED for indicator in seen.indicators)

    def _alert(self, indicators: Sequence[Indicator], now: datetime) -> bool:
        """Send alerts by their rows. Return whether PostgreSQL could be read and written for that."""
        try:
            with timeouts(stored.TIMEOUTS):
                with transaction.atomic():
                    self._note_start()
                    self._unnoted.note(indicators, now)
                    planning.plan(now=now)
                    levels = planning.levels()
                self._is_start_noted = True
                self._unnoted = Unnoted({found.id for found in indicators if found.is_bad}, levels)
                sending.send_due(now=now)
        except Error as error:
            if self.faults.has_changed(why := reason(error)):
                log.warning("alerts_not_noted", reason=why)
            return False
        self.faults.has_changed("")
        return True

    def _note_start(self) -> None:
        """Store the start of this version. The page of an incident shows the starts in the hour before it."""
        if not self._is_start_noted:
            ServerStart.objects.create(version=version(), started_at=self._started_at, keys=keys.present())


class Unnoted:
    """The incidents since PostgreSQL cannot be read or written. They alert from memory, and get their rows afterwards.

    The indicators in ``before`` were bad already, and alert by their rows. ``levels`` are those that were
    chosen last, by kind.
    """

    def __init__(self, before: Collection[str] = (), levels: Mapping[str, AlertLevel.Level] | None = None) -> None:
        self._before = before
        self._levels = levels or {}
        self._incidents: list[tuple[Incident, list[Alert]]] = []

    def look(self, indicators: Sequence[Indicator], now: datetime) -> None:
        """Note new and ended incidents, and send what is due about those that follow from no other."""
        self._follow(indicators, now)
        causes = {found.id: found.cause for found in indicators}
        for incident, alerts in self._incidents:
            if not causes.get(incident.indicator) and not incident.ended_at:
                self._plan(incident, alerts, now)
            self._send([alert for alert in alerts if not alert.sent_at and alert.next_attempt_at <= now], now)

    def note(self, indicators: Sequence[Indicator], now: datetime) -> None:
        """Store incidents and alerts. What is not sent yet, and the ends, are sent by these rows."""
        self._follow(indicators, now)
        for incident, alerts in self._incidents:
            row = incidents.note_past(copy(incident), now=now)
            rows = list(map(copy, alerts))
            for alert in rows:
                alert.incident = row
            Alert.objects.bulk_create(rows, ignore_conflicts=True)

    def _follow(self, indicators: Sequence[Indicator], now: datetime) -> None:
        newest = {incident.indicator: incident for incident, _ in self._incidents}
        for found in indicators:
            known = newest.get(found.id)
            incident = None if found.id in self._before else incidents.follow(known, found, now)
            if incident and incident is not known:
                self._incidents.append((incident, []))

    def _plan(self, incident: Incident, alerts: list[Alert], now: datetime) -> None:
        level = planning.level_of(incident.indicator, self._levels)
        planned = {(alert.event, alert.number) for alert in alerts}
        for event, number in planning.due(incident, level, now, (None, None, 0)):
            if (event, number) not in planned:
                own = {"incident": incident, "event": event, "number": number, "planned_at": now}
                alerts += [Alert(target=label, next_attempt_at=now, **own) for label in targets()]

    def _send(self, alerts: Sequence[Alert], now: datetime) -> None:
        for alert in alerts:
            if target := targets().get(alert.target):
                sending.attempt(alert, target, now)
