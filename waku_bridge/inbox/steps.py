"""The steps of a batch that take envelopes from the inbox.

    received ──opened──┬──▶ decided                                      (`Inbox`)
                       └──▶ postponed ──opened again──┬──▶ decided       (`Postponed`)
                                                      └──▶ dropped, beyond the limit of `inbox.BOUND`

When a batch costs more than its budget, `priority` chooses the messages that are decided now. Of its queries, those
within a quarter of the budget are decided in any case, and the rest is postponed. While the inbox is
behind, four fifths of a batch are the newest envelopes, because their senders still wait, and one fifth the oldest.
Every envelope is opened at full speed, so that messages about a proven address are found. Postponed envelopes are
decided once the inbox keeps up, the newest first, in batches with a budget left for new ones.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import LiteralString

from django.conf import settings

from kit.batches.batch import Batch, Step, Work
from kit.buckets.bucket import Buckets
from kit.buckets.shared import own_buckets, own_share
from notifications.acceptance.storing import find_repeats
from notifications.delivery.steps import Delivery, traced
from registrations.lookup import find_proven_addresses
from registrations.messages import Named
from waku_bridge.inbox import faults, inbox, processing
from waku_bridge.inbox.inbox import POSTPONED, WAITING, Item, Taken
from waku_bridge.inbox.journal import InFlightJournal
from waku_bridge.inbox.priority import (
    QUERY_SHARE,
    SHARE,
    SHARE_OF_IDLE,
    Chosen,
    Priority,
    cheapest,
    cost,
    fitting,
    named,
)
from waku_bridge.inbox.processing import Processed
from waku_bridge.messages import BRIDGE, Query

# Deaths after which an envelope is processed in a batch of its own.
DEATHS_BEFORE_ALONE = 2


class InboxStep(Step):
    """The common part of both steps: process the envelopes that were taken."""

    def __init__(self, intake: "InboxIntake") -> None:
        self._intake = intake

    def _process(self, items: Sequence[Item], *, is_more_left: bool, now: datetime) -> Work[Processed]:
        limits, capacity = self._intake.delivery.limits, self._intake.capacity
        processed = processing.process(items, limits=limits, capacity=capacity, now=now)
        answers = [*processed.replies, *traced(processed.accepted.answers)]
        return Work(processed, answers, is_more_left=is_more_left)

    def committed(self, decided: Processed) -> None:
        """Send the pushes that were claimed, and then charge the limits."""
        self._intake.journal.clear()
        self._intake.delivery.accepted(decided.accepted.claims, decided.accepted.waiting)
        if decided.needs_keys:
            self._intake.want_keys()
        own_buckets().keep()
        processing.query_limits().keep()

    def rolled_back(self, batch: Batch) -> None:  # noqa: ARG002 - the signature of a step
        """Forget the decisions of the batch, and return the tokens that it took."""
        self._intake.journal.clear()  # also where the process is ended: it did not die of its envelopes
        own_buckets().take_back()
        processing.query_limits().take_back()
        self._intake.delivery.limits.give_back()

    def quarantine(self, error: Exception, batch: Batch) -> None:
        """Mark the envelope that was taken alone as failed. Its payload is kept, so that it can be processed again."""
        for envelope in batch.taken:
            faults.quarantine(envelope.hash, error, now=batch.now)

    def again(self, batch: Batch) -> None:
        """Leave the envelope for some seconds."""
        inbox.again(batch.taken)


class Inbox(InboxStep):
    """The step that takes envelopes as they come."""

    oldest: LiteralString = WAITING

    def __init__(self, intake: "InboxIntake") -> None:
        super().__init__(intake)
        self._takes_one_alone = False

    def work(self, batch: Batch) -> Work[Processed]:
        """Process envelopes that wait. The batch passes their answers and replies on to its next steps."""
        suspects = self._intake.suspects(now=batch.now)
        taken = self._take(batch, suspects)
        batch.taken = taken.items
        self._intake.took_from_inbox = bool(taken.items)
        self._intake.journal.hold([item.hash for item in taken.items])
        items = processing.open_all(taken.items, now=batch.now)
        chosen = self._choose(items, taken, batch)
        inbox.postpone([items[index] for index in chosen.postponed])
        has_rest = len(chosen.decided) + len(chosen.postponed) < len(items)
        is_more_left = taken.is_more_left or has_rest or bool(suspects) or self._intake.priority.is_behind
        decided = [item for index, item in enumerate(items) if index in chosen.decided]
        return self._process(decided, is_more_left=is_more_left, now=batch.now)

    def _take(self, batch: Batch, suspects: Collection[bytes]) -> Taken:
        """Take envelopes. Each suspect gets a batch of its own, because processes died with it.

        Such a batch is every other one, so that it neither harms other envelopes nor makes all of them wait. An
        envelope that kills a process even then is given up.
        """
        if not batch.is_careful:  # it must find the envelope that made a batch fail
            self._takes_one_alone = not self._takes_one_alone
        self._takes_one_alone &= bool(suspects)
        if self._takes_one_alone:
            return inbox.take_one_of(suspects)
        is_newest_first = self._intake.priority.is_behind and not batch.is_careful
        return inbox.take(batch.limit, batch.nothing_before, but=suspects, is_newest_first=is_newest_first)

    def _choose(self, items: Sequence[Item], taken: Taken, batch: Batch) -> Chosen:
        """Choose the messages that this batch decides: all of them, while they fit and the inbox keeps up.

        A batch after a failure does not count as evidence that the inbox is behind: it is small, and its envelopes may
        have waited for a lock.
        """
        costs = _costs(items)
        self._intake.query_units = QUERY_SHARE
        late = self._intake.find_late_queries(items, costs)
        costs = [0 if index in late else each for index, each in enumerate(costs)]
        waited = max((batch.now - item.received_at for item in taken.items), default=timedelta())
        is_full = taken.is_more_left and not batch.is_careful
        if self._intake.priority.decides_all(costs, is_full=is_full, waited=waited):
            return Chosen(set(range(len(items))) - late, late)
        names = list(_named_without_repeats(items, now=batch.now))
        found = find_proven_addresses({name for each in names for name in each})
        about = [[found[name] for name in each if name in found] for each in names]
        decided, postponed = self._intake.priority.choose(costs, about)
        return Chosen(decided - late, postponed | late)


def _costs(items: Iterable[Item]) -> list[int]:
    return [cost(item.decoded, len(item.payload)) for item in items]


def _named_without_repeats(items: Sequence[Item], *, now: datetime) -> Iterator[list[Named]]:
    """Yield the installations that each message is about, and none for a repeated request.

    Anybody may have recorded a request and repeat it, so a repetition must not take the tokens of a proven address.
    """
    seen = find_repeats(BRIDGE, [item.decoded.message_id for item in items if item.decoded], now=now)
    for decoded in (item.decoded for item in items):
        yield [] if decoded and decoded.message_id in seen else named(decoded)
        seen |= {decoded.message_id} if decoded else set()


class Postponed(InboxStep):
    """The step that decides about postponed envelopes, once the inbox keeps up."""

    waits: LiteralString = POSTPONED

    def work(self, batch: Batch) -> Work[Processed]:
        """Process postponed envelopes within the share of this batch. The next ones follow within a second."""
        if self._intake.priority.is_behind:
            return Work(Processed())
        self._intake.suspects(now=batch.now)
        units = SHARE if self._intake.took_from_inbox else SHARE_OF_IDLE
        self._intake.took_from_inbox = False  # the next batch may skip the step of the inbox
        taken = inbox.take_postponed(min(batch.limit, units))
        batch.taken = taken.items
        self._intake.journal.hold([item.hash for item in taken.items])
        items = processing.open_all(taken.items, now=batch.now)
        costs = _costs(items)
        late = self._intake.find_late_queries(items, costs)
        self._intake.query_units = QUERY_SHARE  # of the next batch
        chosen = set(cheapest(costs, sorted(set(range(len(items))) - late), units=units))
        decided = [item for index, item in enumerate(items) if index in chosen]
        is_more_left = taken.is_more_left or len(chosen) < len(items)
        return self._process(decided, is_more_left=is_more_left, now=batch.now)


class InboxIntake:
    """The state that the steps of a process share.

    ``want_keys`` is called when envelopes wait for keys. In ``journal`` the process notes the envelopes that it works
    on, so that other processes can read which ones it died with.
    """

    def __init__(self, delivery: Delivery, want_keys: Callable[[], None], journal: InFlightJournal) -> None:
        self.delivery = delivery
        self.want_keys = want_keys
        self.journal = journal
        self.query_units = QUERY_SHARE  # what is left of them for the queries of this batch
        self.took_from_inbox = False  # whether the inbox's step of this batch took envelopes
        self.capacity = Buckets()  # for what is kept of envelopes that nothing follows from
        self.priority = Priority(settings.ROUTE_LIMITS[:1], lambda: own_share().part)

    def steps(self) -> list[Step]:
        """Return new steps, in the order in which a batch runs them."""
        return [Inbox(self), Postponed(self)]

    def find_late_queries(self, items: Sequence[Item], costs: Sequence[int]) -> set[int]:
        """Take the units of queries from what this batch has for them, and return the indexes of those beyond it."""
        queries = [i for i, item in enumerate(items) if item.decoded and isinstance(item.decoded.body, Query)]
        answered = set(fitting(costs, queries, units=self.query_units))
        self.query_units -= sum(costs[index] for index in answered)
        return {*queries} - answered

    def suspects(self, *, now: datetime) -> list[bytes]:
        """Return the waiting envelopes that the step `Inbox` must take alone, because processes died with them.

        Give up those that killed another process when they were alone.
        """
        deaths = self.journal.count_deaths()
        if not deaths:
            return []
        found = inbox.still_waiting(deaths.keys())
        self.journal.forget(deaths.keys() - found.keys())
        waiting = [each for each, can_be_taken in found.items() if can_be_taken]
        faults.give_up([each for each in waiting if deaths[each] > DEATHS_BEFORE_ALONE], now=now)
        suspects = [each for each in waiting if deaths[each] == DEATHS_BEFORE_ALONE]
        inbox.recall(suspects)
        return suspects
