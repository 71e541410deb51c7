"""What a push shows and brings to the app, by the app's style. Pure.

The keys are as short as they are because a full payload of mod_push2 leaves some 160 of Apple's 4096 bytes.
"""

from dataclasses import dataclass
from enum import StrEnum

from notifications.messages import Content, Grade
from xmpp_bridge.messages import Payload

VERSION = "1"
TRUNCATED = "truncated"
# A text that is passed on is shown, and brought to the app, no longer than this.
MAX_BODY_CHARACTERS = 200


class Style(StrEnum):
    """How the data of a push are named."""

    GENERIC = "generic"
    TIGASE = "tigase"
    RFC8291 = "rfc8291"
    CONVERSATIONS = "conversations"


@dataclass(frozen=True, slots=True)
class Look:
    """What an app's pushes have in common, and the tag by which the app recognises the account."""

    style: str
    text: str
    sound: str
    tag: str


def wake_content(look: Look, grade: Grade, *, is_truncated: bool = False) -> Content:
    """Return what goes without a payload. ``is_truncated``: there was one, and it was too large."""
    if look.style == Style.CONVERSATIONS:
        data = {"account": look.tag}
    else:
        data = {"v": VERSION, "k": "voip" if grade is Grade.VOIP else "wake", "a": look.tag}
    return Content(look.text, look.sound, data | ({"x": TRUNCATED} if is_truncated else {}))


def payload_content(look: Look, grade: Grade, payload: Payload) -> Content:
    """Return what goes with a ciphertext, whose text is not touched."""
    iv = {"iv": payload.iv} if payload.iv else {}
    match look.style:
        case Style.TIGASE:
            data = {"encrypted": payload.text} | iv
        case Style.RFC8291:
            data = {"rfc8291": payload.text} | iv
        case Style.CONVERSATIONS:
            data = {"account": look.tag}
        case _:
            data = {"v": VERSION, "k": "voip" if grade is Grade.VOIP else "msg", "a": look.tag}
            data |= {"e": payload.text, "f": payload.format} | ({"i": payload.iv} if payload.iv else {})
    return Content(look.text, look.sound, data)


def text_content(look: Look, body: str) -> Content:
    """Return what goes with a text that the app has passed on: shown by Apple, and as `b` for the app."""
    shown = body[:MAX_BODY_CHARACTERS]
    return Content(shown, look.sound, {"v": VERSION, "k": "msg", "a": look.tag, "b": shown})
