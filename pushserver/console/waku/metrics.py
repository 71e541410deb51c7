"""The metrics of queues, of the config check and of the canary, by the rules in `waku_bridge/metrics.py`."""

from prometheus_client import Gauge

from kit.batches.looking import since
from kit.telemetry import StoredGauge
from pushserver.console.models import CanaryRun
from waku_bridge.models import InboundEnvelope, OutboundReply

INBOX_DEPTH = StoredGauge(
    "pushserver_inbox_waiting",
    "Envelopes in the inbox that were not opened yet, counted up to 100 000. "
    "When it moves: see the age of the oldest; when that is young the queue is long and moving. At "
    "200 000 the bridge takes in no more messages.",
    sql=f"""
        SELECT count(*) FROM (
            SELECT FROM waku_bridge_openenvelope WHERE state = '{InboundEnvelope.State.RECEIVED}'
                AND due_at >= {since("Inbox")} ORDER BY due_at LIMIT 100000
        ) AS waiting
    """,
)
INBOX_POSTPONED = StoredGauge(
    "pushserver_inbox_unproven_waiting",
    "Envelopes about no proven address that wait because more came than could be decided, up to 100 000. "
    "When it moves: somebody floods the server, see the processed envelopes by outcome; or workers are too few. At "
    "200 000 the oldest are dropped as `overload`.",
    sql=f"""
        SELECT count(*) FROM (
            SELECT FROM waku_bridge_openenvelope WHERE state = '{InboundEnvelope.State.POSTPONED}'
                ORDER BY due_at LIMIT 100000
        ) AS waiting
    """,
)
INBOX_OLDEST_AGE_SECONDS = StoredGauge(
    "pushserver_inbox_oldest_age_seconds",
    "For how long the oldest envelope has been waiting in the inbox. "
    "When it moves: beyond a few seconds workers of the queue `batches` are not running or too few.",
    sql=f"""
        SELECT greatest(0, coalesce(extract(epoch FROM clock_timestamp() - min(due_at)), 0)) FROM (
            SELECT due_at FROM waku_bridge_openenvelope
            WHERE state = '{InboundEnvelope.State.RECEIVED}' AND due_at >= {since("Inbox")}
            ORDER BY due_at LIMIT 100000
        ) AS waiting
    """,
)
# Those of their first attempt are left out, unless its lease is over: nobody knows yet whether a node took them.
_WAITING_REPLIES = f"""
    FROM waku_bridge_openreply WHERE due_at >= {since("OverdueReplies")}
        AND state = '{OutboundReply.State.PENDING}' AND (attempt_count > 0 OR due_at <= clock_timestamp())
"""
REPLIES_PENDING = StoredGauge(
    "pushserver_replies_pending",
    "Replies in the outbox that no node took so far, counted up to 100 000. "
    "When it moves: no node takes replies, see the publish errors; or no worker of the queue `batches` is running.",
    sql=f"""
        SELECT count(*) FROM (
            SELECT {_WAITING_REPLIES} ORDER BY due_at LIMIT 100000
        ) AS pending
    """,
)
REPLIES_OLDEST_AGE_SECONDS = StoredGauge(
    "pushserver_replies_oldest_age_seconds",
    "For how long the oldest reply has been waiting in the outbox. "
    "When it moves: clients wait 3 s; see pushserver_replies_pending.",
    sql=f"""
        SELECT greatest(0, coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)) FROM (
            SELECT created_at {_WAITING_REPLIES} ORDER BY due_at LIMIT 100000
        ) AS pending
    """,
)
NODE_HEALTHY = Gauge(
    "pushserver_bridge_node_healthy",
    "1 while the node's /health reports that it is ready, else 0. "
    "When it moves: see the node's log; the other nodes carry the traffic meanwhile.",
    ["node"],
    multiprocess_mode="livemostrecent",
)
NODE_MESH_PEERS = Gauge(
    "pushserver_bridge_node_mesh_peers",
    "Peers in the node's relay mesh of our shard, where the node reports them (--rest-admin). "
    "When it moves: below 4 messages come late or never; check its network, its --dns-discovery-url and the cluster.",
    ["node"],
    multiprocess_mode="livemostrecent",
)
NODE_VERSION_TIMESTAMP_SECONDS = Gauge(
    "pushserver_bridge_node_version_timestamp_seconds",
    "When the node last reported this version, in Unix time; the newest is the one that it runs. "
    "When it moves: nothing; a new version may explain changes of other metrics.",
    ["node", "version"],
    multiprocess_mode="livemax",
)
NODE_CLOCK_SKEW_SECONDS = Gauge(
    "pushserver_bridge_node_clock_skew_seconds",
    "The node's clock minus ours. "
    "When it moves: beyond 5 s either way repair NTP on the one that is wrong; at 20 s stores refuse messages.",
    ["node"],
    multiprocess_mode="livemostrecent",
)
CANARY_LINK_SECONDS = StoredGauge(
    "pushserver_canary_link_seconds",
    "Time of each link of the chain in the canary's last round trip; links that it did not reach are missing. "
    "When it moves: the links are explained in docs/canary.md; the canary waits at most ten seconds for one.",
    ("link",),
    sql=CanaryRun.link_seconds(CanaryRun.Network.WAKU),
)
