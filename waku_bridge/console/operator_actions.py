"""What operators do to messages that could not be processed: have them read again, or drop them.

Each action is safe to repeat, and by two people at once: it changes only what is still as it was, and returns how much
that is.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction

from kit.batches.batch import OLD, wake
from kit.db.partitions import UNDER_WAY
from registrations.models import TopicKey
from waku_bridge.codec import topics
from waku_bridge.identity import own_content_topics
from waku_bridge.inbound import faults
from waku_bridge.inbox import inbox
from waku_bridge.models import DeadLetter, InboundEnvelope
from waku_bridge.reading.pages import select

log = structlog.get_logger(__name__)
State = InboundEnvelope.State
BY_OPERATOR = "operator"
NS_PER_SECOND = 10**9


def process_again(envelope_hashes: Collection[bytes]) -> int:
    """Have failed envelopes processed again, and return how many. Their payload was kept for this, and workers take
    them at once.
    """
    failed = InboundEnvelope.objects.filter(hash__in=envelope_hashes, state=State.FAILED)
    count = failed.update(state=State.RECEIVED, reason="", processed_at=None, ended_on=UNDER_WAY)
    wake(OLD)
    log.info("envelopes_processed_again", count=count)
    return count


def process_all_again(fault_ids: Collection[int]) -> int:
    """Have the envelopes processed again that failed by these faults, and return how many. Of a great many the oldest
    go first.
    """
    return process_again(faults.waiting(list(fault_ids)))


def drop_envelopes(envelope_hashes: Collection[bytes]) -> int:
    """Drop failed envelopes, and return how many. Their senders get no answer.

    The hashes stay, so that a copy is not taken for a new message.
    """
    failed = InboundEnvelope.objects.filter(hash__in=envelope_hashes, state=State.FAILED)
    return failed.update(state=State.DROPPED, reason=BY_OPERATOR, payload=None)


@dataclass(frozen=True, slots=True)
class ReadAgain:
    """How many dead letters were taken into the inbox and removed, and how many are unreadable and left as they are."""

    taken: int
    unreadable: int


@transaction.atomic
def read_again(digests: Collection[bytes], *, now: datetime) -> ReadAgain:
    """Put dead letters into the inbox that this version of the server can read. Workers take them at once."""
    letters = list(DeadLetter.objects.select_for_update(skip_locked=True).filter(digest__in=digests).order_by("digest"))
    taken = [bytes(letter.digest) for letter in letters if _take_in(letter, now=now)]
    DeadLetter.objects.filter(digest__in=taken).delete()
    wake(OLD)
    log.info("dead_letters_read_again", taken=len(taken), unreadable=len(letters) - len(taken))
    return ReadAgain(len(taken), len(letters) - len(taken))


def _take_in(letter: DeadLetter, *, now: datetime) -> bool:
    if len(letter.raw) < letter.size_bytes:  # only the beginning of the letter was kept
        return False
    try:
        raw = json.loads(letter.raw)
    except (ValueError, RecursionError):
        return False
    now_ns = int(now.timestamp()) * NS_PER_SECOND
    # An older message may be a repetition whose hash is forgotten.
    oldest_ns = now_ns - int(timedelta(days=settings.ENVELOPE_RETENTION_DAYS).total_seconds()) * NS_PER_SECOND
    selection = select([raw], letter.pubsub_topic, _topics_of(raw), oldest_ns=oldest_ns, now_ns=now_ns)
    inbox.store(selection.envelopes, source=letter.source, now=now, path=InboundEnvelope.Path(letter.path))
    return bool(selection.envelopes)


def _topics_of(raw: Any) -> set[str]:
    """Return the topic of this message, if it is ours. The bridge knows all topics, but it has to load all of them for
    that.
    """
    topic = raw.get("contentTopic") if isinstance(raw, dict) else None
    if not isinstance(topic, str):
        return set()
    topic_number = topics.number(topic)
    is_queried = topic_number is not None and TopicKey.objects.filter(topic=topic_number).exists()
    return {topic} if is_queried or topic in own_content_topics() else set()


def drop_letters(digests: Collection[bytes]) -> int:
    """Remove dead letters, and return how many."""
    deleted, _ = DeadLetter.objects.filter(digest__in=digests).delete()
    return deleted
