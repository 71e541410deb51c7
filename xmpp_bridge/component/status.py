"""Status cache of the component, for `/readyz` and the console. The process that holds the lock saves it."""

from kit.processes.status import StatusCache

NOTED_EVERY_SECONDS = 5.0
# How the last connection ended, or CONNECTED.
END = StatusCache("xmpp_component", str, ttl_seconds=20)
CONNECTED = "connected"
# The fault by how the last connection ended, for operators.
WORDS = {
    "conflict": "the XMPP server has another component of this name: stop that one",
    "not-authorized": "the XMPP server does not accept XMPP_COMPONENT_SECRET",
    "host-unknown": "the XMPP server has no component XMPP_COMPONENT_JID",
    "refused": "the XMPP server cannot be reached",
    "silent": "the XMPP server does not answer",
    "broken": "the service at XMPP_COMPONENT_HOST is no XMPP server",
    "stopped": "the component was stopped",
}
OTHERWISE = "the connection to the XMPP server was lost"
MISSING = "no component is running"


def read_fault() -> str:
    """Return why the component is not connected, or an empty text if it is, as saved a few seconds ago."""
    end = END.read()
    if end is None:
        return MISSING
    return "" if end == CONNECTED else WORDS.get(end, OTHERWISE)
