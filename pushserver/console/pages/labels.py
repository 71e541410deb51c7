"""Labels of the console: the sentences that its modules show, and the names that its menu gives to tables.

One module has all of them, so that they can be read in one sitting. Templates have the texts of whole pages, and single
words stay with their columns. Text in braces is filled in by the module that shows the sentence.
"""

from collections.abc import Mapping
from http import HTTPStatus

from django.apps import apps
from django.conf import settings

from kit.buckets.bucket import BucketLimits
from notifications.acceptance.storing import APART_LIMITS
from notifications.messages import Effect, Outcome, PushLimit
from notifications.models import Halt, Notification
from notifications.policy import Verdict, Wish
from pushserver.console.health.verdicts import duration
from pushserver.console.parts import parts
from waku_bridge.models import OutboundReply

State, ReplyState = Notification.State, OutboundReply.State

# Requests that the console refuses ------------------------------------------------------------------------------------
REFUSED: Mapping[int, str] = {
    HTTPStatus.BAD_REQUEST: "The address of this page has an invalid value. Start again from the menu.",
    HTTPStatus.FORBIDDEN: "Your role does not allow this. An admin of this console can give you another role.",
    HTTPStatus.NOT_FOUND: "There is no such page, or its row was deleted.",
}
OTHER_HOST = "The host name in this address is not a name of this server. An operator adds names to ALLOWED_HOSTS."
STALE_FORM = (
    "Nothing was changed: this form is older than your session. Go back, load the page again, and send it again."
)
LOCKED_OUT = "Too many wrong logins. Wait {minutes} minutes, or ask an admin to remove the failed logins."
TOO_MANY_LOGINS = "Somebody else is logging in at this moment. Go back and send the form again."

# Accounts and API tokens ----------------------------------------------------------------------------------------------
ROLES = "support may look; operator may also act; admin may also manage accounts."
PASSWORD_RULE = "Besides names of this server and its parts, a password has at least {count} characters."  # noqa: S105
CODE_AT_LOGIN = "From your authenticator app, if you have set one up."
CODE_REFUSED = "This is not the code that your authenticator app shows now."
SECOND_FACTOR_SET_UP = "Your second factor is set up: the next login asks for it."
SEARCH_CHANGES = (
    "Words of a change or its reason, the name of a staff member, or the user that it is about: "
    "chat key, key hash, installation id"
)

# Search ---------------------------------------------------------------------------------------------------------------
NOTHING_FOUND = (
    "Nothing was found. Users are found while they are registered, and for some time after a notification; envelopes "
    "are kept for some days, notifications for some weeks."
)
NOT_UNDERSTOOD = (
    "Nothing was searched: this is no chat key (0x04…, zQ3sh… or compressed hex), no hash, no id and no client "
    "string. Of a hash at least the first 8 digits are needed, of a chat key all of it."
)
KEY_CUT_OFF = "Nothing was searched: this looks like a chat key with {missing} missing. All of it is needed."
NO_SUCH_USER = "There is no such user: no registration, notification or query topic has this key hash."
NO_SUCH_NOTIFICATION = "There is no such notification, or it was deleted after its retention time."

# The page of a user ---------------------------------------------------------------------------------------------------
NO_INSTALLATIONS = "None: nobody registered with this key, or the user was forgotten."
NOTHING_HAPPENED = "None: nothing of this kind is kept about this user."
NO_GRANTS = "None: no server may push through these installations."
UNREACHABLE = "Cannot be reached: nobody registered with this key, or the user was forgotten."
SWITCHED_OFF = "Is not notified: its user switched notifications off."
UNPROVEN = "Can be reached, as far as is known: nothing was delivered to its current token yet."

# Alerts and incidents -------------------------------------------------------------------------------------------------
LEVEL_UNTIL_NOW = "Until now it alerts {level}."
LEVEL_CHOSEN = "It alerts {level}."
TEST_EFFECT = "A test is sent to {targets}."
NO_TARGETS = "Nothing was sent: ALERTS_TO is empty"
ACKNOWLEDGE_EFFECT = "Incidents that go on and are not acknowledged yet: {fitting}."
ACKNOWLEDGED_EFFECT = "Everybody sees that you take care of it. No more reminders of it are sent."
SNOOZE_EFFECT = "No alert about {names} is sent for this time, even after a recovery and a new failure."
SNOOZE_IS_SILENT = "The dashboard shows the incident as before."
NOTE_EFFECT = "Your note is shown on the page of the incident, and kept in the log of changes."

