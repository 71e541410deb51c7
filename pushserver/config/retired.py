"""Settings that no longer exist, each with what an operator does instead."""

from collections.abc import Mapping

RETIRED: Mapping[str, str] = {
    "CANARY_APN_TOPIC": "Set CANARY_APP_TOPIC.",
    "CANARY_PATIENCE_SECONDS": "Set CANARY_TIMEOUT_SECONDS.",
    "SESSION_MOST_HOURS": "Set SESSION_MAX_HOURS.",
}
