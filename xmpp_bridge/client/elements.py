"""XML as the clients handle it: element trees whose stanza has no namespace of its own.

The namespace of a stream is `jabber:client` for a user, and `jabber:component:accept` for a component. It is removed
from received stanzas and left out of sent ones, so that the cores do not depend on the transport. A child of a stanza
in any other namespace keeps it. So an `<error/>` without a namespace here arrived in the stream's own.
"""

from collections.abc import Mapping
from xml.etree.ElementTree import Element

PUSH = "urn:xmpp:push:0"
PUSH2 = "urn:xmpp:push2:0"
PUBSUB = "http://jabber.org/protocol/pubsub"
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


def without_stream_namespace(stanza: Element, namespace: str) -> Element:
    """Remove the stream's namespace from the stanza and from its children that are in it, and return the stanza."""
    prefix = f"{{{namespace}}}"
    for part in (stanza, *stanza):
        part.tag = part.tag.removeprefix(prefix)
    return stanza


def text_at(parent: Element, path: str) -> str:
    """Return the text of the first element at a path, or an empty string."""
    return (parent.findtext(path) or "").strip()


def reply_to(stanza: Element, kind: str, *children: Element) -> Element:
    """Return an answer to a stanza: with the same id, and with its sender and recipient exchanged."""
    attributes = {"type": kind, "id": stanza.get("id", ""), "to": stanza.get("from", ""), "from": stanza.get("to", "")}
    return element(stanza.tag, "", {name: value for name, value in attributes.items() if value}, *children)


def error(kind: str, condition: str, *further: Element) -> Element:
    """Return the error of a stanza: its type, its condition, and any application-specific elements."""
    return element("error", "", {"type": kind}, element(condition, STANZA_ERRORS), *further)