# Timelines: the meaning of each word, for somebody who reads it for the first time ------------------------------------
CLASSES: Mapping[str, str] = {
    Outcome.DELIVERED: "Apple or Google took it.",
    Outcome.DEAD: "Apple or Google says that the address no longer exists.",
    Outcome.CONFIG: "The set-up is wrong and the address is fine. An operator must act; the push is retried.",
    Outcome.PAYLOAD: "This push can never be sent. The address is fine.",
    Outcome.TRANSIENT: "It was not sent, and is retried later.",
    Outcome.AMBIGUOUS: "It may have been sent. The retry replaces the first on the device.",
}
# In the order of the dashboard.
ENDS: Mapping[Notification.State, str] = {
    State.DELIVERED: CLASSES[Outcome.DELIVERED],
    State.DEAD_TOKEN: "Its address is dead or disabled.",
    State.UNDELIVERABLE: "Apple or Google can never accept this push.",
    State.UNCONFIRMED: "It may have arrived. Sent again, it could arrive twice.",
    State.EXPIRED: "Its time to live ran out before an attempt succeeded.",
    State.WITHDRAWN: "Its recipient was gone or disabled.",
    State.COALESCED: "A later notification to the same address wakes the phone for it.",
}
FAILED_TOO_OFTEN = (
    "Nothing was ever delivered to its address, and {count} attempts failed while its gateway delivered other pushes."
)
NOT_DELIVERED: Mapping[Notification.State, str] = {
    State.UNCONFIRMED: "Perhaps delivered",
    State.WITHDRAWN: "Not sent",
    State.COALESCED: "Not sent by itself",
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
# The limit that a push was beyond. A bucket of pushes has figures.
LIMITS: dict[str, str] = {
    PushLimit.ADDRESS: "more than {figures} to one address",
    PushLimit.ADDRESS_LONG: "more than {figures} to one address",
    PushLimit.APART: "more than {figures} to one address that are mentions or requests",
    PushLimit.APART_LONG: "more than {figures} to one address that are mentions or requests",
    PushLimit.SENDER: "more than {figures} of one sender",
    PushLimit.SENDER_LONG: "more than {figures} of one sender",
    PushLimit.SERVER: "more than {figures} of all senders",
    PushLimit.SERVER_LONG: "more than {figures} of all senders",
    PushLimit.WAITING: "more than {waiting} waited for one address",
    PushLimit.QUEUE: "the queue of its app was full",
}
EFFECTS: Mapping[str, str] = {
    Effect.MERGED: "merged into another push to the same address",
    Effect.SHORTENED: "arrived as a wake-up",
    Effect.REFUSED: "refused with an error",
}


def beyond(effect: str, limit: str) -> str:
    """Return the effect of a limit on a push, and the limit with the present figures of the settings.

    A limit that only another version of the server has is shown by its name.
    """
    of_parts = {name: words for part in parts() for name, words in part.push_limits.items()}
    buckets: Mapping[str, BucketLimits] = {
        PushLimit.ADDRESS: settings.ROUTE_LIMITS,
        PushLimit.APART: APART_LIMITS,
        PushLimit.SENDER: settings.SENDER_LIMITS,
        PushLimit.SERVER: settings.GLOBAL_LIMITS,
    }
    figures = ""
    if bucket := buckets.get(limit.removesuffix("_long")):
        allowed = bucket[-1 if limit.endswith("_long") else 0]
        figures = f"{allowed.tokens:,g} pushes in {duration(allowed.seconds)}"
    named = (LIMITS | of_parts).get(limit, limit).format(figures=figures, waiting=settings.MAX_OPEN_PER_ROUTE)
    return f"{EFFECTS.get(effect, effect)}: {named}"


HALTED: Mapping[Halt.Kind, str] = {
    Halt.Kind.DRAINED: "Delivery is stopped: it waits until somebody starts it again",
    Halt.Kind.UNREACHABLE: "Its gateway {halt.gateway} cannot be reached: it waits until a probe reaches it",
    Halt.Kind.PAUSED: "Its app is paused: {halt.reason}. It waits until somebody resumes the app",
    Halt.Kind.TRIPPED: "Its app is tripped: {halt.reason}. It waits until a probe is delivered",
}
# The end of a halt that ends without an operator.
PROBED: Mapping[Halt.Kind, str] = {
    Halt.Kind.UNREACHABLE: "a probe reached the gateway",
    Halt.Kind.TRIPPED: "a probe was delivered",
}
# A halt that is over, as a cause of delay.
HALTED_BY: Mapping[str, str] = {
    Halt.Kind.DRAINED: "delivery was stopped",
    Halt.Kind.UNREACHABLE: "its gateway was unreachable",
    Halt.Kind.PAUSED: "its app was paused",
    Halt.Kind.TRIPPED: "its app was tripped",
}
# Next steps of a reply. A confirmed reply has none.
REPLIES: Mapping[OutboundReply.State, str] = {
    ReplyState.PENDING: "The reply is being published; the next try is due {when}.",
    ReplyState.PUBLISHED: "A node took the reply; the server looks for it in a store {when}.",
    ReplyState.UNCONFIRMED: "No store was found to have the reply: the sender may not have got it.",
    ReplyState.ABANDONED: "No node took the reply while the sender could wait for it: the sender got none.",
}
ALL_OVER = "Nothing: it is over."
BEING_SENT = (
    "A worker is sending it. Without an answer the worker counts as lost, and the attempt as ambiguous, {when}."
)
NEXT_ATTEMPT = "The next attempt is due {when}."
NO_ATTEMPT = "No attempt is due before it expires."
UNREGISTERED = "Its recipient unregistered: the next worker withdraws it."
ROUTE_DISABLED = "Its route is disabled ({reason}): the next worker closes it."
EXPIRES = "It expires {when}."
ANSWER_WAITS = "The sender is answered after the first attempt of each notification, or {when}."
NOTHING_LEFT = "Nothing for what was decided at once; each notification has a timeline of its own."

# The answer that support sends to a user: no name, no id and no code
ANSWERS: Mapping[Notification.State, str] = {
    State.DELIVERED: "Apple or Google took the notification for your phone {after} later.",
    State.DEAD_TOKEN: "It could not be delivered: Apple or Google no longer know your phone under its old address.",
    State.UNDELIVERABLE: "It could not be delivered: Apple or Google did not accept it.",
    State.UNCONFIRMED: "It may have arrived: we got no clear answer, and a second try could have shown it twice.",
    State.EXPIRED: "It could not be delivered within the time that a notification is useful, and we stopped trying.",
    State.WITHDRAWN: "It was not sent: your phone was no longer registered for notifications.",
    State.COALESCED: "It was not sent by itself: one notification woke your phone for several messages.",
}
WITHDRAWN_BY_US = "It was not sent: our staff stopped it."
OPEN_STATUS = "Open Status to read your messages: no message is lost when a notification is."
AFTERWARDS: Mapping[Notification.State, str] = {
    State.DELIVERED: (
        "If it did not appear, check on your phone that Status may show notifications, that no mode such as Do Not "
        "Disturb hides them, and that the phone was online."
    ),
    State.DEAD_TOKEN: "Open Status on your phone: it then registers again by itself.",
    State.WITHDRAWN: "Open Status on your phone, and switch its notifications on again if they are off.",
}

# Names of tables ------------------------------------------------------------------------------------------------------

# Tables that are named otherwise in the code, on their pages as in the menu.
NAMES: Mapping[str, str] = {
    "auth.User": "account",
    "auth.Group": "role",
    "otp_totp.TOTPDevice": "second factor",
    "admin.LogEntry": "change",
    "notifications.Channel": "app",  # as it was named, and still is in addresses, permissions and the API
}
# The apps of these tables, which the menu calls "Staff".
STAFF_APPS = ("auth", "otp_totp", "admin", "pushserver")


def name_tables() -> None:
    """Give tables and apps their names of the menu.

    The classes of the models stay unchanged, because migrations are made from them.
    """
    for table, name in NAMES.items():
        meta = apps.get_model(table)._meta  # noqa: SLF001 - the documented way
        meta.verbose_name, meta.verbose_name_plural = name, f"{name}s"
    for label in STAFF_APPS:
        apps.get_app_config(label).verbose_name = "Staff"
