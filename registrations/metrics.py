"""The metrics of this app. `waku_bridge/metrics.py` has the rules for metrics."""

from prometheus_client import Counter

from kit.telemetry import StoredGauge

REGISTRATIONS = Counter(
    "pushserver_registrations_total",
    "Registrations received, by decision: register, unregister, retransmission, or the refusal. "
    "When it moves: many stale_version are clients that miss our answers. Many malformed are "
    "a client version with another format. implausible_token and bad_app_topic are made-up registrations. "
    "too_many_installations, too_many_new and full are quotas, see docs/limits.md.",
    ["outcome"],
)
REGISTRATION_EVENTS = Counter(
    "pushserver_registration_events_total",
    "Changes by registrations: registered, refreshed, token_changed, settings_changed, unregistered. "
    "When it moves: a wave of token_changed or registered follows a release of an app. If there was none, ask its "
    "developers.",
    ["kind"],
)
QUERIED_KEYS = Counter(
    "pushserver_queried_keys_total",
    "Keys in queries of senders, found or not_found. "
    "When it moves: more not_found come when users moved to another server, or when somebody guesses keys.",
    ["outcome"],
)
# An estimate, because counting a million rows every few seconds would cost too much.
ROUTES = StoredGauge(
    "pushserver_routes",
    "Addresses at Apple and Google, disabled ones included, as PostgreSQL's statistics estimate them. "
    "When it moves: it follows the registrations. A sudden drop is a mass deletion: find out who made it.",
    sql="SELECT reltuples FROM pg_class WHERE oid = 'registrations_route'::regclass AND reltuples >= 0",
)
