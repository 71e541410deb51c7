"""XML trees: namespaces and names of the protocols, reading, and writing without prefixes, as XMPP servers do."""

from xml.etree.ElementTree import Element, ParseError, fromstring
from xml.sax.saxutils import escape, quoteattr

FORM_TYPE = "FORM_TYPE"


class NS:
    """The namespaces of the protocols."""

    COMPONENT = "jabber:component:accept"
    STREAMS = "http://etherx.jabber.org/streams"
    STREAM_ERRORS = "urn:ietf:params:xml:ns:xmpp-streams"
    STANZA_ERRORS = "urn:ietf:params:xml:ns:xmpp-stanzas"

    PUSH2 = "urn:xmpp:push2:0"
    SCE_RFC8291 = "urn:xmpp:sce:rfc8291:0"
    FORWARD = "urn:xmpp:forward:0"

    PUSH = "urn:xmpp:push:0"
    PUSH_SUMMARY = "urn:xmpp:push:summary"
    PUBSUB = "http://jabber.org/protocol/pubsub"
    PUBLISH_OPTIONS = "http://jabber.org/protocol/pubsub#publish-options"
    TIGASE_ENCRYPT = "tigase:push:encrypt:0"
    TIGASE_PRIORITY = "tigase:push:priority:0"

    DISCO_INFO = "http://jabber.org/protocol/disco#info"
    DISCO_ITEMS = "http://jabber.org/protocol/disco#items"
    COMMANDS = "http://jabber.org/protocol/commands"
    DATA_FORM = "jabber:x:data"
    PING = "urn:xmpp:ping"


class MalformedStanza(Exception):  # noqa: N818 - says what is wrong
    """The stanza is a request that we serve, in a wrong form. Its answer is bad-request. It quotes nothing."""


class BrokenStream(Exception):  # noqa: N818 - says what is wrong
    """The bytes are no XML stream, or hold a DTD, which XMPP forbids. The connection is of no more use."""


def parse(data: bytes) -> Element:
    """Return the tree of an XML document in UTF-8.

    Raises BrokenStream if the bytes are not XML or hold a DTD. Without a DTD there are no entities but XML's own five.
    """
    # A DTD begins with exactly these bytes, unless a declaration names another encoding. So declarations are refused.
    if b"<!DOCTYPE" in data or data.startswith(b"<?"):
        raise BrokenStream
    try:
        return fromstring(data)  # noqa: S314 - see above
    except (ParseError, ValueError):
        raise BrokenStream from None


def local_name(element: Element) -> str:
    """Return the name of an element without the stream's namespace. Any other namespace stays in the name."""
    return element.tag.removeprefix(f"{{{NS.COMPONENT}}}")


def children(element: Element, namespace: str, name: str) -> list[Element]:
    """Return the children of this name."""
    return element.findall(f"{{{namespace}}}{name}")


def child(element: Element, namespace: str, name: str) -> Element | None:
    """Return the first child of this name."""
    return element.find(f"{{{namespace}}}{name}")


def text_of(element: Element | None) -> str:
    """Return the text of an element, stripped, or an empty text without an element."""
    return (element.text or "").strip() if element is not None else ""


def write(name: str, /, *inside: str, xmlns: str = "", text: str = "", **attributes: str) -> str:
    """Return an element as XML.

    ``inside`` is XML already; ``text`` and the attributes are escaped. Empty attributes are left out. A name that
    Python reserves is passed with an underscore at its end, such as ``from_``.
    """
    all_attributes = {"xmlns": xmlns, **attributes}
    head = "".join(f" {key.rstrip('_')}={quoteattr(value)}" for key, value in all_attributes.items() if value)
    content = escape(text) + "".join(inside)
    return f"<{name}{head}>{content}</{name}>" if content else f"<{name}{head}/>"
