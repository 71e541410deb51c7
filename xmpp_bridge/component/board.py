"""What `/readyz` and the console know of the component: written to the cache by the process that is connected, or would
like to be.
"""

from dataclasses import dataclass

import redis
import structlog
from django.core.cache import cache

log = structlog.get_logger(__name__)

KEY = "xmpp-component"
NOTED_EVERY_SECONDS = 5.0
KEPT_SECONDS = 20
CONNECTED = "connected"
# What is wrong, by how the last connection ended, and what an operator does about it.
WORDS = {
    "conflict": "the XMPP server has another component of this name: stop that one",
    "not-authorized": "the XMPP server does not accept XMPP_COMPONENT_SECRET",
    "host-unknown": "the XMPP server knows no component XMPP_COMPONENT_JID",
    "refused": "the XMPP server cannot be reached",
    "silent": "the XMPP server does not answer",
    "broken": "what answers at XMPP_COMPONENT_HOST is no XMPP server",
    "stopped": "the component was stopped",
}
OTHERWISE = "the connection to the XMPP server was lost"
MISSING = "no component is running"


@dataclass(frozen=True, slots=True)
class State:
    """Whether a component is connected; ``reason`` says why not."""

    reason: str = ""

    @property
    def is_connected(self) -> bool:
        return not self.reason


def note(end: str) -> None:
    """Note that we are connected (``CONNECTED``), or how the last connection ended."""
    try:
        cache.set(KEY, end, timeout=KEPT_SECONDS)
    except redis.RedisError as error:
        log.warning("component_state_not_noted", error=type(error).__name__)


def read() -> State:
    """Return the state as it was noted a few seconds ago."""
    try:
        end = cache.get(KEY)
    except redis.RedisError:
        end = None
    if end is None:
        return State(MISSING)
    return State() if end == CONNECTED else State(WORDS.get(end, OTHERWISE))
