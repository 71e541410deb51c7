"""Metrics of the XMPP bridge, by the rules in `waku_bridge/metrics.py`.

No label has values that senders choose, so domains are not labels.
"""

from prometheus_client import Counter, Gauge

from kit.telemetry import BatchHistogram

CONNECTED = Gauge(
    "pushserver_xmpp_up",
    "1 while this process is connected to the XMPP server as its component. "
    "When it moves: 0 on all machines means that pushes bounce; the log and `/readyz` have the XMPP server's error.",
    multiprocess_mode="livesum",
)
LEADING = Gauge(
    "pushserver_xmpp_lock_held",
    "Processes that hold the lock of the component and connect: 1. "
    "When it moves: 0 for more than 10 s means that none is running, or that the database is away.",
    multiprocess_mode="livesum",
)
CONNECTIONS = Counter(
    "pushserver_xmpp_connections_total",
    "Connections to the XMPP server that ended, by cause: the condition of its stream error (conflict, not-authorized, "
    "host-unknown), refused, lost, silent, closed, broken, stopped. "
    "When it moves: conflict is a second component of the same name; not-authorized a wrong secret.",
    ["cause"],
)
STANZAS = Counter(
    "pushserver_xmpp_stanzas_total",
    "Stanzas that are no pushes, by kind: command, query, malformed, unsupported, answer, ignored. "
    "When it moves: malformed ones are a server or an app with a fault; many ignored ones are noise.",
    ["kind"],
)
PUSHES = Counter(
    "pushserver_xmpp_pushes_total",
    "Pushes by dialect (draft, mod_push2, xep0357) and verdict: accepted, merged, repeated, unknown, ignored, gone, "
    "gone_before, forbidden, refused, busy_domain, busy_calls, full, not_stored. "
    "When it moves: what each verdict means is in docs/xmpp.md; not_stored means that the database was away.",
    ["dialect", "verdict"],
)
FORWARDS_DROPPED = Counter(
    "pushserver_xmpp_forward_content_dropped_total",
    "Forwarded messages whose content was dropped before anything was stored. "
    "When it moves: users' servers send what we should not see; their apps ask for the wrong send profile.",
)
COMMANDS = Counter(
    "pushserver_xmpp_commands_total",
    "Commands of apps by outcome: registered, refreshed, unregistered, form, canceled, bad_request, "
    "not_found, forbidden, busy, not_stored. "
    "When it moves: an app with a fault shows as bad_request; busy are devices that register more often than allowed.",
    ["outcome"],
)
ANNOUNCED = Counter(
    "pushserver_xmpp_ends_announced_total",
    "Ends of routes that were announced to users' servers before their next push. "
    "When it moves: as `pushserver_routes_disabled_total`; many at once may be a wrong set-up.",
)
ANSWER_SECONDS = BatchHistogram(
    "pushserver_xmpp_answer_seconds",
    "From reading a stanza to handing its answer to the connection. "
    "When it moves: ejabberd waits 32 s; beyond 1 s the database is slow.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 30),
)
