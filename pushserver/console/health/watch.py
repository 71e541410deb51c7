"""The watch: a thread of each worker for maintenance that takes snapshots.

So incidents are noted and alert also while no page of the console is open.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from datetime import datetime
from time import monotonic

import structlog
from django.db import Error, connection, transaction
from django.db.models import prefetch_related_objects
from django.utils import timezone

from kit.db.base import timeouts
from kit.db.reasons import reason
from pushserver.console.health import incidents, stored
from pushserver.console.health.alerts import attempt, due, level_of, levels, plan, send_due, targets
from pushserver.console.health.snapshot import is_bad_at_a_glance, take_snapshot
from pushserver.console.health.verdicts import State, Verdict
from pushserver.console.models import Alert, AlertLevel, Incident, ServerStart
from pushserver.release import version
from pushserver.threads import RestartingThread

log = structlog.get_logger(__name__)

# Periods in seconds. A glance asks the servers around us and reads no table. A snapshot takes some ten statements.
GLANCE_SECONDS = 7.5
SNAPSHOT_SECONDS = 2 * GLANCE_SECONDS
# Pause before the first snapshot, while other processes start and run their first checks.
START_SECONDS = 15.0


class Watch(RestartingThread):
    """Takes a snapshot every 15 seconds, and twice as often while a server around us is away or somebody has to act."""

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
        if not (seen.is_noted and self._alert(seen.indicators, now)):
            self._unnoted.look(seen.indicators, now)
        return any(indicator.state == State.RED for indicator in seen.indicators)

    def _alert(self, indicators: Sequence[Verdict], now: datetime) -> bool:
        """Send alerts by their rows. Return whether PostgreSQL could be read and written for that."""
        try:
            with timeouts(stored.TIMEOUTS):
                with transaction.atomic():
                    self._note_start()
                    self._unnoted.note(indicators, now)
                    plan(now=now)
                    unnoted = Unnoted.after(now)
                self._is_start_noted, self._unnoted = True, unnoted
                send_due(now=now)
        except Error as error:
            if self.faults.has_changed(why := reason(error)):
                log.warning("alerts_not_noted", reason=why)
            return False
        self.faults.has_changed("")
        return True

    def _note_start(self) -> None:
        """Store the start of this version. The page of an incident shows the starts in the hour before it."""
        if not self._is_start_noted:
            present = {"keys": stored.present_keys(), "settings": stored.present_settings()}
            ServerStart.objects.create(version=version(), started_at=self._started_at, **present)


class Unnoted:
    """The incidents since PostgreSQL cannot be read or written. They alert from memory, and get their rows afterwards.

    Those that are known go on in memory by the same rules, so each has its row and its alerts, or is not stored yet.
    ``levels`` are those that were chosen last, by kind, and ``snoozed`` has the indicators that send no alert until
    then.
    """

    def __init__(
        self,
        known: Iterable[Incident] = (),
        levels: Mapping[str, AlertLevel.Level] | None = None,
        snoozed: Mapping[str, datetime] | None = None,
    ) -> None:
        self._incidents = [(incident, list(incident.alerts.all())) for incident in known]
        self._levels = levels or {}
        self._snoozed = snoozed or {}
        self._is_used = False

    @classmethod
    def after(cls, now: datetime) -> "Unnoted":
        """Return a memory that goes on with the incidents that are open or have just ended."""
        known = list(incidents.recall(now=now).newest.values())
        prefetch_related_objects(known, "alerts")
        snoozed = Incident.objects.filter(snoozed_until__gt=now).order_by("snoozed_until")
        return cls(known, levels(), {row.indicator: row.snoozed_until for row in snoozed if row.snoozed_until})

    def look(self, indicators: Sequence[Verdict], now: datetime) -> None:
        """Note new and ended incidents, and send what is due about those that follow from no other."""
        self._is_used = True
        self._follow(indicators, now)
        causes = {found.id: found.cause for found in indicators}
        for incident, alerts in self._incidents:
            is_quiet = incident.ended_at or incident.acknowledged_at or self._snoozed.get(incident.indicator, now) > now
            if not (is_quiet or causes.get(incident.indicator)):
                self._plan(incident, alerts, now)
            own = [alert for alert in alerts if alert.pk is None]
            self._send([alert for alert in own if not alert.sent_at and alert.next_attempt_at <= now], now)

    def note(self, indicators: Sequence[Verdict], now: datetime) -> None:
        """Store incidents and alerts. What is not sent yet, and the ends, are sent by these rows."""
        if not self._is_used:
            return
        self._follow(indicators, now)
        for incident, alerts in self._incidents:
            row = incidents.note_past(copy(incident), now=now)
            rows = [copy(alert) for alert in alerts if alert.pk is None]
            for alert in rows:
                alert.incident = row
            Alert.objects.bulk_create(rows, ignore_conflicts=True)

    def _follow(self, indicators: Sequence[Verdict], now: datetime) -> None:
        newest = {incident.indicator: incident for incident, _ in self._incidents}
        begun = incidents.follow(list(newest.values()), indicators, now)
        self._incidents += [(incident, []) for incident in begun]

    def _plan(self, incident: Incident, alerts: list[Alert], now: datetime) -> None:
        level = level_of(incident.indicator, self._levels)
        planned = {(alert.event, alert.number) for alert in alerts}
        alerted_at = max((alert.planned_at for alert in alerts), default=None)
        for event, number in due(incident, level, now, (alerted_at, None, 0)):
            if (event, number) not in planned:
                own = {"incident": incident, "event": event, "number": number, "planned_at": now}
                alerts += [Alert(target=label, next_attempt_at=now, **own) for label in targets()]

    def _send(self, alerts: Sequence[Alert], now: datetime) -> None:
        for alert in alerts:
            if target := targets().get(alert.target):
                attempt(alert, target, now)
