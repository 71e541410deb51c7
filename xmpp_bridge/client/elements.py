"""XML as the clients handle it: element trees whose stanza has no namespace of its own, data forms, and errors.

The namespace of a stream is `jabber:client` for a user, and `jabber:component:accept` for a component. It is removed
from received stanzas and left out of sent ones, so that the cores do not depend on the transport. A child of a stanza
in any other namespace keeps it. So an `<error/>` without a namespace here arrived in the stream's own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from xml.etree.ElementTree import Element

PUSH = "urn:xmpp:push:0"
PUSH2 = "urn:xmpp:push2:0"
PUBSUB = "http://jabber.org/protocol/pubsub"
PUBLISH_OPTIONS = f"{PUBSUB}#publish-options"
COMMANDS = "http://jabber.org/protocol/commands"
FORMS = "jabber:x:data"
FORWARD = "urn:xmpp:forward:0"
CLIENT = "jabber:client"
STANZA_ERRORS = "urn:ietf:params:xml:ns:xmpp-stanzas"
DISCO_INFO = "http://jabber.org/protocol/disco#info"
DISCO_ITEMS = "http://jabber.org/protocol/disco#items"
PING = "urn:xmpp:ping"
TIGASE_ENCRYPTED = "tigase:push:encrypt:0"
TIGASE_PRIORITY = "tigase:push:priority:0"
SCE_ENCRYPTED = "urn:xmpp:sce:rfc8291:0"


def element(
    tag: str, namespace: str = "", attributes: Mapping[str, str] | None = None, *children: Element, text: str = ""
) -> Element:
    """Return an element. A stanza has no namespace; every element below it has one, except an error."""
    made = Element(f"{{{namespace}}}{tag}" if namespace else tag, dict(attributes or {}))
    made.text = text or None
    made.extend(children)
    return made


def iq(kind: str, to: str, identifier: str, *children: Element) -> Element:
    """Return an IQ. Without ``to`` it is addressed to the sender's own account."""
    address = {"to": to} if to else {}
    return element("iq", "", {"type": kind, "id": identifier, **address}, *children)


def text_at(parent: Element, path: str) -> str:
    """Return the text of the first element at a path, or an empty string."""
    return (parent.findtext(path) or "").strip()


def reply_to(stanza: Element, kind: str, *children: Element) -> Element:
    """Return an answer to a stanza: with the same id, and with its sender and recipient exchanged."""
    attributes = {"type": kind, "id": stanza.get("id", ""), "to": stanza.get("from", ""), "from": stanza.get("to", "")}
    return element(stanza.tag, "", {name: value for name, value in attributes.items() if value}, *children)


# Data forms (XEP-0004), limited to the part that commands and push options use: fields with one value each.


def submitted(fields: Mapping[str, str], form_type: str = "") -> Element:
    """Return a filled form."""
    values = {"FORM_TYPE": form_type, **fields} if form_type else fields
    return element("x", FORMS, {"type": "submit"}, *(_field(name, value) for name, value in values.items()))


def _field(name: str, value: str) -> Element:
    return element("field", FORMS, {"var": name}, *([element("value", FORMS, text=value)] if value else []))


def values_of(form: Element | None) -> dict[str, str]:
    """Return the fields of a form by name. A field without a value is empty."""
    fields = [] if form is None else form.findall(f"{{{FORMS}}}field")
    return {field.get("var", ""): text_at(field, f"{{{FORMS}}}value") for field in fields}


# Errors of stanzas, as the push service sends them: refusals, and announcements that a route is gone.


@dataclass(frozen=True, slots=True)
class Refused:
    """An error of a stanza.

    ``kind`` is its type: after `wait` the stanza may be repeated. ``text`` is for people. ``disabled_client`` is the
    client string of the route, where the service reports that the route is disabled.
    """

    kind: str
    condition: str
    text: str = ""
    disabled_client: str = ""

    def __str__(self) -> str:
        return f"{self.kind}/{self.condition}"


def error(kind: str, condition: str, *further: Element) -> Element:
    """Return the error of a stanza: its type, its condition, and any application-specific elements."""
    return element("error", "", {"type": kind}, element(condition, STANZA_ERRORS), *further)


def refusal_of(stanza: Element) -> Refused:
    """Return the error of a stanza of type `error`."""
    found = stanza.find("error")
    if found is None:
        return Refused("", "", "no error in the namespace of the stream")
    prefix = f"{{{STANZA_ERRORS}}}"
    names = [child.tag.removeprefix(prefix) for child in found if child.tag.startswith(prefix)]
    condition = next((name for name in names if name != "text"), "")
    client = text_at(found, f"{{{PUSH2}}}disabled/{{{PUSH2}}}client")
    return Refused(found.get("type", ""), condition, text_at(found, f"{prefix}text"), client)
