"""Reading XML trees, and writing XML without prefixes, as XMPP servers do."""

from xml.etree.ElementTree import Element, ParseError, fromstring
from xml.sax.saxutils import escape, quoteattr

from xmpp_bridge.codec.errors import BrokenStream
from xmpp_bridge.codec.names import COMPONENT

_OWN = f"{{{COMPONENT}}}"


def parse(data: bytes) -> Element:
    """Return the tree of an XML document in UTF-8.

    Raises BrokenStream for what is none, and for DTDs, without which there are no entities but XML's own five.
    """
    # XML writes it so and not otherwise. An encoding could hide it, and stands in a declaration.
    if b"<!DOCTYPE" in data or data.startswith(b"<?"):
        raise BrokenStream
    try:
        return fromstring(data)  # noqa: S314 - see above
    except (ParseError, ValueError):
        raise BrokenStream from None


def local_name(element: Element) -> str:
    """Return the name of a stanza, which belongs to the stream's namespace. Any other name keeps its own."""
    return element.tag.removeprefix(_OWN)


def children(element: Element, namespace: str, name: str) -> list[Element]:
    """Return the children of this name."""
    return element.findall(f"{{{namespace}}}{name}")


def child(element: Element, namespace: str, name: str) -> Element | None:
    """Return the first child of this name."""
    return element.find(f"{{{namespace}}}{name}")


def text_of(element: Element | None) -> str:
    """Return the text of an element without the space around it."""
    return (element.text or "").strip() if element is not None else ""


def write(name: str, /, *inside: str, xmlns: str = "", text: str = "", **attributes: str) -> str:
    """Return an element. ``inside`` is XML already; ``text`` and the attributes are not. Empty attributes are left
    out, and an underscore ends names that Python does not allow.
    """
    all_attributes = {"xmlns": xmlns, **attributes}
    head = "".join(f" {key.rstrip('_')}={quoteattr(value)}" for key, value in all_attributes.items() if value)
    content = escape(text) + "".join(inside)
    return f"<{name}{head}>{content}</{name}>" if content else f"<{name}{head}/>"
