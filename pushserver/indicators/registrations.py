"""Judge how full the tables of registrations and of XMPP users' devices are. The module is pure."""

from dataclasses import dataclass
from datetime import datetime

from kit.health.indicators import Group, Indicator, Kind, State
from pushserver.indicators import pages

REGISTRATIONS = Kind("registrations", Group.IN, "Registrations", "PushServerRegistrationsFilling", pages.REGISTRATIONS)
XMPP_DEVICES = Kind("xmpp-devices", Group.IN, "XMPP devices", "PushServerRegistrationsFilling", pages.XMPP_DEVICES)
KINDS = (REGISTRATIONS, XMPP_DEVICES)
# Of MAX_REGISTRATIONS and XMPP_MAX_DEVICES.
FILLING_FROM = 0.8


@dataclass(frozen=True, slots=True)
class Expiring:
    """How many of all would expire at once, and wait for somebody to allow it."""

    count: int
    total: int
    since: datetime


@dataclass(frozen=True, slots=True)
class Filling:
    """How many rows are stored in a table, how many may be, and how many new ones are taken in a day at most."""

    stored: int = 0
    limit: int = 1
    per_day: int = 1
    expiring: Expiring | None = None


def registrations(filling: Filling) -> Indicator:
    return _judge(REGISTRATIONS, filling, "MAX_REGISTRATIONS", "registrations")


def xmpp_devices(filling: Filling) -> Indicator:
    return _judge(XMPP_DEVICES, filling, "XMPP_MAX_DEVICES", "devices")


def _judge(kind: Kind, filling: Filling, setting: str, name: str) -> Indicator:
    if filling.expiring:
        found = filling.expiring
        sentence = f"{found.count:,} of {found.total:,} would expire at once, and wait for somebody to allow it"
        first_step = (
            "Is the clock of PostgreSQL's host right, and were pushes delivered all the while? If nobody uses them any "
            f"more: `manage.py allow_expiry {name}`."
        )
        return Indicator(kind, State.YELLOW, sentence, first_step, found.since)
    sentence = f"{filling.stored:,} of {filling.limit:,} are stored"
    if filling.stored < FILLING_FROM * filling.limit:
        return Indicator(kind, State.GREEN, sentence)
    days = max(0, filling.limit - filling.stored) // filling.per_day
    first_step = (
        f"Raise {setting} if they are real: at the limit new phones are refused, in {days} days at the earliest."
    )
    return Indicator(kind, State.YELLOW, sentence, first_step)
