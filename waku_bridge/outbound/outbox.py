"""The outbox of a worker process: its steps in a batch.

    new replies ──encode, insert──▶ commit ──▶ Publisher (loop) ──▶ published, 3 s later ──▶ Confirmations (loop)
                                                    │                                              │
                                                    └────────────── recorded by a later batch ◀─────┘

A reply that needs no confirmation ends when it is published. When a process does not finish a reply, the steps
`LeftBehind` and `TakingUp` of any process find its row.
"""

from datetime import timedelta
from time import monotonic
from typing import LiteralString, NamedTuple

from kit.batches.batch import Batch, Step, Wakeup, Work
from kit.db.clock import clock
from kit.metrics import batches
from kit.tracing.spans import note
from notifications.messages import Answer
from notifications.metrics import LEFT_BEHIND
from waku_bridge.messages import BRIDGE
from waku_bridge.node.client import Nodes
from waku_bridge.outbound.confirming import (
    OLDEST_UNCONFIRMED,
    UNCONFIRMED,
    Checked,
    Confirmations,
    record_verdicts,
    take_up_unconfirmed,
)
from waku_bridge.outbound.publishing import (
    OLDEST_PENDING,
    PENDING,
    RETRY_AFTER,
    Publisher,
    Tried,
    check_after,
    claim_pending,
    give_up,
    log_refusals,
    record_published,
    record_refused,
)
from waku_bridge.outbound.recording import Outgoing, Recorded, Reply, record, reply_to

# Longest time that a result of publishing waits for other work to share a commit with.
NOTED_WITHIN_SECONDS = 0.5
# Time between two rounds of queries to the stores.
ASK_EVERY = timedelta(seconds=2)


class Outbox:
    """The replies of this process, from the decision to their confirmation."""

    def __init__(self, nodes: Nodes, stores: Nodes, wakeup: Wakeup) -> None:
        self.publisher = Publisher(nodes, wakeup)
        self.confirmations = Confirmations(stores, wakeup)

    def steps(self) -> list[Step]:
        """Return the steps, in the order in which a batch runs them."""
        return [Recording(self), LeftBehind(self), Noting(self), Confirming(self), TakingUp(self)]


class Recording(Step):
    """Step that writes the replies and answers of this batch into the outbox, and publishes them after its commit."""

    follows = True

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def work(self, batch: Batch) -> Work[Recorded]:
        answers = [each for each in batch.handed if isinstance(each, Answer) and each.bridge == BRIDGE]
        replies = [each for each in batch.handed if isinstance(each, Reply)]
        recorded = record([*replies, *map(reply_to, answers)], now=batch.now, retry_after=RETRY_AFTER)
        note((reply.envelope_hash, {}) for reply in recorded.sealed)
        return Work(recorded)

    def committed(self, decided: Recorded) -> None:
        self._outbox.publisher.publish(decided.outgoing())


class LeftBehind(Step):
    """Step that publishes replies which no node took, which no store had, or whose worker died before publishing."""

    waits: LiteralString = PENDING
    oldest: LiteralString = OLDEST_PENDING

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def work(self, batch: Batch) -> Work[list[Outgoing]]:
        given_up = give_up(limit=batch.limit, now=batch.now, nothing_before=batch.nothing_before)
        outgoing = claim_pending(limit=batch.limit, now=batch.now, nothing_before=batch.nothing_before)
        note((reply.envelope_hash, {"attempt": reply.attempt_count}) for reply in outgoing)
        batches.count(LEFT_BEHIND, {("replies",): sum(not reply.published_at for reply in outgoing)})
        return Work(outgoing, is_more_left=batch.limit in {given_up, len(outgoing)})

    def committed(self, decided: list[Outgoing]) -> None:
        self._outbox.publisher.publish(decided)


