"""The outbox of a worker process: its steps in a batch. Replies are rows with a due time: see `kit.work`.

    new replies ──encode, insert──┐                                 ┌──▶ done: history
                                  ├──claimed──▶ commit ──▶ Sends ───┤
    overdue replies ──take, again─┘                                 └──▶ again, due later

The row of a new reply is written when it is decided and when it ends, and not in between.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString, NamedTuple

import structlog

from kit import work
from kit.batches.batch import Batch, Step, Wakeup, Work
from kit.db.partitions import day_of
from kit.metrics import count, observe
from kit.tracing import note
from notifications.messages import Answer
from notifications.metrics import LEFT_BEHIND
from waku_bridge.messages import BRIDGE
from waku_bridge.metrics import (
    PUBLISH_SECONDS,
    REPLIES_ABANDONED,
    REPLIES_CONFIRMED,
    REPLIES_PUBLISHED,
    REPLIES_REPUBLISHED,
    REPLIES_UNCHECKED,
    REPLIES_UNCONFIRMED,
)
from waku_bridge.models import ReplyFacts
from waku_bridge.node import Nodes
from waku_bridge.outbound.confirming import Verdict
from waku_bridge.outbound.recording import LEASE, Outgoing, Recorded, Reply, record, reply_to
from waku_bridge.outbound.sending import CHECK_AFTER_SECONDS, MAX_REPEATS, Published, Sends, Sent, log_refusals

log = structlog.get_logger(__name__)
State = ReplyFacts.State

# A reply that no node takes is offered again after this time. The wait grows by the same time with each attempt, up to
# `MAX_RETRIES_APART` times as long.
RETRY_AFTER = timedelta(seconds=10)
MAX_RETRIES_APART = 6
# Stores that did not answer are queried again after this time, until the reply was published `UNANSWERED_FOR` ago.
ASK_AGAIN_AFTER = timedelta(seconds=10)
UNANSWERED_FOR = timedelta(seconds=60)
CHECK_AFTER = timedelta(seconds=CHECK_AFTER_SECONDS)
# Clients repeat a registration for days, but none waits an hour for one answer. Errors to unproven keys are given up
# early: anybody can cause any number, and nodes that refuse them should not be offered all of them for an hour.
GIVE_UP_AFTER = timedelta(hours=1)
GIVE_UP_ERRORS_AFTER = timedelta(minutes=1)

# What a send changes, both in a row that is due again and in one that ends.
CHANGES: tuple[work.Column, ...] = (
    ("state", "text"),
    ("attempt_count", "smallint"),
    ("repeat_count", "smallint"),
    ("timestamp_ns", "bigint"),
    ("message_hash", "bytea"),
    ("node", "text"),
    ("published_at", "timestamptz"),
)
REPLIES = work.Table(
    "waku_bridge_openreply",
    history="waku_bridge_endedreply",
    kept=("id", "envelope_hash", "part", "message_type", "pubsub_topic", "content_topic", "created_at"),
    ends=(*CHANGES, ("confirmed_at", "timestamptz"), ("ended_on", "date")),
    kept_if="NOT is_discarded",
)
# Longest time that a result waits for other work to share a commit with.
NOTED_WITHIN_SECONDS = 0.5
# Replies that a process has under way while it takes overdue ones.
MAX_UNDER_WAY = 4000


class Outbox:
    """The replies of this process, from the decision to their end."""

    def __init__(self, nodes: Nodes, stores: Nodes, wakeup: Wakeup) -> None:
        self.sends = Sends(nodes, stores, wakeup)

    def steps(self) -> list[Step]:
        """Return the steps, in the order in which a batch runs them."""
        return [Recording(self.sends), OverdueReplies(self.sends), SentReplies(self.sends)]


class Recording(Step):
    """Step that writes the replies and answers of this batch into the outbox, and sends them after its commit."""

    follows = True

    def __init__(self, sends: Sends) -> None:
        self._sends = sends

    def work(self, batch: Batch) -> Work[Recorded]:
        answers = [each for each in batch.handed if isinstance(each, Answer) and each.bridge == BRIDGE]
        replies = [each for each in batch.handed if isinstance(each, Reply)]
        recorded = record([*replies, *map(reply_to, answers)], now=batch.now)
        note((reply.envelope_hash, {}) for reply in recorded.sealed)
        return Work(recorded)

    def committed(self, decided: Recorded) -> None:
        self._sends.send(decided.outgoing(), are_new=True)


class OverdueReplies(Step):
    """Step that sends overdue replies, and gives up those that no client waits for any more."""

    waits: LiteralString = REPLIES.waits
    oldest: LiteralString = REPLIES.oldest

    def __init__(self, sends: Sends) -> None:
        self._sends = sends

    def work(self, batch: Batch) -> Work[list[Outgoing]]:
        limit = max(min(batch.limit, MAX_UNDER_WAY - self._sends.under_way), 0)
        times = {"now": batch.now, "nothing_before": batch.nothing_before}
        found = [Outgoing._make(row) for row in work.take(REPLIES, Outgoing._fields, limit=limit, **times)]
        give_up([reply for reply in found if is_too_old(reply, batch.now)], now=batch.now)
        alive, until = [reply for reply in found if not is_too_old(reply, batch.now)], batch.now + LEASE
        work.again(REPLIES, [(reply.id, reply.due_at, until) for reply in alive])
        note((reply.envelope_hash, {"attempt": reply.attempt_count + 1}) for reply in alive)
        count(LEFT_BEHIND, {("replies",): sum(not reply.attempt_count for reply in alive)})
        return Work([reply._replace(due_at=until) for reply in alive], is_more_left=bool(limit) and len(found) == limit)

    def committed(self, decided: list[Outgoing]) -> None:
        self._sends.send(decided, are_new=False)


class SentReplies(Step):
    """Step that records what came of the replies that this process sent."""

    def __init__(self, sends: Sends) -> None:
        self._sends = sends

    def next_at(self) -> float | None:
        return self._sends.first_result_at + NOTED_WITHIN_SECONDS if self._sends.has_results() else None

    def is_under_way(self) -> bool:
        return self._sends.is_publishing()

    def work(self, batch: Batch) -> Work[list[Sent]]:
        results = self._sends.peek(batch.limit)
        note((sent.reply.envelope_hash, sent.attributes) for sent in results)
        settle(results, now=batch.now)
        return Work(results, is_more_left=len(results) == batch.limit)

    def committed(self, decided: list[Sent]) -> None:
        self._sends.recorded(len(decided))
        log_refusals(refusal for sent in decided if sent.tried for refusal in sent.tried.refusals)

    def quarantine(self, error: Exception, batch: Batch) -> None:
        """Drop the result. The reply is sent once more when its lease ends."""
        super().quarantine(error, batch)
        self._sends.recorded(len(self._sends.peek(1)))

    def again(self, batch: Batch) -> None:
        """Record the result some seconds later."""
        self._sends.again(len(self._sends.peek(batch.limit)))


# Results --------------------------------------------------------------------------------------------------------------


class Settled(NamedTuple):
    """What is to be written about a reply that was sent: its state, and when it is due again, or None if it ends."""

    sent: Sent
    state: State
    due_at: datetime | None = None


def settle(results: Sequence[Sent], *, now: datetime) -> None:
    """Write what came of replies, in a transaction of the caller."""
    settled = [_settled(sent, now) for sent in results]
    _end([one for one in settled if not one.due_at], now=now)
    rows = [(one.sent.reply.id, one.sent.reply.due_at, one.due_at, *_changes(one)) for one in settled if one.due_at]
    work.again(REPLIES, rows, CHANGES)
    _count(settled)


def _settled(sent: Sent, now: datetime) -> Settled:
    reply, published = sent.reply, sent.published
    if Verdict.CONFIRMED in (sent.before, sent.after):
        return Settled(sent, State.CONFIRMED)
    if published and not reply.needs_confirmation:
        return Settled(sent, State.UNCONFIRMED)
    if published:
        return Settled(sent, State.PUBLISHED, _next_query_at(sent, published.at, now))
    if reply.published_at:
        return _not_repeated(sent, reply.published_at, now)
    return Settled(sent, State.PENDING, now + RETRY_AFTER * min(max(reply.attempt_count, 1), MAX_RETRIES_APART))


def _not_repeated(sent: Sent, published_at: datetime, now: datetime) -> Settled:
    if sent.tried:  # every node refused the repetition, and the stores decide: they may have been late with it
        return Settled(sent, State.PUBLISHED, now + CHECK_AFTER)
    is_lost = sent.before is Verdict.MISSING and sent.reply.repeat_count >= MAX_REPEATS
    if is_lost or published_at <= now - UNANSWERED_FOR:
        return Settled(sent, State.UNCONFIRMED)
    return Settled(sent, State.PUBLISHED, now + ASK_AGAIN_AFTER)


def _next_query_at(sent: Sent, published_at: datetime, now: datetime) -> datetime:
    """Return when the stores are asked for a publication again. The time doubles with each repetition."""
    if sent.after is None:
        return max(published_at + CHECK_AFTER * int(2**sent.reply.repeat_count), now)
    return now if sent.after is Verdict.MISSING else now + ASK_AGAIN_AFTER


def _changes(settled: Settled) -> tuple[Any, ...]:
    """Return the values of `CHANGES`."""
    sent, reply = settled.sent, settled.sent.reply
    published = sent.published
    counts = settled.state, reply.attempt_count, reply.repeat_count, reply.timestamp_ns
    if published:
        return *counts, published.hash, published.node, published.at
    if settled.state is State.CONFIRMED and not reply.published_at:  # by a worker that died before it wrote so
        return *counts, reply.hash, "", datetime.fromtimestamp(reply.timestamp_ns / 10**9, UTC)
    return *counts, reply.message_hash, reply.node, reply.published_at


def _end(settled: Sequence[Settled], *, now: datetime) -> None:
    rows = []
    for one in settled:
        confirmed_at = now if one.state is State.CONFIRMED else None
        rows.append((one.sent.reply.id, one.sent.reply.due_at, *_changes(one), confirmed_at, day_of(now)))
    work.done(REPLIES, rows)


def is_too_old(reply: Outgoing, now: datetime) -> bool:
    is_unproven_error = reply.is_discarded and not reply.needs_confirmation
    return reply.created_at <= now - (GIVE_UP_ERRORS_AFTER if is_unproven_error else GIVE_UP_AFTER)


def give_up(replies: Sequence[Outgoing], *, now: datetime) -> None:
    """End replies that no node took, or no store had, for so long that no client waits for them."""
    _end(
        [Settled(Sent(reply), State.UNCONFIRMED if reply.published_at else State.ABANDONED) for reply in replies],
        now=now,
    )
    count(REPLIES_ABANDONED, {(): len(replies)})


def _count(settled: Sequence[Settled]) -> None:
    """Count and log what came of replies."""
    published = [(one.sent.reply, taken) for one in settled if (taken := one.sent.published)]
    count(REPLIES_PUBLISHED, [(taken.name,) for _, taken in published])
    count(REPLIES_REPUBLISHED, [_form(reply, taken) for reply, taken in published if reply.published_at])
    first = (taken.at - reply.created_at for reply, taken in published if not reply.published_at)
    observe(PUBLISH_SECONDS, (waited.total_seconds() for waited in first))
    count(REPLIES_CONFIRMED, {(): sum(one.state is State.CONFIRMED for one in settled)})
    if missing := sum(one.sent.is_missing for one in settled):
        count(REPLIES_UNCONFIRMED, {(): missing})
        log.warning("replies_unconfirmed", count=missing)
    if refused := sum(one.sent.tried is not None and not one.sent.published for one in settled):
        log.warning("replies_not_published", count=refused)
    lost = [one.sent for one in settled if one.state is State.UNCONFIRMED and not one.sent.published]
    if lost:
        count(REPLIES_ABANDONED, {(): sum(sent.is_missing for sent in lost)})
        count(REPLIES_UNCHECKED, {(): sum(not sent.is_missing for sent in lost)})
        log.warning("replies_given_up", count=len(lost))


def _form(reply: Outgoing, taken: Published) -> tuple[str]:
    return ("identical" if taken.hash == reply.message_hash else "restamped",)
