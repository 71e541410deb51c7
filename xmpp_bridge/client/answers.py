"""What the push service answers, and what it says unasked: errors of stanzas, and routes that are gone."""

from dataclasses import dataclass
from xml.etree.ElementTree import Element

from xmpp_bridge.client.elements import PUSH2, STANZA_ERRORS, text_at

_CONDITION = f"{{{STANZA_ERRORS}}}"


@dataclass(frozen=True, slots=True)
class Refused:
    """An error: its type (`wait` may be repeated), its condition, the text for people; and the client string where the
    service says that it has disabled the route.
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
