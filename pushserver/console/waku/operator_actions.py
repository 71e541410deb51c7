"""Operator actions on messages that could not be processed: read or process them again, or drop them.

Each action is safe to repeat, also by two people at once: it changes only rows that are still in the expected state,
and returns their number.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction

from kit.batches.batch import wake
from kit.db.base import fetch
from registrations.models import TopicKey
from waku_bridge.codec import wire
from waku_bridge.inbox import inbox
from waku_bridge.models import ENVELOPE, DeadLetter, EndedEnvelope
from waku_bridge.query_topics import own_content_topics
from waku_bridge.reading.pages import Page, Reader

log = structlog.get_logger(__name__)
State = EndedEnvelope.State
BY_OPERATOR = "operator"
_REOPEN = f"""
    WITH failed AS (
        DELETE FROM waku_bridge_endedenvelope WHERE hash = ANY (%b::bytea[]) AND state = '{State.FAILED}' RETURNING *
    )
    INSERT INTO waku_bridge_openenvelope ({ENVELOPE}, payload, state)
    SELECT {ENVELOPE}, payload, '{State.RECEIVED}' FROM failed RETURNING hash
"""


def process_again(envelope_hashes: Collection[bytes]) -> int:
    """Have failed envelopes processed again, and return how many. Workers take them at once."""
    count = len(fetch(_REOPEN, [list(envelope_hashes)]))
    wake()
    log.info("envelopes_processed_again", count=count)
    return count


def drop_envelopes(envelope_hashes: Collection[bytes]) -> int:
    """Drop failed envelopes, and return how many. Their senders get no answer.

    The hashes stay, so that a copy is not taken for a new message.
    """
    failed = EndedEnvelope.objects.filter(hash__in=envelope_hashes, state=State.FAILED)
    return failed.update(state=State.DROPPED, reason=BY_OPERATOR, payload=None)


@dataclass(frozen=True, slots=True)
class ReadAgain:
    """The numbers of dead letters that were moved to the inbox, and of those that are still unreadable and stay."""

    taken: int
    unreadable: int


@transaction.atomic
def read_again(digests: Collection[bytes], *, now: datetime) -> ReadAgain:
    """Move dead letters to the inbox that this version of the server can read. Workers take them at once."""
    letters = list(DeadLetter.objects.select_for_update(skip_locked=True).filter(digest__in=digests).order_by("digest"))
    taken = [bytes(letter.digest) for letter in letters if _take_in(letter, now=now)]
    DeadLetter.objects.filter(digest__in=taken).delete()
    wake()
    log.info("dead_letters_read_again", taken=len(taken), unreadable=len(letters) - len(taken))
    return ReadAgain(len(taken), len(letters) - len(taken))


def _take_in(letter: DeadLetter, *, now: datetime) -> bool:
    if len(letter.raw) < letter.size_bytes:  # only the beginning of the letter was kept
        return False
    try:
        raw = json.loads(letter.raw)
    except (ValueError, RecursionError):
        return False
    page = Page(Reader(letter.path, letter.source, letter.pubsub_topic), now, [raw])
    page.select(_topics_of(raw), keep=timedelta(days=settings.ENVELOPE_RETENTION_DAYS))
    inbox.store(page.envelopes, source=letter.source, now=now, path=EndedEnvelope.Path(letter.path))
    return bool(page.envelopes)


def _topics_of(raw: Any) -> set[str]:
    """Return the content topic of this message, if it is ours. One lookup is cheaper here than loading all topics."""
    topic = raw.get("contentTopic") if isinstance(raw, dict) else None
    if not isinstance(topic, str):
        return set()
    topic_number = wire.topic_number(topic)
    is_queried = topic_number is not None and TopicKey.objects.filter(topic=topic_number).exists()
    return {topic} if is_queried or topic in own_content_topics() else set()


def drop_letters(digests: Collection[bytes]) -> int:
    """Remove dead letters, and return how many."""
    deleted, _ = DeadLetter.objects.filter(digest__in=digests).delete()
    return deleted
