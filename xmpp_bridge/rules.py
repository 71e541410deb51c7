"""Pure decisions about pushes: who may push where, and what the user's server is told."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from notifications.messages import Grade
from xmpp_bridge.messages import Dialect, PushNotification, StanzaError


class Verdict(StrEnum):
    """What becomes of one push."""

    ACCEPTED = "accepted"
    MERGED = "merged"  # a wake-up that is on its way serves this one, too
    REPEATED = "repeated"  # the same stanza, or the same again within two seconds
    UNKNOWN = "unknown"  # no such client, forged, or of another domain: nobody learns which
    IGNORED = "ignored"  # one unknown client too many
    GONE = "gone"  # the route is known to be no more
    GONE_BEFORE = "gone_before"  # as above, and said a moment ago
    FORBIDDEN = "forbidden"  # pushed by a client and not by a server
    REFUSED = "refused"  # a readable message, for an app that wants none
    BUSY_DOMAIN = "busy_domain"
    BUSY_CALLS = "busy_calls"
    FULL = "full"  # too much waits to be delivered
    NOT_STORED = "not_stored"  # the database is away


NOT_FOUND = StanzaError("cancel", "item-not-found")
BUSY = StanzaError("wait", "resource-constraint")
TROUBLE = StanzaError("wait", "internal-server-error")
FORBIDDEN = StanzaError("auth", "forbidden")
BAD_REQUEST = StanzaError("modify", "bad-request")

# What each verdict is answered with. None is success: a result for an IQ, and nothing for a message. Only what is true
# for good may be a `cancel`, because ejabberd removes a route at the first one.
ANSWERS: dict[Verdict, StanzaError | None] = {
    Verdict.ACCEPTED: None,
    Verdict.MERGED: None,
    Verdict.REPEATED: None,
    Verdict.UNKNOWN: NOT_FOUND,
    Verdict.IGNORED: NOT_FOUND,
    Verdict.GONE: NOT_FOUND,
    Verdict.GONE_BEFORE: NOT_FOUND,
    Verdict.FORBIDDEN: FORBIDDEN,
    Verdict.REFUSED: StanzaError("cancel", "policy-violation"),
    Verdict.BUSY_DOMAIN: BUSY,
    Verdict.BUSY_CALLS: BUSY,
    Verdict.FULL: BUSY,
    Verdict.NOT_STORED: TROUBLE,
}
# A message with one of these gets no answer at all, though an IQ does.
SILENT = frozenset({Verdict.IGNORED, Verdict.GONE_BEFORE})

# How long a push is of use.
CALL_TTL = timedelta(seconds=30)
WAKE_TTL = timedelta(hours=1)
PAYLOAD_TTL = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Domains:
    """Whose users and servers are served: all but those denied, or only those allowed."""

    denied: Collection[str] = ()
    allowed: Collection[str] = ()

    def serve(self, domain: str) -> bool:
        """Return whether this domain is served."""
        return domain not in self.denied and (not self.allowed or domain in self.allowed)


def answer_to(push: PushNotification, verdict: Verdict) -> StanzaError | None:
    """Return the error that a push is answered with, or None for none."""
    if verdict is Verdict.GONE and push.dialect is not Dialect.XEP0357:
        return StanzaError("cancel", "gone", disabled_client=push.client)
    if verdict in SILENT and push.origin.stanza == "message":
        return None
    return ANSWERS[verdict]


def time_to_live(grade: Grade, *, has_payload: bool) -> timedelta:
    """Return how long a push is tried."""
    if grade is Grade.VOIP:
        return CALL_TTL
    return PAYLOAD_TTL if has_payload else WAKE_TTL
