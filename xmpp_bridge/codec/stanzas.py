"""Decoder of one stanza: an XML tree to a `StanzaEvent`."""

from collections.abc import Mapping
from xml.etree.ElementTree import Element

from xmpp_bridge.codec.elements import child, local_name
from xmpp_bridge.codec.errors import MalformedStanza
from xmpp_bridge.codec.limits import MAX_ID_CHARACTERS
from xmpp_bridge.codec.names import COMMANDS, DISCO_INFO, DISCO_ITEMS, PING, PUBSUB, STANZA_ERRORS
from xmpp_bridge.codec.pushes.forms import read_forms
from xmpp_bridge.codec.pushes.push2 import read_message
from xmpp_bridge.codec.pushes.xep0357 import read_publish
from xmpp_bridge.messages import (
    Command,
    Ignored,
    IqAnswer,
    Malformed,
    Origin,
    Query,
    Question,
    StanzaEvent,
    Unsupported,
)

_QUESTIONS = {
    (DISCO_INFO, "query"): Question.DISCO_INFO,
    (DISCO_ITEMS, "query"): Question.DISCO_ITEMS,
    (PING, "ping"): Question.PING,
}
_CONDITION = f"{{{STANZA_ERRORS}}}"


def decode(stanza: Element) -> StanzaEvent:
    """Decode a stanza. Every stanza becomes an event: one to be answered, or `Ignored` with its reason."""
    name, attributes = local_name(stanza), stanza.attrib
    if name == "message":
        return _decode_message(stanza, attributes)
    if name == "iq":
        return _decode_iq(stanza, attributes)
    return Ignored("presence" if name == "presence" else "unknown_stanza")


def decode_too_large(name: str, attributes: Mapping[str, str]) -> StanzaEvent:
    """Decode a stanza of which only the first tag was read: `Malformed` if it is a request, and otherwise `Ignored`."""
    is_request = name == "message" or (name == "iq" and attributes.get("type") in {"get", "set"})
    if not is_request or attributes.get("type") == "error" or not _is_addressed(name, attributes):
        return Ignored("too_large")
    return Malformed(_origin(name, attributes))


def _is_addressed(name: str, attributes: Mapping[str, str]) -> bool:
    """Return whether the stanza has the addresses and the id that an answer needs."""
    stanza_id = attributes.get("id", "")
    has_id = (bool(stanza_id) or name == "message") and len(stanza_id) <= MAX_ID_CHARACTERS
    return has_id and bool(attributes.get("from")) and bool(attributes.get("to"))


def _origin(name: str, attributes: Mapping[str, str]) -> Origin:
    return Origin(name, attributes.get("id", ""), attributes["from"], attributes["to"])


def _decode_message(stanza: Element, attributes: Mapping[str, str]) -> StanzaEvent:
    if attributes.get("type") == "error":
        return Ignored("error")
    if not _is_addressed("message", attributes):
        return Ignored("unaddressed")
    origin = _origin("message", attributes)
    try:
        return read_message(stanza, origin) or Ignored("no_push")
    except MalformedStanza:
        return Malformed(origin)


def _decode_iq(stanza: Element, attributes: Mapping[str, str]) -> StanzaEvent:
    if not _is_addressed("iq", attributes):
        return Ignored("unaddressed")
    origin, iq_type = _origin("iq", attributes), attributes.get("type")
    if iq_type in {"result", "error"}:
        is_error = iq_type == "error"
        return _decode_answer(stanza, origin) if is_error else IqAnswer(origin.id, origin.sender, is_error)
    if iq_type not in {"get", "set"}:
        return Malformed(origin)
    try:
        return _decode_set(stanza, origin) if iq_type == "set" else _decode_get(stanza, origin)
    except MalformedStanza:
        return Malformed(origin)


def _decode_answer(stanza: Element, origin: Origin) -> IqAnswer:
    error = next((each for each in stanza if local_name(each) == "error"), None)
    if error is None:
        return IqAnswer(origin.id, origin.sender, is_error=True)
    conditions = [each.tag.removeprefix(_CONDITION) for each in error if each.tag.startswith(_CONDITION)]
    condition = next((each for each in conditions if each != "text"), "")
    return IqAnswer(origin.id, origin.sender, is_error=True, condition=condition, by=error.get("by", ""))


def _decode_get(stanza: Element, origin: Origin) -> StanzaEvent:
    for (namespace, name), question in _QUESTIONS.items():
        asked = child(stanza, namespace, name)
        if asked is not None:
            return Query(origin, question, asked.get("node", ""))
    return _unsupported(stanza, origin)


def _decode_set(stanza: Element, origin: Origin) -> StanzaEvent:
    command = child(stanza, COMMANDS, "command")
    if command is not None:
        return _decode_command(command, origin)
    pubsub = child(stanza, PUBSUB, "pubsub")
    push = read_publish(stanza, pubsub, origin) if pubsub is not None else None
    return push or _unsupported(stanza, origin)


def _decode_command(command: Element, origin: Origin) -> StanzaEvent:
    node, action, session = (command.get(name, "") for name in ("node", "action", "sessionid"))
    if not node or len(session) > MAX_ID_CHARACTERS:
        raise MalformedStanza
    submitted = [values for form_type, values in read_forms(command) if form_type == "submit"]
    return Command(origin, node, action or "execute", session, submitted[0] if submitted else None)


def _unsupported(stanza: Element, origin: Origin) -> Unsupported:
    is_pubsub = any(each.tag.startswith(f"{{{PUBSUB}") for each in stanza)
    return Unsupported(origin, "feature-not-implemented" if is_pubsub else "service-unavailable")