class Noting(Step):
    """Step that records which replies were published."""

    def __init__(self, outbox: Outbox) -> None:
        self._publisher = outbox.publisher
        self._confirmations = outbox.confirmations

    def next_at(self) -> float | None:
        return self._publisher.first_result_at + NOTED_WITHIN_SECONDS if self._publisher.has_results() else None

    def is_under_way(self) -> bool:
        return self._publisher.under_way > 0

    def work(self, batch: Batch) -> Work[list[Tried]]:
        results = self._publisher.peek(batch.limit)
        note((tried.reply.envelope_hash, {}) for tried in results)
        record_published([tried.published for tried in results if tried.published], now=batch.now)
        record_refused([tried.reply for tried in results if not tried.published], now=batch.now)
        return Work(results, is_more_left=len(results) == batch.limit)

    def committed(self, decided: list[Tried]) -> None:
        self._publisher.recorded(len(decided))
        log_refusals(refusal for tried in decided for refusal in tried.refusals)
        for reply, published, _ in decided:
            if published and reply.needs_confirmation:
                checked = Checked(
                    reply.id, published.hash, published.node, reply.repeat_count, published.at, reply.envelope_hash
                )
                self._confirmations.expect([checked], at=published.at + check_after(reply))

    def quarantine(self, error: Exception, batch: Batch) -> None:
        """Drop the result. The reply is published once more when it is due."""
        super().quarantine(error, batch)
        self._publisher.recorded(len(self._publisher.peek(1)))

    def put_off(self, batch: Batch) -> bool:
        """Record the result some seconds later."""
        self._publisher.put_off(len(self._publisher.peek(batch.limit)))
        return True


class Answered(NamedTuple):
    """The number of rounds of queries that were recorded (one at most), and the replies to query again."""

    answers: int
    later: list[Checked]


class Confirming(Step):
    """Step that queries the stores, and records their verdicts."""

    def __init__(self, outbox: Outbox) -> None:
        self._confirmations = outbox.confirmations

    def next_at(self) -> float | None:
        if self._confirmations.has_results():
            return 0.0
        due_at = self._confirmations.next_due_at()
        return None if due_at is None else monotonic() + (due_at + ASK_EVERY - clock.now()).total_seconds()

    def work(self, batch: Batch) -> Work[Answered]:
        answers = self._confirmations.peek(1)
        verdicts = [each for answer in answers for each in answer]
        note((reply.envelope_hash, {"outcome": verdict.name.lower()}) for reply, verdict in verdicts)
        return Work(Answered(len(answers), record_verdicts(verdicts, now=batch.now)))

    def committed(self, decided: Answered) -> None:
        now = clock.now()
        self._confirmations.recorded(decided.answers)
        self._confirmations.expect(decided.later, at=now + ASK_EVERY)
        self._confirmations.ask(now=now)

    def quarantine(self, error: Exception, batch: Batch) -> None:
        """Drop the verdicts. The step `TakingUp` finds these replies."""
        super().quarantine(error, batch)
        self._confirmations.recorded(len(self._confirmations.peek(1)))

    def put_off(self, batch: Batch) -> bool:
        """Record the verdicts some seconds later."""
        self._confirmations.put_off(len(self._confirmations.peek(batch.limit)))
        return True


class TakingUp(Step):
    """Step that takes over unconfirmed replies whose own process is late with its query."""

    waits: LiteralString = UNCONFIRMED
    oldest: LiteralString = OLDEST_UNCONFIRMED

    def __init__(self, outbox: Outbox) -> None:
        self._confirmations = outbox.confirmations

    def work(self, batch: Batch) -> Work[list[Checked]]:
        limit = min(batch.limit, self._confirmations.capacity())
        times = {"now": batch.now, "nothing_before": batch.nothing_before}
        taken = take_up_unconfirmed(limit=limit, **times) if limit else []
        return Work(taken, is_more_left=bool(limit) and len(taken) == limit)

    def committed(self, decided: list[Checked]) -> None:
        self._confirmations.expect(decided, at=clock.now() - ASK_EVERY)
