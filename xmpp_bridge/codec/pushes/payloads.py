"""Content of pushes: ciphertexts, of which only the form is checked, and texts in clear."""

import binascii
import re
from base64 import b64decode
from xml.etree.ElementTree import Element

from xmpp_bridge.codec.elements import text_of
from xmpp_bridge.codec.errors import MalformedStanza
from xmpp_bridge.codec.limits import IV_BYTES

_SPACE = re.compile(r"[ \t\r\n]+")


def read_ciphertext(element: Element) -> str:
    """Return the base64 of a ciphertext unchanged, except for the space around it.

    Raises MalformedStanza when it is no base64, or its IV has a length other than IV_BYTES. Its authentication cannot
    be checked: only the device has the key, and Prosody 0.12 writes zeros in place of the tag.
    """
    text = text_of(element)
    if not text or _decode(text) is None:
        raise MalformedStanza
    iv = element.get("iv")
    if iv is not None and len(_decode(iv) or b"") != IV_BYTES:
        raise MalformedStanza
    return text


def _decode(text: str) -> bytes | None:
    try:
        return b64decode(_SPACE.sub("", text), validate=True)
    except (binascii.Error, ValueError):
        return None


def forwarded_body(forwarded: Element) -> str:
    """Return the text of a forwarded message, in any namespace, because servers differ there."""
    for message in forwarded:
        if message.tag.rpartition("}")[2] == "message":
            bodies = [each for each in message if each.tag.rpartition("}")[2] == "body"]
            return text_of(bodies[0]) if bodies else ""
    return ""
