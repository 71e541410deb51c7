"""Writers of outgoing stanzas: answers, announcements, and our own ping."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from xmpp_bridge.codec.elements import NS, write
from xmpp_bridge.messages import Origin, StanzaError

FEATURES = (NS.DISCO_INFO, NS.DISCO_ITEMS, NS.COMMANDS, NS.PING, NS.PUSH, NS.PUSH2)


@dataclass(frozen=True, slots=True)
class FormField:
    """One field of a form that we send."""

    name: str
    label: str
    type: str = "text-single"
    is_required: bool = False
    options: tuple[str, ...] = ()


def write_result_iq(origin: Origin, *inside: str) -> bytes:
    """Return the result of an IQ."""
    return write("iq", *inside, type="result", id=origin.id, from_=origin.service, to=origin.sender).encode()


def write_error(origin: Origin, error: StanzaError, *, by: str) -> bytes:
    """Return the error that answers a stanza, sent from the address that the stanza was sent to."""
    inside = [write(error.condition, xmlns=NS.STANZA_ERRORS)]
    if error.text:
        inside.append(write("text", xmlns=NS.STANZA_ERRORS, text=error.text))
    if error.disabled_client:
        inside.append(write("disabled", write("client", text=error.disabled_client), xmlns=NS.PUSH2))
    content = write("error", *inside, type=error.type, by=by)
    return write(origin.stanza, content, type="error", id=origin.id, from_=origin.service, to=origin.sender).encode()


def write_info(origin: Origin, node: str, name: str) -> bytes:
    """Return the identity and features of the service, or of the command ``node``."""
    features = (NS.COMMANDS, NS.DATA_FORM) if node else FEATURES
    category, kind = ("automation", "command-node") if node else ("pubsub", "push")
    inside = [write("identity", category=category, type=kind, name=name), *(write("feature", var=f) for f in features)]
    return write_result_iq(origin, write("query", *inside, xmlns=NS.DISCO_INFO, node=node))


def write_items(origin: Origin, node: str, commands: Mapping[str, str]) -> bytes:
    """Return the list of commands. ``commands`` maps the node of each to its name, and may be empty."""
    items = [write("item", jid=origin.service, node=each, name=name) for each, name in commands.items()]
    return write_result_iq(origin, write("query", *items, xmlns=NS.DISCO_ITEMS, node=node))


def write_command(origin: Origin, node: str, session: str, status: str, *inside: str) -> bytes:
    """Return the answer to a command: its form, its result, or the confirmation that it was cancelled."""
    command = write("command", *inside, xmlns=NS.COMMANDS, node=node, sessionid=session, status=status)
    return write_result_iq(origin, command)


def write_form(title: str, instructions: str, fields: Iterable[FormField]) -> str:
    """Return the form of a command, to be filled in, and the actions that may follow."""
    inside = [write("title", text=title), write("instructions", text=instructions)]
    for field in fields:
        required = [write("required")] if field.is_required else []
        options = [write("option", write("value", text=option), label=option) for option in field.options]
        inside.append(write("field", *required, *options, var=field.name, type=field.type, label=field.label))
    actions = write("actions", write("complete"), execute="complete")
    return actions + write("x", *inside, xmlns=NS.DATA_FORM, type="form")


def write_values(values: Mapping[str, str], form_type: str) -> str:
    """Return a form with these values, of type `result` or `submit`."""
    fields = [write("field", write("value", text=value), var=name) for name, value in values.items()]
    return write("x", *fields, xmlns=NS.DATA_FORM, type=form_type)


def write_ping(ping_id: str, *, sender: str, to: str) -> bytes:
    """Return our own ping (XEP-0199)."""
    return write("iq", write("ping", xmlns=NS.PING), type="get", id=ping_id, from_=sender, to=to).encode()
