"""The watch: a thread of each worker for maintenance that takes snapshots.

So incidents are noted and alert also while no page of the console is open.
"""

from datetime import datetime
from time import monotonic

from django.db import connection
from django.utils import timezone

from kit.health.indicators import State
from kit.processes.threads import RestartingThread
from pushserver.alerts import messages, planning, sending
from pushserver.alerts.targets import targets
from pushserver.indicators import incidents
from pushserver.indicators.kinds import server
from pushserver.indicators.snapshot import is_bad_at_a_glance, take_snapshot
from pushserver.models import Alert, ServerStart
from pushserver.start.release import version

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
        self._absence: Absence | None = None

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
        if seen.facts.stored:
            self._note_start()
            self._end_absence(now)
            planning.plan(now=now)
            sending.send_due(now=now)
        elif found := seen.facts.reached.database:
            self._absence = self._absence or Absence(found, now)
            self._absence.alert(now)
        return any(indicator.state == State.RED for indicator in seen.indicators)

    def _note_start(self) -> None:
        """Store the start of this version. The page of an incident shows the starts in the hour before it."""
        if not self._is_start_noted:
            ServerStart.objects.create(version=version(), started_at=self._started_at)
            self._is_start_noted = True

    def _end_absence(self, now: datetime) -> None:
        if self._absence:
            self._absence.end(now)
            self._absence = None


class Absence:
    """A period without PostgreSQL, in which no row can record the sent alerts."""

    def __init__(self, found: str, began_at: datetime) -> None:
        self._indicator = server.database(found)
        self._began_at = began_at
        self._is_alerted = False

    def alert(self, now: datetime) -> None:
        """Alert every target after the same delay as for other incidents."""
        if not self._is_alerted and now - self._began_at >= planning.SETTLED:
            self._send(Alert.Event.BEGAN, None)
            self._is_alerted = True

    def end(self, now: datetime) -> None:
        """Note the incident. Send its end if its beginning was sent."""
        incidents.note_past(self._indicator, self._began_at, now)
        if self._is_alerted:
            self._send(Alert.Event.ENDED, now)

    def _send(self, event: str, ended_at: datetime | None) -> None:
        incident = incidents.incident_of(self._indicator, began_at=self._began_at, ended_at=ended_at)
        for target in targets().values():
            sending.send(target, messages.about(incident, event))
