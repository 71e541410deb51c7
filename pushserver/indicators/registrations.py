"""Judge how full the tables of registrations and of XMPP users' devices are. The module is pure."""

from dataclasses import dataclass

from kit.indicators import Group, Indicator, Kind, State
from pushserver.indicators import pages

REGISTRATIONS = Kind("registrations", Group.IN, "Registrations", "PushServerRegistrationsFilling", pages.REGISTRATIONS)
XMPP_DEVICES = Kind("xmpp-devices", Group.IN, "XMPP devices", "PushServerRegistrationsFilling", pages.XMPP_DEVICES)
KINDS = (REGISTRATIONS, XMPP_DEVICES)
# Of MAX_REGISTRATIONS and XMPP_MAX_DEVICES.
FILLING_FROM = 0.8


@dataclass(frozen=True, slots=True)
class Filling:
    """How many rows are stored in a table, and how many may be."""

    stored: int = 0
    limit: int = 1


def registrations(filling: Filling) -> Indicator:
    return _judge(REGISTRATIONS, filling, "MAX_REGISTRATIONS")


def xmpp_devices(filling: Filling) -> Indicator:
    return _judge(XMPP_DEVICES, filling, "XMPP_MAX_DEVICES")


def _judge(kind: Kind, filling: Filling, setting: str) -> Indicator:
    sentence = f"{filling.stored:,} of {filling.limit:,} are stored"
    if filling.stored < FILLING_FROM * filling.limit:
        return Indicator(kind, State.GREEN, sentence)
    first_step = f"Raise {setting} if they are real: at the limit new phones are refused."
    return Indicator(kind, State.YELLOW, sentence, first_step)
