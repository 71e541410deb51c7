"""The outbox of a worker process: its stages in a turn.

    new replies ──encode, insert──▶ commit ──▶ Publisher (loop) ──▶ published, 3 s later ──▶ Confirmations (loop)
                                                    │                                              │
                                                    └────────────── recorded by a later turn ◀─────┘

A reply that a process does not bring to its end is found in its row by the stages `LeftBehind` and `TakingUp`.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from time import monotonic
from typing import LiteralString

from kit.db.clock import clock
from kit.metrics import batches
from kit.tracing.steps import note
from kit.turns import BaseStage, Bell, Stage
from notifications.metrics import LEFT_BEHIND
from waku_bridge.outbound.confirming import (
    UNCONFIRMED,
    Checked,
    Confirmations,
    Verdicted,
    record_verdicts,
    take_up_unconfirmed,
)
from waku_bridge.outbound.nodes import Nodes
from waku_bridge.outbound.publishing import (
    PENDING,
    RETRY_AFTER,
    Publisher,
    Tried,
    check_after,
    claim_pending,
    record_published,
    record_refused,
    tell,
)
from waku_bridge.outbound.recording import Outgoing, Reply, record

# Noting that a node took a reply is not urgent: it waits for other work to share a commit with, but no longer than
# this.
NOTED_WITHIN_SECONDS = 0.5
# Stores are asked for what has gathered since they were asked last.
ASK_EVERY = timedelta(seconds=2)


class Outbox:
    """The replies of this process, from the decision to their confirmation."""

    def __init__(self, nodes: Nodes, stores: Nodes, bell: Bell) -> None:
        self.publisher = Publisher(nodes, bell)
        self.confirmations = Confirmations(stores, bell)
        self.replies: list[Reply] = []

    def put(self, replies: Sequence[Reply]) -> None:
        """Take replies that were decided in this turn."""
        self.replies.extend(replies)

    def stages(self) -> list[Stage]:
        """Return the stages in the order in which a turn makes them."""
        return [Recording(self), LeftBehind(self), Noting(self), Confirming(self), TakingUp(self)]


class Recording(BaseStage):
    """Puts the replies of this turn into the outbox, and publishes them after its commit."""

    follows = True

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._outgoing: list[Outgoing] = []

    def next_at(self) -> float | None:
        return 0.0 if self._outbox.replies else None

    def work(self, limit: int, *, now: datetime) -> bool:  # noqa: ARG002 - all belong to this commit
        self._outgoing = record(self._outbox.replies, now=now, retry_after=RETRY_AFTER)
        note((reply.envelope_hash, {}) for reply in self._outgoing)
        self._outbox.replies.clear()
        return False

    def committed(self) -> None:
        self._outbox.publisher.publish(self._outgoing)
        self._outgoing = []

    def undone(self) -> None:
        self._outbox.replies.clear()
        self._outgoing = []


class LeftBehind(BaseStage):
    """Publishes replies that no node took, that no store had, and that a worker which died did not publish."""

    waits: LiteralString = PENDING

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._outgoing: list[Outgoing] = []

    def work(self, limit: int, *, now: datetime) -> bool:
        self._outgoing = claim_pending(limit=limit, now=now)
        note((reply.envelope_hash, {"attempt": reply.attempt_count}) for reply in self._outgoing)
        never_published = sum(not reply.published_at for reply in self._outgoing)
        batches.count(LEFT_BEHIND, {("replies",): never_published})
        return len(self._outgoing) == limit

    def committed(self) -> None:
        self._outbox.publisher.publish(self._outgoing)
        self._outgoing = []

    def undone(self) -> None:
        self._outgoing = []


class Noting(BaseStage):
    """Notes which replies were published."""

    def __init__(self, outbox: Outbox) -> None:
        self._publisher = outbox.publisher
        self._confirmations = outbox.confirmations
        self._tried: list[Tried] = []

    def next_at(self) -> float | None:
        return self._publisher.first_result_at + NOTED_WITHIN_SECONDS if self._publisher.has_results() else None

    def is_under_way(self) -> bool:
        return self._publisher.under_way > 0

    def work(self, limit: int, *, now: datetime) -> bool:
        self._tried = self._publisher.peek(limit)
        note((tried.reply.envelope_hash, {}) for tried in self._tried)
        record_published([tried.published for tried in self._tried if tried.published])
        record_refused([tried.reply for tried in self._tried if not tried.published], now=now)
        return len(self._tried) == limit

    def committed(self) -> None:
        self._publisher.recorded(len(self._tried))
        tell(refusal for tried in self._tried for refusal in tried.refusals)
        for reply, published, _ in self._tried:
            if published:
                checked = Checked(
                    reply.id, published.hash, published.node, reply.repeat_count, published.at, reply.envelope_hash
                )
                self._confirmations.expect([checked], at=published.at + check_after(reply))

    def set_aside(self, error: Exception, *, now: datetime) -> None:
        """Drop the result. The reply is published again when it is due."""
        super().set_aside(error, now=now)
        self._publisher.recorded(len(self._publisher.peek(1)))


class Confirming(BaseStage):
    """Asks the stores, and records what they said."""

    def __init__(self, outbox: Outbox) -> None:
        self._confirmations = outbox.confirmations
        self._answers: list[list[Verdicted]] = []  # at most one
        self._later: list[Checked] = []

    def next_at(self) -> float | None:
        if self._confirmations.has_results():
            return 0.0
        due_at = self._confirmations.next_due_at()
        return None if due_at is None else monotonic() + (due_at + ASK_EVERY - clock.now()).total_seconds()

    def work(self, limit: int, *, now: datetime) -> bool:  # noqa: ARG002 - bounded by what is asked for
        self._answers = self._confirmations.peek(1)
        verdicts = [each for answer in self._answers for each in answer]
        note((reply.envelope_hash, {"outcome": verdict.name.lower()}) for reply, verdict in verdicts)
        self._later = record_verdicts(verdicts, now=now)
        return False

    def committed(self) -> None:
        now = clock.now()
        self._confirmations.recorded(len(self._answers))
        self._confirmations.expect(self._later, at=now + ASK_EVERY)
        self._confirmations.ask(now=now)

    def set_aside(self, error: Exception, *, now: datetime) -> None:
        """Drop the verdicts. The stage that looks for unconfirmed replies finds these."""
        super().set_aside(error, now=now)
        self._confirmations.recorded(len(self._confirmations.peek(1)))


class TakingUp(BaseStage):
    """Asks for replies that their own process does not ask for any more."""

    waits: LiteralString = UNCONFIRMED

    def __init__(self, outbox: Outbox) -> None:
        self._confirmations = outbox.confirmations
        self._taken: list[Checked] = []

    def work(self, limit: int, *, now: datetime) -> bool:
        self._taken = take_up_unconfirmed(limit=limit, now=now)
        return len(self._taken) == limit

    def committed(self) -> None:
        self._confirmations.expect(self._taken, at=clock.now() - ASK_EVERY)
