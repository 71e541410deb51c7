"""Errors of stanzas, as the push service sends them: refusals, and announcements that a route is gone."""

from dataclasses import dataclass
from xml.etree.ElementTree import Element

from xmpp_bridge.client.elements import PUSH2, STANZA_ERRORS, text_at

_CONDITION = f"{{{STANZA_ERRORS}}}"


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

    @property
    def is_transient(self) -> bool:
        return self.kind == "wait"

    def __str__(self) -> str:
        return f"{self.kind}/{self.condition}"


def refusal_of(stanza: Element) -> Refused:
    """Return the error of a stanza of type `error`."""
    found = stanza.find("error")
    if found is None:
        return Refused("", "", "no error in the namespace of the stream")
    names = [child.tag.removeprefix(_CONDITION) for child in found if child.tag.startswith(_CONDITION)]
    condition = next((name for name in names if name != "text"), "")
    client = text_at(found, f"{{{PUSH2}}}disabled/{{{PUSH2}}}client")
    return Refused(found.get("type", ""), condition, text_at(found, f"{_CONDITION}text"), client)
