"""Operations on messages that could not be processed: read or process them again, or drop them.

Each is safe to repeat, also by two people at once: it changes only rows that are still in the expected state.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction

from kit.batches.batch import wake
from kit.db.base import fetch
from kit.db.clock import database_now
from pushserver.console.toolkit.operations import Done, Operation, done
from registrations.models import TopicKey
from waku_bridge.codec import wire
from waku_bridge.inbox import faults, inbox
from waku_bridge.models import ENVELOPE, DeadLetter, EndedEnvelope, EnvelopeFault, InboundEnvelope
from waku_bridge.query_topics import own_content_topics
from waku_bridge.reading.pages import Page, Reader

log = structlog.get_logger(__name__)
State = EndedEnvelope.State
BY_OPERATOR = "operator"
LATE = "Their senders may have given up waiting for the answer; a notification in them is still sent."
_REOPEN = f"""
    WITH failed AS (
        DELETE FROM waku_bridge_endedenvelope WHERE hash = ANY (%b::bytea[]) AND state = '{State.FAILED}' RETURNING *
    )
    INSERT INTO waku_bridge_openenvelope ({ENVELOPE}, payload, state)
    SELECT {ENVELOPE}, payload, '{State.RECEIVED}' FROM failed RETURNING hash
"""


class EnvelopeOperation(Operation):
    """An operation on envelopes that failed."""

    permission = "waku_bridge.operate_inboundenvelope"

    @classmethod
    def fits(cls, row: InboundEnvelope) -> bool:
        return row.state == State.FAILED


class ProcessAgain(EnvelopeOperation):
    label = "Process again"
    effects = ("Envelopes that failed, and would be processed again within seconds: {fitting}.", LATE)

    def run(self, rows: Sequence[InboundEnvelope], *, by: str) -> Done:
        count = process_again([row.hash for row in rows])
        return done(count, f"Envelopes to be processed again: {count}.")


class DropEnvelopes(EnvelopeOperation):
    """Drop failed envelopes. Their hashes stay, so that a copy is not taken for a new message."""

    label = "Drop"
    is_destructive = True
    effects = ("Envelopes that failed, and would never be processed: {fitting}.", "Their messages are lost.")

    def run(self, rows: Sequence[InboundEnvelope], *, by: str) -> Done:
        failed = EndedEnvelope.objects.filter(hash__in=[row.hash for row in rows], state=State.FAILED)
        count = failed.update(state=State.DROPPED, reason=BY_OPERATOR, payload=None)
        return done(count, f"Dropped envelopes: {count}.")


class ProcessAllAgain(Operation):
    """Process all envelopes again that failed by a fault, so that the operator who repaired it need not find them."""

    label = "Process again"
    permission = EnvelopeOperation.permission
    effects = (
        "Envelopes that failed by {fault}, and would be processed again: {count}.",
        "Until it is repaired they fail again. Nothing is lost by that, because their payloads are kept.",
        LATE,
    )

    def facts(self, rows: Sequence[EnvelopeFault]) -> Mapping[str, object]:
        fault = "this fault" if len(rows) == 1 else "these faults"
        return {"fault": fault, "count": len(faults.waiting([row.pk for row in rows]))}

    def run(self, rows: Sequence[EnvelopeFault], *, by: str) -> Done:
        count = process_again(faults.waiting([row.pk for row in rows]))
        return done(count, f"Envelopes to be processed again: {count}.")


class ReadLettersAgain(Operation):
    label = "Read again"
    permission = "waku_bridge.operate_deadletter"
    removes_rows = True
    effects = (
        "Dead letters that are read once more: {count}. Those that can be read now go into the inbox.",
        "The others stay.",
    )

    def run(self, rows: Sequence[DeadLetter], *, by: str) -> Done:
        taken, unreadable = read_again([row.digest for row in rows], now=database_now())
        return Done(f"Put into the inbox: {taken}. Still not readable: {unreadable}.", is_change=bool(taken))


class DropLetters(Operation):
    label = "Drop"
    permission = "waku_bridge.operate_deadletter"
    is_destructive = removes_rows = True
    effects = ("Dead letters that are removed for good: {count}.",)

    def run(self, rows: Sequence[DeadLetter], *, by: str) -> Done:
        count, _ = DeadLetter.objects.filter(digest__in=[row.digest for row in rows]).delete()
        return done(count, f"Dropped dead letters: {count}.")


def process_again(envelope_hashes: Collection[bytes]) -> int:
    """Have failed envelopes processed again, and return how many. Workers take them at once."""
    count = len(fetch(_REOPEN, [list(envelope_hashes)]))
    wake()
    log.info("envelopes_processed_again", count=count)
    return count


@transaction.atomic
def read_again(digests: Collection[bytes], *, now: datetime) -> tuple[int, int]:
    """Move dead letters to the inbox that this version of the server can read. Workers take them at once.

    Return how many were moved, and how many are still unreadable and stay.
    """
    letters = list(DeadLetter.objects.select_for_update(skip_locked=True).filter(digest__in=digests).order_by("digest"))
    taken = [bytes(letter.digest) for letter in letters if _take_in(letter, now=now)]
    DeadLetter.objects.filter(digest__in=taken).delete()
    wake()
    log.info("dead_letters_read_again", taken=len(taken), unreadable=len(letters) - len(taken))
    return len(taken), len(letters) - len(taken)


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
