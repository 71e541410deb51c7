"""Health indicators of the XMPP bridge: its connection, its apps and its devices. Pure."""

from pushserver.console.health.judges import canary, filling
from pushserver.console.health.verdicts import Facts, Group, Kind, State, Verdict, rows

DEVICES_PAGE = rows("XMPP devices", "xmpp_bridge.device")


def connection(facts: Facts) -> Verdict:
    """Judge the connection to the XMPP server. The fact says why there is none, and is empty if there is one."""
    reason: str = facts.cached("xmpp")
    if not reason:
        return Verdict(State.GREEN, "connected")
    first_step = "Is `manage.py run_xmpp_bridge` running? Its log and docs/xmpp.md say more."
    return Verdict(State.RED, reason, first_step, headline=f"Nothing comes in through XMPP: {reason}")


def apps(facts: Facts) -> Verdict:
    """Judge whether there is an app to register devices in."""
    if not facts["xmpp-apps"]:
        return Verdict(State.YELLOW, "the server has no app", "Add the app.")
    return Verdict(State.GREEN, f"serves {facts['xmpp-apps']}; {facts['xmpp_pushes']:,} pushes in the last hour")


IN = Group.IN
KINDS = (
    Kind(
        *("xmpp", IN, "XMPP", "PushServerXmppNotConnected", connection, DEVICES_PAGE),
        decides_readiness=True,
        concerns_all=True,
        follows=("broker",),
    ),
    Kind("xmpp-apps", IN, "XMPP apps", "IndicatorXmppApps", apps, rows("XMPP apps", "xmpp_bridge.app")),
    Kind(
        *("xmpp-devices", IN, "XMPP devices", "PushServerRegistrationsFilling"),
        filling("xmpp-devices", setting="XMPP_MAX_DEVICES", rows="devices"),
        DEVICES_PAGE,
    ),
    Kind(
        *("xmpp-canary", Group.WATCH, "XMPP canary", "PushServerXmppCanaryBroken", canary("xmpp-canary")),
        rows("XMPP canary", "pushserver.canaryrun", "network__exact=xmpp"),
        yellow_runbook="PushServerXmppCanaryMissing",
        follows=(Group.SERVER, "broker", "xmpp", Group.OUT),
    ),
)
