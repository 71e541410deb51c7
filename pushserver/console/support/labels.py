"""Meanings of the words of a timeline, one sentence each, for somebody who reads them for the first time."""

from collections.abc import Mapping

from notifications.messages import Outcome
from notifications.models import Notification
from notifications.rules.policy import Verdict, Wish

State, Reports = Notification.State, Notification.Reports

CLASSES: Mapping[str, str] = {
    Outcome.DELIVERED: "Apple or Google took it.",
    Outcome.DEAD: "Apple or Google says that the address no longer exists.",
    Outcome.CONFIG: "The set-up is wrong and the address is fine: an operator must act; it is tried again later.",
    Outcome.PAYLOAD: "Such a push can never be sent; the address is fine.",
    Outcome.TRANSIENT: "It was not sent, and is tried again later.",
    Outcome.AMBIGUOUS: "It may have been sent: it is sent again in a way that replaces the first on the device.",
}

ENDS: Mapping[Notification.State, str] = {
    State.DELIVERED: CLASSES[Outcome.DELIVERED],
    State.DEAD_TOKEN: "Its address is dead or disabled.",
    State.UNDELIVERABLE: "Apple or Google can never take such a push.",
    State.UNCONFIRMED: "It may have arrived. Sent again, it could arrive twice.",
    State.EXPIRED: "Its time to live ran out before an attempt succeeded.",
    State.WITHDRAWN: "Nobody is to get it any more.",
    State.COALESCED: "A later one to the same address wakes the phone for it.",
}

VERDICTS: Mapping[Verdict, str] = {
    Verdict.DELIVER: "It was stored to be delivered.",
    Verdict.SUPPRESSED: "By a wish of the recipient.",
    Verdict.DUPLICATE: "By the check of repeats: the same message to the same installation within a day.",
    Verdict.WRONG_TOKEN: "The check of the access token: it is not the one that the client registered last.",
    Verdict.NOT_REGISTERED: "The check of the registration: nobody was registered, or the address was disabled.",
    Verdict.OVERLOADED: "The check of the load: too much was waiting for this app already.",
    Verdict.COALESCED: "By the limits: another one to the same address wakes the phone for it.",
}

WISHES: Mapping[Wish, str] = {
    Wish.NOTIFICATIONS_OFF: "By a wish of the recipient: notifications are off.",
    Wish.AUTHOR_BLOCKED: "By a wish of the recipient: its author is blocked.",
    Wish.CHAT_BLOCKED: "By a wish of the recipient: its chat is blocked.",
    Wish.CHAT_MUTED: "By a wish of the recipient: its chat is muted.",
    Wish.MENTIONS_BLOCKED: "By a wish of the recipient: mentions are off.",
    Wish.MENTION_NOT_ALLOWED: "By a wish of the recipient: mentions are on for other chats only.",
}
