"""Helpers to read XML trees, and to write XML without prefixes, as XMPP servers do."""

from xml.etree.ElementTree import Element, ParseError, fromstring
from xml.sax.saxutils import escape, quoteattr

from xmpp_bridge.codec.errors import BrokenStream
from xmpp_bridge.codec.names import COMPONENT

_OWN = f"{{{COMPONENT}}}"


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
    return element.tag.removeprefix(_OWN)


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
