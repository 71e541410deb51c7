"""The metrics of the XMPP bridge that are read from the database, by the rules in `waku_bridge/metrics.py`."""

from kit.telemetry import StoredGauge
from pushserver.console.models import CanaryRun
from registrations.models import Route

ENDS_UNANNOUNCED = StoredGauge(
    "pushserver_xmpp_ends_waiting",
    "Disabled routes whose end is not yet announced to the user's server, counted up to 10 000. "
    "When it moves: growing, the component is not connected.",
    sql=f"""
        SELECT count(*) FROM (
            SELECT FROM registrations_route WHERE state = '{Route.State.DISABLED}' AND is_end_awaited LIMIT 10000
        ) AS unannounced
    """,
)
CANARY_LINK_SECONDS = StoredGauge(
    "pushserver_xmpp_canary_link_seconds",
    "Seconds that each link of the chain took in the last round trip of the canary of XMPP; links that it did not "
    "reach are missing. "
    "When it moves: the links are explained in docs/canary.md; users' servers wait for the answer to a push.",
    ("link",),
    sql=CanaryRun.link_seconds(CanaryRun.Network.XMPP),
)
