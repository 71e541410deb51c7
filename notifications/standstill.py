"""Whether any push is sent, and who or what stopped delivery and each channel.

The dashboard, `/readyz` and the metrics tell it from the same rows. A channel is proven when something was delivered to
it once: what strangers made up neither stops the server nor keeps it going.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, LiteralString, NamedTuple

from kit.admin.times import exact
from notifications.models import Channel

DRAINED = "drained"
# Channels with deliveries come first, one for each app and platform. Strangers may have made up the rest.
SWITCHES: LiteralString = """
    SELECT 'drained', 0, '', started_by, reason, since, TRUE FROM notifications_drain
    UNION ALL (
        SELECT state, token_type, apn_topic, changed_by, reason, since, last_success_at IS NOT NULL
        FROM notifications_channel ORDER BY last_success_at, since LIMIT 200
    )
"""


class Switch(NamedTuple):
    """Delivery as a whole while it is drained, or one channel. ``by`` is empty for what the server did itself."""

    state: str
    name: str
    by: str
    why: str
    since: datetime
    is_proven: bool = True

    @property
    def is_on(self) -> bool:
        return self.state == Channel.State.RUNNING

    @property
    def stopper(self) -> str:
        return self.by or "a breaker"

    @property
    def words(self) -> str:
        """Return what is stopped, by whom and why, for those who may know it."""
        what = "stopped" if self.state == DRAINED else f"{self.name} {self.state}"
        return f"{what} by {self.stopper} since {exact(self.since)}: {self.why or 'no reason given'}"


def read(rows: Iterable[Sequence[Any]]) -> list[Switch]:
    """Return the rows of `SWITCHES`, whatever connection read them."""
    return [
        Switch(state, str(Channel(token_type=kind, apn_topic=topic)), by, why, since.astimezone(UTC), is_proven)
        for state, kind, topic, by, why, since, is_proven in rows
    ]


def stops(switches: Iterable[Switch]) -> list[Switch]:
    """Return what keeps every push from being sent: the drain, or all proven channels. Mostly that is nothing."""
    found = list(switches)
    drains = [switch for switch in found if switch.state == DRAINED]
    channels = [switch for switch in found if switch.is_proven and switch.state != DRAINED]
    return drains or ([] if any(channel.is_on for channel in channels) else channels)


def headline(stopped: Sequence[Switch]) -> str:
    """Return in one line that nothing is sent, by whom, and since when: since the last of these was stopped."""
    by = " and ".join(dict.fromkeys(switch.stopper for switch in stopped))
    return f"No pushes are sent: stopped by {by} since {exact(max(switch.since for switch in stopped))}"


def anonymous(stopped: Sequence[Switch]) -> str:
    """Return the same without the names and reasons of people, for `/readyz`, which is open to anybody."""
    if stopped[0].state == DRAINED:
        return (
            f"no pushes are sent: an operator stopped delivery, and notifications wait since {exact(stopped[0].since)}"
        )
    each = ", ".join(f"{switch.name} {switch.state} since {exact(switch.since)}" for switch in stopped)
    return f"no pushes are sent: every channel that something was delivered to is halted: {each}"
