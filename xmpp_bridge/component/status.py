"""What `/readyz` and the console know of the component, as saved by the process that is, or wants to be, connected."""

from dataclasses import dataclass

from kit.health.status_cache import StatusCache

NOTED_EVERY_SECONDS = 5.0
# How the last connection ended, or that there is one.
END = StatusCache("xmpp_component", str, ttl_seconds=20)
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


def read() -> State:
    """Return the state as it was noted a few seconds ago."""
    end = END.read()
    if end is None:
        return State(MISSING)
    return State() if end == CONNECTED else State(WORDS.get(end, OTHERWISE))
