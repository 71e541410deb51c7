"""Standstill: whether any push is sent, and who or what stopped delivery and each app.

A health indicator shows it. Only apps that something was delivered to count: made-up apps neither stop the server nor
keep it running.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString, NamedTuple

from kit.db.base import fetch
from kit.display import exact
from notifications.messages import DEVICE_LIMITED, DRY_RUN, FAILURES
from notifications.models import Channel, Halt
from notifications.queues.breakers import ANSWERED
from notifications.queues.queues import SUCCESS_NOTED_EVERY
from pushserver.console.health.indicators import duration
from pushserver.console.notifications.halted import RUNNING
from registrations.messages import devices_of

DRAINED = Halt.Kind.DRAINED.value
SWITCHES: LiteralString = f"""
    SELECT kind, coalesce(token_type, 0), app_topic, by, reason, since FROM notifications_halt
    WHERE kind IN ('{Halt.Kind.DRAINED}', '{Halt.Kind.PAUSED}', '{Halt.Kind.TRIPPED}') AND ended_at IS NULL
    UNION ALL
    SELECT 'running', token_type, app_topic, '', '', last_success_at FROM notifications_channel AS app
    WHERE NOT EXISTS (
        SELECT FROM notifications_halt AS halt
        WHERE halt.kind IN ('{Halt.Kind.PAUSED}', '{Halt.Kind.TRIPPED}') AND halt.token_type = app.token_type
            AND halt.app_topic = app.app_topic AND halt.ended_at IS NULL
    )
"""


# Failures of an app in a row that are too few for its breaker (`breakers`), as in a small fleet or at night.
FEW_FAILURES = 3
FAILURES_WITHIN = timedelta(hours=1)
_FAILED: LiteralString = " UNION ALL ".join(
    f"""(
        SELECT token_type, app_topic, code, error, began_at, ended_at FROM notifications_endedattempt
        WHERE outcome = '{outcome}' AND started_at >= date_trunc('day', %(since)s) ORDER BY id DESC LIMIT 100
    )"""
    for outcome in FAILURES
)
# All apps of a platform that nothing was delivered to count as one, without a name, because clients choose the names. A
# delivery to any app of the platform clears them (exact to the minute), so that made-up apps show no failure of ours.
_FAILING = f"""
    WITH failed AS MATERIALIZED ({_FAILED}), app AS MATERIALIZED (
        SELECT token_type, app_topic, (
            SELECT ended_at FROM notifications_endedattempt AS answered
            WHERE answered.token_type = channel.token_type AND answered.app_topic = channel.app_topic
                AND outcome IN ({ANSWERED}) AND began_at IS NOT NULL AND code <> '{DRY_RUN}' AND started_at >= %(since)s
            ORDER BY started_at DESC LIMIT 1
        ) AS answered_at
        FROM notifications_channel AS channel
        WHERE (token_type, app_topic) IN (SELECT token_type, app_topic FROM failed)
    ), platform AS (
        SELECT token_type, max(last_success_at) + interval '{SUCCESS_NOTED_EVERY.seconds} seconds' AS answered_at
        FROM notifications_channel GROUP BY token_type
    )
    SELECT failed.token_type, app.app_topic, count(*), min(failed.ended_at),
        mode() WITHIN GROUP (ORDER BY concat(code, ' (' || nullif(error, '') || ')'))
    FROM failed
    LEFT JOIN app USING (token_type, app_topic)
    LEFT JOIN platform ON platform.token_type = failed.token_type
    WHERE began_at IS NOT NULL AND code <> '{DEVICE_LIMITED}' AND ended_at >= %(since)s AND ended_at > coalesce(
        CASE WHEN app.token_type IS NULL THEN platform.answered_at ELSE app.answered_at END, '-infinity'
    )
    GROUP BY failed.token_type, app.app_topic HAVING count(*) >= {FEW_FAILURES}
"""


class Failing(NamedTuple):
    """An app whose last sends all failed, or the apps of a platform that nothing was delivered to yet.

    ``answer`` is the commonest code, with the gateway's redacted text where there is one.
    """

    name: str
    failures: int
    since: datetime
    answer: str


def failing(*, now: datetime) -> list[Failing]:
    """Return the apps whose last sends, at least `FEW_FAILURES` within the last hour, all failed."""
    return [
        Failing(_name(kind, topic), count, since.astimezone(UTC), answer)
        for kind, topic, count, since, answer in fetch(_FAILING, {"since": now - FAILURES_WITHIN})
    ]


def _name(kind: int, topic: str | None) -> str:
    if topic is None:
        return f"{devices_of(kind)} apps without a delivery"
    return str(Channel(token_type=kind, app_topic=topic))


class Switch(NamedTuple):
    """Delivery as a whole while it is drained, or one app. ``by`` is empty when the server itself acted."""

    state: str
    name: str
    by: str
    why: str
    since: datetime
    devices: str  # the kind of device that its pushes go to, for people

    @property
    def is_on(self) -> bool:
        return self.state == RUNNING

    @property
    def stopper(self) -> str:
        return self.by or "a breaker"

    @property
    def words(self) -> str:
        """Return what is stopped, by whom and why. Only staff may read it."""
        state = "stopped" if self.state == DRAINED else f"{self.name} {self.state}"
        return f"{state} by {self.stopper} since {exact(self.since)}: {self.why or 'no reason given'}"


def read(rows: Iterable[Sequence[Any]]) -> list[Switch]:
    """Return the switches in the rows of `SWITCHES`, from any connection."""
    return [
        Switch(
            *(state, _name(kind, topic), by, why, since.astimezone(UTC)),
            devices_of(kind),
        )
        for state, kind, topic, by, why, since in rows
    ]


def stops(switches: Iterable[Switch]) -> list[Switch]:
    """Return what keeps every push from being sent: the drain, or the halts of all channels. Mostly there is none."""
    found = list(switches)
    drains = [switch for switch in found if switch.state == DRAINED]
    channels = [switch for switch in found if switch.state != DRAINED]
    return drains or ([] if any(channel.is_on for channel in channels) else channels)


def stopped_words(switches: Iterable[Switch], *, now: datetime) -> str:
    """Return one line on which pushes are not sent, since when and why.

    They are those of all apps of a kind of device, or those of the app that was stopped last.
    """
    halted = [switch for switch in switches if not switch.is_on and switch.state != DRAINED]
    running = {switch.devices for switch in switches if switch.is_on}
    last = max(halted, key=lambda switch: (switch.devices not in running, switch.since))
    pushes = f"Pushes of {last.name}" if last.devices in running else f"{last.devices} pushes"
    ago = duration((now - last.since).total_seconds())
    return f"{pushes} stopped {ago} ago: {last.state} by {last.stopper}"


def headline(stopped: Sequence[Switch]) -> str:
    """Return one line: nothing is sent, by whose action, and since when. The last stop counts."""
    by = " and ".join(dict.fromkeys(switch.stopper for switch in stopped))
    return f"No pushes are sent: stopped by {by} since {exact(max(switch.since for switch in stopped))}"
