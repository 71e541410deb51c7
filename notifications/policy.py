"""Who is woken, and when to try again: pure decisions.

The order of checks is status-go's (71/STATUS-PUSH-NOTIFICATION-SERVER, "Handling push notification requests").
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from notifications.messages import NotificationType, PushNotification

FIRST_RETRY_SECONDS = 2.0
MAX_RETRY_SECONDS = 600.0
# What only an operator can mend is tried less often from the start.
CONFIG_RETRY_SECONDS = 60.0
MAX_DOUBLINGS = 20  # keeps the power small; the cap above is reached long before


class Verdict(StrEnum):
    """What becomes of one notification of a request."""

    DELIVER = "deliver"
    SUPPRESSED = "suppressed"
    DUPLICATE = "duplicate"
    WRONG_TOKEN = "wrong_token"  # noqa: S105 - a label
    NOT_REGISTERED = "not_registered"


@dataclass(frozen=True, slots=True)
class Recipient:
    """What the installation addressed has asked for. The lists hold SHAKE-256 hashes of chats and authors."""

    enabled: bool
    block_mentions: bool
    blocked: Collection[bytes]
    muted: Collection[bytes]
    allowed_mentions: Collection[bytes]


def evaluate(
    notification: PushNotification, recipient: Recipient | None, *, is_token_right: bool, is_duplicate: bool
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
    return Verdict.DUPLICATE if is_duplicate else Verdict.DELIVER


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
    after_seconds: float = 0,
) -> datetime:
    """When to try again: exponential with full jitter (``jitter`` in 0..1), never before ``after_seconds``."""
    doublings = min(max(attempt_count - 1, 0), MAX_DOUBLINGS)
    span = min(base_seconds * 2**doublings, MAX_RETRY_SECONDS)
    return now + timedelta(seconds=max(span * jitter, after_seconds))
