"""Health indicators of the XMPP bridge: its connection, its apps and its devices. Pure."""

from dataclasses import dataclass

from pushserver.console.health.canaries import CanaryFacts
from pushserver.console.health.filling import Filling
from pushserver.console.health.indicators import REDIS_DOWN, Group, Indicator, Kind, State, rows

DEVICES_PAGE = rows("XMPP devices", "xmpp_bridge.device")
XMPP = Kind(
    *("xmpp", Group.IN, "XMPP", "PushServerXmppNotConnected", DEVICES_PAGE), decides_readiness=True, concerns_all=True
)
APPS = Kind("xmpp-apps", Group.IN, "XMPP apps", "IndicatorXmppApps", rows("XMPP apps", "xmpp_bridge.app"))
DEVICES = Kind("xmpp-devices", Group.IN, "XMPP devices", "PushServerRegistrationsFilling", DEVICES_PAGE)
CANARY = Kind(
    "xmpp-canary",
    Group.WATCH,
    "XMPP canary",
    "PushServerXmppCanaryBroken",
    rows("XMPP canary", "xmpp_bridge.canaryrun"),
    follows=(Group.SERVER, XMPP, Group.OUT),
)
KINDS = (XMPP, APPS, DEVICES, CANARY)


@dataclass(frozen=True, slots=True)
class Reached:
    """The facts from the status cache.

    ``component`` says why the component is not connected to the XMPP server, and is empty if it is connected.
    """

    component: str
    canary: CanaryFacts


@dataclass(frozen=True, slots=True)
class XmppFacts:
    """The facts from the database.

    ``apps`` counts the apps that devices may register in, ``pushes`` the pushes through XMPP in the last hour.
    ``devices`` is the filling of the table of devices.
    """

    apps: int
    pushes: int
    devices: Filling


def connection(reason: str, *, is_redis_down: bool) -> Indicator:
    """Judge the connection to the XMPP server. ``reason`` says why there is none, and is empty if there is one."""
    if is_redis_down:
        return Indicator(XMPP, State.GREY, REDIS_DOWN)
    if reason:
        first_step = "Is `manage.py run_xmpp_bridge` running? Its log and docs/xmpp.md say more."
        return Indicator(XMPP, State.RED, reason, first_step, headline=f"Nothing comes in through XMPP: {reason}")
    return Indicator(XMPP, State.GREEN, "connected")


def apps(facts: XmppFacts) -> Indicator:
    """Judge whether there is an app to register devices in."""
    if not facts.apps:
        return Indicator(APPS, State.YELLOW, "the server has no app", "Add the app.")
    sentence = f"serves {facts.apps}; {facts.pushes:,} pushes in the last hour"
    return Indicator(APPS, State.GREEN, sentence)
