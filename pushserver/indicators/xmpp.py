"""Judge the XMPP bridge: its connection and its apps. The module is pure."""

from dataclasses import dataclass

from kit.health.indicators import Group, Indicator, Kind, State
from pushserver.indicators import pages
from pushserver.indicators.peers import REDIS_AWAY

XMPP = Kind("xmpp", Group.IN, "XMPP", "PushServerXmppNotConnected", pages.XMPP_DEVICES, decides_readiness=True)
XMPP_APPS = Kind("xmpp-apps", Group.IN, "XMPP apps", "IndicatorXmppApps", pages.XMPP_APPS)
CANARY = Kind("xmpp-canary", Group.WATCH, "XMPP canary", "PushServerXmppCanaryBroken", pages.XMPP_CANARY)
KINDS = (XMPP, XMPP_APPS, CANARY)


@dataclass(frozen=True, slots=True)
class XmppFacts:
    """How many apps devices may register in, and how many pushes came through XMPP in the last hour."""

    apps: int = 0
    pushes: int = 0


def connection(reason: str, *, is_redis_away: bool) -> Indicator:
    """Judge whether we are connected to the XMPP server as its component; ``reason`` says why not."""
    if is_redis_away:
        return Indicator(XMPP, State.GREY, REDIS_AWAY)
    if reason:
        first_step = "Is `manage.py run_xmpp_bridge` running? Its log and docs/xmpp.md say more."
        return Indicator(XMPP, State.RED, reason, first_step)
    return Indicator(XMPP, State.GREEN, "connected")


def apps(facts: XmppFacts) -> Indicator:
    """Judge whether there is an app to register devices in."""
    if not facts.apps:
        return Indicator(XMPP_APPS, State.YELLOW, "it serves no app", "Add the app.")
    sentence = f"serves {facts.apps}; {facts.pushes:,} pushes in the last hour"
    return Indicator(XMPP_APPS, State.GREEN, sentence)
