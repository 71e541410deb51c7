"""Pure decisions: who is woken, when to send again, and when an app is broken.

The order of checks is status-go's (71/STATUS-PUSH-NOTIFICATION-SERVER, "Handling push notification requests").
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from notifications.messages import (
    ANSWERS,
    CANCELLED,
    CONNECTION_LOST,
    CUT_OFF,
    PROVIDER_UNREACHABLE,
    NotificationType,
    Outcome,
    Push,
    PushNotification,
    ReportError,
    Result,
)

FIRST_RETRY_SECONDS = 2.0
MAX_RETRY_SECONDS = 600.0
MAX_SHORT_RETRY_SECONDS = 20.0
# Anybody can register an address at which each attempt fails, and each attempt is a row. So a push to an address that
# nothing was delivered to ends with this number of failures. Each counts only if its gateway delivered something on
# that platform since the attempt before, so that an outage ends no push.
UNPROVEN_FAILURES = 8
# The pauses before its retries: ten seconds (or the first pause of the error), and five times as long each time, up to
# an hour. Eight attempts take hours, so that an operator can correct a wrong set-up meanwhile.
FIRST_UNPROVEN_PAUSE_SECONDS = 10.0
UNPROVEN_PAUSE_FACTOR = 5.0
MAX_UNPROVEN_PAUSE_SECONDS = 3600.0
# Failures that only an operator can repair are retried less often from the start.
CONFIG_RETRY_SECONDS = 60.0
# A push that may have arrived is sent again with the same collapse id, eight times within a day: a lost push is worse
# than a duplicate, which replaces the first on the device.
FIRST_AMBIGUOUS_PAUSE_SECONDS = 10.0
AMBIGUOUS_PAUSE_FACTOR = 3.0
# The code of an attempt that ended with a process of ours.
WORKER_LOST = "worker_lost"
# The code of an attempt that ended with an exception of ours. Whether it reached the gateway is unknown.
GATEWAY_FAILED = "gateway_failed"
# An attempt that ended on its way says nothing about the push, so its pause stays short.
INTERRUPTIONS = frozenset({WORKER_LOST, CUT_OFF, CANCELLED, CONNECTION_LOST, PROVIDER_UNREACHABLE})
# When a larger share of an app's proven tokens is refused as dead within an hour, deaths are not believed. Fewer dead
# tokens than the minimum say nothing about the set-up, whatever their share.
DEAD_TOKEN_SHARE = 0.2
MIN_DEAD_TOKENS = 20
# An app delivers nothing when this number of its latest sends failed in a row, whatever the gateway answered. Sends
# of fewer senders, or to fewer addresses, say nothing about an app.
FAILED_IN_A_ROW = 10
FAILED_ADDRESSES = 5
FAILED_SENDERS = 3
MAX_DOUBLINGS = 20  # keeps the power small; the maximum pause is reached long before


class Verdict(StrEnum):
    """The decision about one notification of a request."""

    DELIVER = "deliver"
    SUPPRESSED = "suppressed"
    DUPLICATE = "duplicate"
    WRONG_TOKEN = "wrong_token"  # noqa: S105 - a label
    NOT_REGISTERED = "not_registered"
    COALESCED = "coalesced"  # a later push to the same address wakes the phone for it
    OVERLOADED = "overloaded"  # final: a push whose sender received an error must not arrive later

    @property
    def error(self) -> ReportError | None:
        """Return the error that the sender receives at once, or None where the answer waits for the first attempt."""
        return _ERRORS[self]


_ERRORS: dict[Verdict, ReportError | None] = {
    Verdict.DELIVER: None,
    Verdict.SUPPRESSED: ReportError.NONE,
    Verdict.DUPLICATE: ReportError.NONE,
    Verdict.WRONG_TOKEN: ReportError.WRONG_TOKEN,
    Verdict.NOT_REGISTERED: ReportError.NOT_REGISTERED,
    Verdict.COALESCED: ReportError.NONE,
    Verdict.OVERLOADED: ReportError.INTERNAL_ERROR,
}


class Wish(StrEnum):
    """A wish of a recipient that suppresses a notification. Staff may see it. The sender never does."""

    NOTIFICATIONS_OFF = "notifications_off"
    AUTHOR_BLOCKED = "author_blocked"
    CHAT_BLOCKED = "chat_blocked"
    CHAT_MUTED = "chat_muted"
    MENTIONS_BLOCKED = "mentions_blocked"
    MENTION_NOT_ALLOWED = "mention_not_allowed"  # mentions are wanted from chosen chats only, and this is none of them


@dataclass(frozen=True, slots=True)
class Recipient:
    """The rules of the addressed installation. The lists hold SHAKE-256 hashes of chats and authors."""

    enabled: bool
    block_mentions: bool
    blocked: Collection[bytes]
    muted: Collection[bytes]
    allowed_mentions: Collection[bytes]


def evaluate(
    notification: PushNotification,
    recipient: Recipient | None,
    *,
    is_token_right: bool,
    is_duplicate: bool,
    is_overloaded: bool = False,
) -> Verdict:
    """Decide about one notification.

    ``recipient`` is None when the installation is unknown or unregistered, or its device token is dead. A filtered
    notification is reported as success on purpose: a sender must not find out that it is blocked. For the same reason
    it is refused where a wanted one would be.
    """
    if recipient is None:
        return Verdict.NOT_REGISTERED
    if not is_token_right:
        return Verdict.WRONG_TOKEN
    if is_overloaded and not is_duplicate:
        return Verdict.OVERLOADED
    if wish_against(notification, recipient):
        return Verdict.SUPPRESSED
    return Verdict.DUPLICATE if is_duplicate else Verdict.DELIVER


def wish_against(notification: PushNotification, recipient: Recipient) -> Wish | None:
    """Return the first wish of the recipient that a notification violates, or None when it is wanted."""
    if not recipient.enabled:
        return Wish.NOTIFICATIONS_OFF
    if notification.author in recipient.blocked:
        return Wish.AUTHOR_BLOCKED
    match notification.type:
        case NotificationType.MESSAGE:
            return _wish_against_message(notification.chat_id, recipient)
        case NotificationType.MENTION:
            return _wish_against_mention(notification.chat_id, recipient)
        case _:
            # For join requests, and for types unknown to this server, a block of the author is the only rule.
            return None


def _wish_against_message(chat_id: bytes, recipient: Recipient) -> Wish | None:
    if chat_id in recipient.blocked:
        return Wish.CHAT_BLOCKED
    return Wish.CHAT_MUTED if chat_id in recipient.muted else None


def _wish_against_mention(chat_id: bytes, recipient: Recipient) -> Wish | None:
    if recipient.block_mentions:
        return Wish.MENTIONS_BLOCKED
    return None if chat_id in recipient.allowed_mentions else Wish.MENTION_NOT_ALLOWED


def retry_seconds(result: Result, count: int, *, jitter: float, left_seconds: float | None = None) -> float:
    """Return the pause before the next attempt, never a shorter one than the gateway asked for. ``jitter`` is in 0..1.

    ``count`` is the number of the attempt, or that of the ambiguous ones if this is one. ``left_seconds`` is the rest
    of the life of a push that failed at an address without a delivery: no long pause takes more than a quarter of it.
    """
    earlier = min(max(count - 1, 0), MAX_DOUBLINGS)
    first = result.retry_base_seconds or (
        CONFIG_RETRY_SECONDS if result.outcome is Outcome.CONFIG else FIRST_RETRY_SECONDS
    )
    if result.outcome is Outcome.AMBIGUOUS:
        pause = FIRST_AMBIGUOUS_PAUSE_SECONDS * AMBIGUOUS_PAUSE_FACTOR**earlier * (1 + jitter / 5)
    elif left_seconds is not None:
        first = max(first, FIRST_UNPROVEN_PAUSE_SECONDS)
        longest = max(min(MAX_UNPROVEN_PAUSE_SECONDS, left_seconds / 4), first)
        pause = min(first * UNPROVEN_PAUSE_FACTOR**earlier * (1 + jitter / 5), longest)
    else:
        longest = MAX_SHORT_RETRY_SECONDS if result.code in INTERRUPTIONS else MAX_RETRY_SECONDS
        pause = min(first * 2.0**earlier, max(longest, result.retry_base_seconds)) * jitter
    return max(pause, result.retry_after_seconds)


def report_error(*, is_token_dead: bool) -> ReportError:
    """Return the report to the sender of an accepted notification. Everything but a dead token counts as success."""
    return ReportError.NOT_REGISTERED if is_token_dead else ReportError.NONE


def may_help_to_drop_payload(push: Push, result: Result) -> bool:
    """Return whether a push that can never be sent may still be sent without its ciphertext, most of its size."""
    can_be_shortened = bool(push.message) or (bool(push.wake) and not push.is_payload_dropped)
    return can_be_shortened and not result.is_untried


def is_contact(result: Result) -> bool:
    """Return whether a result shows that the gateway could be reached."""
    return not (result.is_untried or result.is_unreached or result.code == GATEWAY_FAILED)


def is_failure_of_push(result: Result) -> bool:
    """Return whether a push was sent, was not taken, and ended neither on its way nor with its own fault."""
    is_sent = not (result.is_untried or result.is_unreached) and result.code not in INTERRUPTIONS
    return is_sent and result.outcome in {Outcome.CONFIG, Outcome.TRANSIENT}


def is_answer(result: Result) -> bool:
    """Return whether a result shows that an app's pushes get through to Apple or Google, whatever they say of one push.

    A dry run shows nothing about Apple and Google.
    """
    return result.outcome in ANSWERS and not result.is_dry_run and not result.is_untried


def delivers_nothing(addresses: Collection[bytes], senders: Collection[bytes]) -> bool:
    """Return whether an app delivers nothing, given addresses and senders of the sends that failed in a row."""
    is_long = len(addresses) >= FAILED_IN_A_ROW
    return is_long and len(set(addresses)) >= FAILED_ADDRESSES and len(set(senders)) >= FAILED_SENDERS


def is_dying(dead_count: int, send_count: int) -> bool:
    """Return whether the share of dead tokens shows that the set-up is at fault, and not the tokens."""
    return dead_count >= MIN_DEAD_TOKENS and dead_count > DEAD_TOKEN_SHARE * send_count
