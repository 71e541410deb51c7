"""Labels of other parts of the server by which jobs classify rows. A label that is not here becomes a finding.

Plain Python. A test compares the labels with the models.
"""

from collections.abc import Mapping

from spark_reports.jobs import tables

WAITING_ENVELOPES = frozenset({"received", "postponed", "pending_key"})
DECIDED_AT_ONCE = frozenset({"refused", "suppressed", "duplicate"})
ACCEPTED = frozenset(
    {"pending", "in_flight", "retrying", "ambiguous", "delivered", "dead_token", "undeliverable", "unconfirmed"}
    | {"expired", "withdrawn", "coalesced"}
)
STAYING = frozenset({"registered", "refreshed", "settings_changed", "revived"})
# By table and column.
KNOWN: Mapping[str, Mapping[str, frozenset[str]]] = {
    tables.ENVELOPES.name: {"state": WAITING_ENVELOPES | {"processed", "dropped", "failed"}},
    tables.NOTIFICATIONS.name: {"state": DECIDED_AT_ONCE | ACCEPTED},
    tables.ATTEMPTS.name: {
        "outcome": frozenset({"delivered", "dead", "config", "payload", "transient", "ambiguous", "open"})
    },
    tables.REPLIES.name: {"state": frozenset({"pending", "published", "confirmed", "unconfirmed", "abandoned"})},
    tables.REGISTRATION_EVENTS.name: {
        "kind": STAYING | {"token_changed", "unregistered", "token_died", "expired"},
    },
    tables.TOKEN_SPELLS.name: {"end": frozenset({"ended", "left", "alive"})},
}
