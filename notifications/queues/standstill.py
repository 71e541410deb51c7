"""Standstill: whether any push is sent, and who or what stopped delivery and each app.

A health indicator shows it. Only apps that something was delivered to count: made-up apps neither stop the server nor
keep it running.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, LiteralString, NamedTuple

from kit.admin.times import exact
from kit.health.indicators import duration
from notifications.models import Channel, Halt
from notifications.queues.halts import RUNNING
from registrations import token_types

DRAINED = Halt.Kind.DRAINED.value
SWITCHES: LiteralString = f"""
    SELECT kind, coalesce(token_type, 0), app_topic, by, reason, since FROM notifications_halt
    WHERE kind IN ('{Halt.Kind.DRAINED}', '{Halt.Kind.PAUSED}', '{Halt.Kind.TRIPPED}')
    UNION ALL
    SELECT 'running', token_type, app_topic, '', '', last_success_at FROM notifications_channel AS app
    WHERE NOT EXISTS (
        SELECT FROM notifications_halt AS halt
        WHERE halt.kind IN ('{Halt.Kind.PAUSED}', '{Halt.Kind.TRIPPED}') AND halt.token_type = app.token_type
            AND halt.app_topic = app.app_topic
    )
"""


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
            *(state, str(Channel(token_type=kind, app_topic=topic)), by, why, since.astimezone(UTC)),
            token_types.devices_of(kind),
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
