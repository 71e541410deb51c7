"""Meanings of the words of a timeline, one sentence each, for somebody who reads them for the first time."""

from collections.abc import Mapping

from notifications.messages import Outcome
from notifications.models import Notification
from notifications.rules.policy import Verdict, Wish

State, Reports = Notification.State, Notification.Reports

CLASSES: Mapping[str, str] = {
    Outcome.DELIVERED: "Apple or Google took it.",
    Outcome.DEAD: "Apple or Google says that the address no longer exists.",
    Outcome.CONFIG: "The set-up is wrong and the address is fine. An operator must act; the push is retried.",
    Outcome.PAYLOAD: "This push can never be sent. The address is fine.",
    Outcome.TRANSIENT: "It was not sent, and is retried later.",
    Outcome.AMBIGUOUS: "It may have been sent. The retry replaces the first on the device.",
}

ENDS: Mapping[Notification.State, str] = {
    State.DELIVERED: CLASSES[Outcome.DELIVERED],
    State.DEAD_TOKEN: "Its address is dead or disabled.",
    State.UNDELIVERABLE: "Apple or Google can never accept this push.",
    State.UNCONFIRMED: "It may have arrived. Sent again, it could arrive twice.",
    State.EXPIRED: "Its time to live ran out before an attempt succeeded.",
    State.WITHDRAWN: "Its recipient no longer gets pushes.",
    State.COALESCED: "A later notification to the same address wakes the phone for it.",
}

VERDICTS: Mapping[Verdict, str] = {
    Verdict.DELIVER: "It was stored for delivery.",
    Verdict.SUPPRESSED: "Suppressed by a preference of the recipient.",
    Verdict.DUPLICATE: "Repeated: the same message went to the same installation within a day.",
    Verdict.WRONG_TOKEN: "Wrong access token: it is not the one that the client registered last.",
    Verdict.NOT_REGISTERED: "Not registered: there was no registration, or its address was disabled.",
    Verdict.OVERLOADED: "Overload: the queue of this app was full.",
    Verdict.COALESCED: "Rate limit: another notification to the same address wakes the phone for it.",
}

WISHES: Mapping[Wish, str] = {
    Wish.NOTIFICATIONS_OFF: "Suppressed by the recipient: notifications are off.",
    Wish.AUTHOR_BLOCKED: "Suppressed by the recipient: its author is blocked.",
    Wish.CHAT_BLOCKED: "Suppressed by the recipient: its chat is blocked.",
    Wish.CHAT_MUTED: "Suppressed by the recipient: its chat is muted.",
    Wish.MENTIONS_BLOCKED: "Suppressed by the recipient: mentions are off.",
    Wish.MENTION_NOT_ALLOWED: "Suppressed by the recipient: mentions are on for other chats only.",
}
