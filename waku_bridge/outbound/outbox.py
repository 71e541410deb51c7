"""The outbox of a worker process: its steps in a batch. Replies are rows with a due time: see `kit.work`.

    new replies ──encode, insert──┐                                 ┌──▶ done: history
                                  ├──claimed──▶ commit ──▶ Sends ───┤
    overdue replies ──take, again─┘                                 └──▶ again, due later

The row of a new reply is written when it is decided and when it ends, and not in between.
"""

from typing import LiteralString

from kit import work
from kit.batches.batch import Batch, Step, Wakeup, Work
from kit.metrics import count
from kit.tracing import note
from notifications.messages import Answer
from notifications.metrics import LEFT_BEHIND
from waku_bridge.messages import BRIDGE
from waku_bridge.node import Nodes
from waku_bridge.outbound.publishing import log_refusals
from waku_bridge.outbound.recording import LEASE, Outgoing, Recorded, Reply, record, reply_to
from waku_bridge.outbound.results import REPLIES, give_up, is_too_old, settle
from waku_bridge.outbound.sending import Sends, Sent

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
