"""The metrics of the config check and of the canary, by the rules in `waku_bridge/metrics.py`."""

from prometheus_client import Gauge

from kit.metrics import StoredGauge
from waku_bridge.console.models import CanaryRun

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
    sql=CanaryRun.link_seconds(),
)
