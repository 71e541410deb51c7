"""Content of pushes: the text and sound that the device shows, and the data for the app, by the app's style. Pure.

The keys of the data are short because a full payload of mod_push2 leaves some 160 of Apple's 4096 bytes.
"""

from dataclasses import dataclass

from notifications.messages import Content, Grade
from xmpp_bridge.messages import Payload, Style

VERSION = "1"
TRUNCATED = "truncated"
# A text that is passed on is cut to this length.
MAX_BODY_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Look:
    """The style, text and sound of an app's pushes, and the tag by which the app recognises the account."""

    style: str
    text: str
    sound: str
    tag: str


def wake_content(look: Look, grade: Grade, *, is_truncated: bool = False) -> Content:
    """Return the content of a wake-up. ``is_truncated`` says that it replaces a payload that was too large."""
    if look.style == Style.CONVERSATIONS:
        data = {"account": look.tag}
    else:
        data = {"v": VERSION, "k": "voip" if grade is Grade.VOIP else "wake", "a": look.tag}
    return Content(look.text, look.sound, data | ({"x": TRUNCATED} if is_truncated else {}))


def payload_content(look: Look, grade: Grade, payload: Payload) -> Content:
    """Return the content of a push with a ciphertext, which stays unchanged."""
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
    """Return the content of a push with a user's text: Apple shows the text, and the app gets it as `b`."""
    shown = body[:MAX_BODY_CHARACTERS]
    return Content(shown, look.sound, {"v": VERSION, "k": "msg", "a": look.tag, "b": shown})
