"""Writers of outgoing stanzas: answers, announcements, and our own ping."""

from collections.abc import Iterable, Mapping

from xmpp_bridge.codec.elements import write
from xmpp_bridge.codec.names import COMMANDS, DISCO_INFO, DISCO_ITEMS, PING, PUSH, PUSH2, STANZA_ERRORS
from xmpp_bridge.codec.pushes.forms import FormField, write_form, write_values
from xmpp_bridge.messages import Origin, StanzaError

FEATURES = (DISCO_INFO, DISCO_ITEMS, COMMANDS, PING, PUSH, PUSH2)


def write_result_iq(origin: Origin, *inside: str) -> bytes:
    """Return the result of an IQ."""
    return write("iq", *inside, type="result", id=origin.id, from_=origin.service, to=origin.sender).encode()


def write_error(origin: Origin, error: StanzaError, *, by: str) -> bytes:
    """Return the error that answers a stanza, sent from the address that the stanza was sent to."""
    inside = [write(error.condition, xmlns=STANZA_ERRORS)]
    if error.text:
        inside.append(write("text", xmlns=STANZA_ERRORS, text=error.text))
    if error.disabled_client:
        inside.append(write("disabled", write("client", text=error.disabled_client), xmlns=PUSH2))
    content = write("error", *inside, type=error.type, by=by)
    return write(origin.stanza, content, type="error", id=origin.id, from_=origin.service, to=origin.sender).encode()


def write_disco_info(origin: Origin, *, name: str) -> bytes:
    """Return our identity and features."""
    identity = write("identity", category="pubsub", type="push", name=name)
    features = [write("feature", var=feature) for feature in FEATURES]
    return write_result_iq(origin, write("query", identity, *features, xmlns=DISCO_INFO))


def write_command_info(origin: Origin, node: str, name: str) -> bytes:
    """Return the identity and features of one command."""
    identity = write("identity", category="automation", type="command-node", name=name)
    features = [write("feature", var=feature) for feature in (COMMANDS, "jabber:x:data")]
    return write_result_iq(origin, write("query", identity, *features, xmlns=DISCO_INFO, node=node))


def write_items(origin: Origin, node: str, commands: Mapping[str, str]) -> bytes:
    """Return the list of commands. ``commands`` maps the node of each to its name, and may be empty."""
    items = [write("item", jid=origin.service, node=each, name=name) for each, name in commands.items()]
    return write_result_iq(origin, write("query", *items, xmlns=DISCO_ITEMS, node=node))


def write_command_form(
    origin: Origin, node: str, session: str, *, title: str, instructions: str, fields: Iterable[FormField]
) -> bytes:
    """Return the form of a command, to be filled in."""
    actions = write("actions", write("complete"), execute="complete")
    form = write_form(title, instructions, fields)
    return _write_command(origin, node, session, "executing", actions, form)


def write_command_result(origin: Origin, node: str, session: str, values: Mapping[str, str]) -> bytes:
    """Return the result of a completed command, with a form if there are values."""
    return _write_command(origin, node, session, "completed", *([write_values(values, "result")] if values else []))


def write_command_canceled(origin: Origin, node: str, session: str) -> bytes:
    """Return the confirmation that a command was cancelled."""
    return _write_command(origin, node, session, "canceled")


def _write_command(origin: Origin, node: str, session: str, status: str, *inside: str) -> bytes:
    command = write("command", *inside, xmlns=COMMANDS, node=node, sessionid=session, status=status)
    return write_result_iq(origin, command)


def write_ping(ping_id: str, *, sender: str, to: str) -> bytes:
    """Return our own ping (XEP-0199)."""
    return write("iq", write("ping", xmlns=PING), type="get", id=ping_id, from_=sender, to=to).encode()
