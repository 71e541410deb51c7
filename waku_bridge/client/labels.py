"""Labels: texts for people about the events and outcomes of a client. Pure."""

from waku_bridge.client.events import (
    Accepted,
    Advertised,
    Event,
    GivenUp,
    Ignored,
    Learned,
    Notified,
    Outcome,
    Reason,
    Refused,
)
from waku_bridge.messages import RegistrationError

KEY_DIGITS = 12
REFUSALS = {
    RegistrationError.MALFORMED_MESSAGE: "the server could not use it: is the app topic of an iPhone missing?",
    RegistrationError.VERSION_MISMATCH: "the server has a newer version of this installation",
    RegistrationError.UNSUPPORTED_TOKEN_TYPE: "the server does not support this kind of device token",
    RegistrationError.INTERNAL_ERROR: "the server has an internal error; try again",
}
OUTCOMES = {
    Outcome.NOTIFIED: "notified: the server reports success",
    Outcome.NO_ANSWER: "no answer: it may have been notified, or not",
    Outcome.WRONG_TOKEN: "wrong access token: it was changed, and no query returns the new one",
    Outcome.INTERNAL_ERROR: "refused: the server has an internal error",
    Outcome.NOT_REGISTERED: "not registered: the installation is gone, or its device token is dead",
    Outcome.REFUSED: "refused, for an unknown reason",
    Outcome.NOT_FOUND: "not found: no query returns its server",
}
# Messages on shared topics are often ignored for these reasons, so they get no line.
UNREMARKABLE = frozenset({Reason.NOT_FOR_US, Reason.DUPLICATE, Reason.FOREIGN_TOPIC})


def refusal(error: int) -> str:
    """Return the text for a refusal. ``error`` is the wire's number."""
    return next((text for known, text in REFUSALS.items() if known == error), f"error {error}")


def words(event: Event) -> str:
    """Return a line about an event, or an empty text for an event that needs none."""
    text = ""
    match event:
        case Accepted(server, version, is_registered):
            outcome = "registered" if is_registered else "unregistered"
            text = f"version {version} accepted by {short(server)}: {outcome}"
        case Refused(server, version, error, _):
            text = f"version {version} refused by {short(server)}: {refusal(error)}"
        case GivenUp(server, version):
            text = f"{short(server)} never answered version {version}"
        case Advertised(version, servers):
            text = f"contact code published: version {version}, servers: {', '.join(map(short, servers))}"
        case Learned(found, is_advertised):
            source = "the contact code of" if is_advertised else "an answer about"
            text = f"{source} {short(found.client)}: installation {found.installation_id}, its grant is good"
        case Ignored(reason, _, author, detail) if reason not in UNREMARKABLE:
            signer = f"signed by {short(author)}" if author else ""
            text = " ".join(filter(None, ["not accepted:", reason, detail, signer]))
    return text


def nobody(result: Notified) -> str:
    """Return the reason why there was no installation to notify."""
    if result.answer_count:
        return "No phone was notified: the answers had nothing for this client. Is it a contact?"
    return "No phone was notified: no server answered the query."


def short(key: bytes) -> str:
    """Return the first digits of a key."""
    return f"{key.hex()[:KEY_DIGITS]}…"
