"""Which page of `docs/runbooks/` says what to do about a light. The module is pure."""

from collections.abc import Mapping

# By the first word of a light's id, as nodes, stores and gorush have a light for each host. A light whose trouble is
# that of an alarm has the alarm's page.
RUNBOOKS: Mapping[str, str] = {
    "database": "PushServerDatabaseDown",
    "broker": "PushServerBrokerDown",
    "workers": "PushServerQueueWithoutWorker",
    "beat": "LightBeat",
    "node": "PushServerNodeNotRead",
    "store": "PushServerStoreBehind",
    "inbox": "PushServerInboxOld",
    "failed": "PushServerEnvelopesFail",
    "xmpp": "PushServerXmppNotConnected",
    "delivery": "PushServerDeliveryLate",
    "gorush": "PushServerGatewayAway",
    "channels": "PushServerChannelTripped",
    "dead-tokens": "PushServerDeathsDoubted",
    "results": "PushServerPushesFail",
    "unknown-errors": "PushServerUnknownErrors",
    "replies": "PushServerRepliesStuck",
    "canary": "PushServerCanaryBroken",
    "xmpp-canary": "PushServerXmppCanaryBroken",
    "reports": "PushServerReportsMissing",
}


def runbook(light: str) -> str:
    """Return the name of the page about the light of this id."""
    return RUNBOOKS.get(light) or RUNBOOKS[light.partition("-")[0]]
