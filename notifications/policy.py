"""Who is woken, when to try again, and when a channel is broken: pure decisions.

The order of checks is status-go's (71/STATUS-PUSH-NOTIFICATION-SERVER, "Handling push notification requests").
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from notifications.messages import (
    CANCELLED,
    CONNECTION_LOST,
    CUT_OFF,
    UNREACHABLE,
    NotificationType,
    Outcome,
    Push,
    PushNotification,
    Result,
)
from registrations.messages import TokenType

FIRST_RETRY_SECONDS = 2.0
MAX_RETRY_SECONDS = 600.0
MAX_SHORT_RETRY_SECONDS = 20.0
# What only an operator can mend is tried less often from the start.
CONFIG_RETRY_SECONDS = 60.0
# A push that may have arrived is sent once more, with the same collapse id.
MAX_AMBIGUOUS_ATTEMPTS = 2
# What ended with a process of ours or with a connection, which is shared by many, says nothing about the push and does
# not use up that one more attempt. The limit is for a push that kills whoever sends it.
MAX_INTERRUPTED_ATTEMPTS = 5
WORKER_LOST = "worker_lost"
INTERRUPTIONS = frozenset({WORKER_LOST, CUT_OFF, CANCELLED, CONNECTION_LOST})
# Fewer dead tokens say nothing about the set-up, whatever share they are.
MIN_DEAD_TOKENS = 20
CONFIG_SHARE = 0.5
MAX_COLLAPSE_ID_BYTES = 64  # Apple's limit
MAX_DOUBLINGS = 20  # keeps the power small; the cap above is reached long before


class Verdict(StrEnum):
    """What becomes of one notification of a request."""

    DELIVER = "deliver"
    SUPPRESSED = "suppressed"
    DUPLICATE = "duplicate"
    WRONG_TOKEN = "wrong_token"  # noqa: S105 - a label
    NOT_REGISTERED = "not_registered"
    OVERLOADED = "overloaded"  # refused for good: what a sender is told to have failed must not arrive later


@dataclass(frozen=True, slots=True)
class Recipient:
    """What the installation addressed has asked for. The lists hold SHAKE-256 hashes of chats and authors."""

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
    """``recipient`` is None when the installation is unknown, unregistered, or its device token is dead.

    A filtered notification is reported as success on purpose: a sender must not find out that it is blocked.
    """
    if recipient is None:
        return Verdict.NOT_REGISTERED
    if not is_token_right:
        return Verdict.WRONG_TOKEN
    if not recipient.enabled or _is_filtered(notification, recipient):
        return Verdict.SUPPRESSED
    if is_duplicate:
        return Verdict.DUPLICATE
    return Verdict.OVERLOADED if is_overloaded else Verdict.DELIVER


def _is_filtered(notification: PushNotification, recipient: Recipient) -> bool:
    if notification.author in recipient.blocked:
        return True
    match notification.type:
        case NotificationType.MESSAGE:
            return notification.chat_id in recipient.blocked or notification.chat_id in recipient.muted
        case NotificationType.MENTION:
            return recipient.block_mentions or notification.chat_id not in recipient.allowed_mentions
        case _:
            # Join requests, and types that we do not know yet: the author's block is the only rule there is.
            return False


def retry_at(
    now: datetime,
    attempt_count: int,
    *,
    jitter: float,
    base_seconds: float = FIRST_RETRY_SECONDS,
    max_seconds: float = MAX_RETRY_SECONDS,
    after_seconds: float = 0,
) -> datetime:
    """When to try again: exponential with full jitter (``jitter`` in 0..1), never before ``after_seconds``."""
    doublings = min(max(attempt_count - 1, 0), MAX_DOUBLINGS)
    span = min(base_seconds * 2**doublings, max_seconds)
    return now + timedelta(seconds=max(span * jitter, after_seconds))


def retry_base_seconds(result: Result) -> float:
    """Where the backoff of this result starts: what its error asks for, else by what kind of failure it is."""
    usual = CONFIG_RETRY_SECONDS if result.outcome is Outcome.CONFIG else FIRST_RETRY_SECONDS
    return result.retry_base_seconds or usual


def retry_max_seconds(result: Result) -> float:
    """How long the backoff of this result gets. While the gateway itself is away everything waits for it, and a try
    costs next to nothing: so the queue is empty soon after it is back. An interrupted try says nothing about the next.
    Never shorter than what the error asks for.
    """
    is_short = result.code == UNREACHABLE or result.code in INTERRUPTIONS
    return max(MAX_SHORT_RETRY_SECONDS if is_short else MAX_RETRY_SECONDS, result.retry_base_seconds)


def is_left_alone(ambiguous_count: int, interrupted_count: int) -> bool:
    """Whether a push that may have arrived is not sent again. Attempts so far; those interrupted are ambiguous, too."""
    answered_count = ambiguous_count - interrupted_count
    return answered_count >= MAX_AMBIGUOUS_ATTEMPTS or interrupted_count >= MAX_INTERRUPTED_ATTEMPTS


def find_fault(push: Push) -> str:
    """Why a push must not even be tried, in a word; empty when it may. gorush drops such input without saying so."""
    if push.token_type not in {TokenType.APN, TokenType.FIREBASE}:
        return "unknown_platform"
    if not push.device_token:
        return "no_device_token"
    if push.token_type == TokenType.APN and not _IN_A_URL.fullmatch(push.device_token):
        return "unsendable_token"
    return "" if len(push.collapse_id.encode()) <= MAX_COLLAPSE_ID_BYTES else "collapse_id_too_long"


# What each fault makes of the push. A token that can never be sent is as good as dead.
FAULTS = {
    "unknown_platform": Outcome.PAYLOAD,
    "no_device_token": Outcome.DEAD,
    "unsendable_token": Outcome.DEAD,
    "collapse_id_too_long": Outcome.PAYLOAD,
}
# gorush writes Apple's tokens into a URL as they are: "x#1" would reach the device of "x", "a%zz" nobody.
_IN_A_URL = re.compile(r"[A-Za-z0-9._~:@!$&'()*+,;=-]+")


def may_help_to_drop_payload(push: Push, code: str) -> bool:
    """Whether a push that can never be sent might be sent without its ciphertext, which fills most of it."""
    return bool(push.message) and code not in FAULTS


def is_misconfigured(newest: Sequence[str], *, minimum: int) -> bool:
    """``newest`` are the outcomes of a channel's latest sends, the newest first. Refused for the set-up were at least
    ``minimum``, and these in a row or half of all.
    """
    refused = newest.count(Outcome.CONFIG)
    in_a_row = len(newest) >= minimum and all(outcome == Outcome.CONFIG for outcome in newest[:minimum])
    return in_a_row or (refused >= minimum and refused >= CONFIG_SHARE * len(newest))


def is_dying(dead_count: int, send_count: int, *, share: float) -> bool:
    """More tokens than usual die at once: it is not the tokens."""
    return dead_count >= MIN_DEAD_TOKENS and dead_count > share * send_count
