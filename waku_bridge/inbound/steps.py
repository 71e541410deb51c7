"""The steps of a batch that take envelopes from the inbox.

    received ──opened──┬──▶ decided                                      (`Inbox`)
                       └──▶ postponed ──opened again──┬──▶ decided       (`Postponed`)
                                                      └──▶ dropped, if more wait than may: `inbox.BOUND`

When a batch is too much, `priority` chooses what is decided. While the inbox is behind, four fifths of a batch are the
newest envelopes, because their senders still wait, and the rest are the oldest. Everything is opened at full speed, so
that what is about a proven address is found. What was postponed is decided once the inbox keeps up, the newest first,
in batches that have room for whatever comes meanwhile.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime, timedelta
from time import monotonic
from typing import LiteralString

from django.conf import settings

from kit.batches.batch import BaseStep, Batch, Step, Work
from kit.batches.journal import CrashReports, InFlightJournal
from kit.buckets.share import own_share
from kit.buckets.shared import own_buckets
from notifications.acceptance.acceptance import Sending
from notifications.acceptance.storing import find_repeats
from notifications.delivery.steps import Delivery, traced
from registrations.messages import Named
from registrations.routes.proven import find_proven_addresses
from waku_bridge.inbound import inbound
from waku_bridge.inbound.inbound import Item, Processed, State, Taken
from waku_bridge.inbox import inbox
from waku_bridge.inbox.priority import SHARE, SHARE_OF_IDLE, Chosen, Priority, cheapest, cost, named
from waku_bridge.messages import BRIDGE

# Crashes after which an envelope is processed in a batch of its own.
CRASHES_BEFORE_ALONE = 2
# An envelope that needs a row which another session keeps locked is left so long, and twice as long the next time.
PUT_OFF_SECONDS = 1
MAX_PUT_OFF_SECONDS = 300


class InboxStep(BaseStep):
    """What both steps do with the envelopes they take."""

    def __init__(self, intake: "InboxIntake") -> None:
        self._intake = intake

    def _process(self, items: Sequence[Item], *, is_more_left: bool, now: datetime) -> Work[Processed]:
        sending = Sending(self._intake.delivery.lease, self._intake.delivery.limits)
        processed = inbound.process(items, sending=sending, now=now)
        answers = [*processed.replies, *traced(processed.accepted.answers)]
        return Work(processed, answers, is_more_left=is_more_left)

    def committed(self, decided: Processed) -> None:
        """Send the pushes that were claimed."""
        own_buckets().keep()
        self._intake.journal.clear()
        self._intake.delivery.accepted(decided.accepted.claims, decided.accepted.waiting)
        if decided.needs_keys:
            self._intake.want_keys()

    def rolled_back(self, batch: Batch) -> None:  # noqa: ARG002 - the signature of a step
        """Forget what was decided."""
        own_buckets().take_back()
        self._intake.delivery.limits.give_back()
        self._intake.journal.clear()

    def quarantine(self, error: Exception, batch: Batch) -> None:
        """Mark the envelope that was taken alone as failed. Its payload is kept, so that it can be processed again."""
        for envelope in batch.taken:
            inbound.quarantine(envelope, error, now=batch.now)

    def put_off(self, batch: Batch) -> bool:
        """Take the envelope some seconds later."""
        self._intake.put_off([envelope.hash for envelope in batch.taken])
        return True


class Inbox(InboxStep):
    """The step that takes envelopes as they come."""

    waits: LiteralString = f"{inbound.WAITING} AND received_at >= %(nothing_before)s"
    oldest: LiteralString = waits.replace("SELECT", "SELECT min(received_at)")
    announced_as = inbox.ANNOUNCED_AS

    def __init__(self, intake: "InboxIntake") -> None:
        super().__init__(intake)
        self._takes_one_alone = False

    def work(self, batch: Batch) -> Work[Processed]:
        """Process what waits. Answers and replies are handed on within the same batch."""
        suspects, later = self._intake.suspects(now=batch.now), self._intake.to_be_left()
        alone = [each for each in suspects if each not in later]
        taken = self._take(batch, alone, but=[*suspects, *later])
        batch.taken = taken.envelopes
        self._intake.took_from_inbox = bool(taken.envelopes)
        self._intake.journal.hold([envelope.hash for envelope in taken.envelopes])
        items = inbound.open_all(taken.envelopes, now=batch.now)
        chosen = self._choose(items, taken, batch)
        inbound.postpone([items[index] for index in chosen.postponed])
        has_rest = len(chosen.decided) + len(chosen.postponed) < len(items)
        is_more_left = taken.is_more_left or has_rest or bool(alone) or self._intake.priority.is_behind
        decided = [item for index, item in enumerate(items) if index in chosen.decided]
        return self._process(decided, is_more_left=is_more_left, now=batch.now)

    def _take(self, batch: Batch, alone: Collection[bytes], *, but: Collection[bytes]) -> Taken:
        """Take envelopes, and care for those that processes died with, which are to be taken ``alone``.

        After two deaths an envelope is taken alone, in every other batch, so that it neither takes neighbours with it
        nor makes all others wait. When a process dies with it then, it is given up.
        """
        if not batch.is_part:  # else what the batch tripped over would not be in it
            self._takes_one_alone = not self._takes_one_alone
        self._takes_one_alone &= bool(alone)
        if self._takes_one_alone:
            return inbound.take_one_of(alone)
        is_newest_first = self._intake.priority.is_behind and not batch.is_part
        return inbound.take(batch.limit, batch.nothing_before, but=but, is_newest_first=is_newest_first)

    def _choose(self, items: Sequence[Item], taken: Taken, batch: Batch) -> Chosen:
        """Choose what is decided in this batch: everything, while it fits and the inbox keeps up.

        A part of a batch is small by itself, and its envelopes may have waited for a lock. So it says nothing about
        the inbox.
        """
        costs = [cost(item.decoded) for item in items]
        waited = max((batch.now - envelope.received_at for envelope in taken.envelopes), default=timedelta())
        is_full = taken.is_more_left and not batch.is_part
        if self._intake.priority.decides_all(costs, is_full=is_full, waited=waited):
            return Chosen(set(range(len(items))), set())
        names = list(_named_by_news(items))
        found = find_proven_addresses({name for each in names for name in each})
        return self._intake.priority.choose(costs, [[found[name] for name in each if name in found] for each in names])


def _named_by_news(items: Sequence[Item]) -> Iterator[list[Named]]:
    """Yield what each message is about, and nothing for a repeated request: whoever recorded one may send it again."""
    seen = find_repeats(BRIDGE, [item.decoded.message_id for item in items if item.decoded])
    for decoded in (item.decoded for item in items):
        yield [] if decoded and decoded.message_id in seen else named(decoded)
        seen |= {decoded.message_id} if decoded else set()


class Postponed(InboxStep):
    """The step that decides about what was postponed, once the inbox keeps up."""

    waits: LiteralString = f"SELECT FROM waku_bridge_inboundenvelope_under_way WHERE state = '{State.POSTPONED}'"

    def work(self, batch: Batch) -> Work[Processed]:
        """Process as much as the share of a batch allows. It is looked for again within a second of a busy batch."""
        if self._intake.priority.is_behind:
            return Work(Processed())
        self._intake.suspects(now=batch.now)
        units = SHARE if self._intake.took_from_inbox else SHARE_OF_IDLE
        self._intake.took_from_inbox = False  # the next batch may not look into the inbox
        taken = inbound.take_postponed(min(batch.limit, units), but=self._intake.to_be_left())
        batch.taken = taken.envelopes
        self._intake.journal.add([envelope.hash for envelope in taken.envelopes])
        items = inbound.open_all(taken.envelopes, now=batch.now)
        chosen = set(cheapest([cost(item.decoded) for item in items], range(len(items)), units=units))
        decided = [item for index, item in enumerate(items) if index in chosen]
        is_more_left = taken.is_more_left or len(chosen) < len(items)
        return self._process(decided, is_more_left=is_more_left, now=batch.now)


class InboxIntake:
    """What the steps of a process share.

    ``want_keys`` is called when envelopes wait for keys. In ``hands`` the process notes what it works on, so that
    others learn what it died with.
    """

    def __init__(self, delivery: Delivery, want_keys: Callable[[], None], journal: InFlightJournal) -> None:
        self.delivery = delivery
        self.want_keys = want_keys
        self.journal = journal
        self.took_from_inbox = False  # in this batch, before what was postponed
        self.priority = Priority(settings.ROUTE_LIMITS[:1], lambda: own_share().part)
        self._crash_reports = CrashReports(journal.path.parent)
        self._put_off: dict[bytes, tuple[float, float]] = {}  # until when (monotonic), and for how many seconds

    def steps(self) -> list[Step]:
        """Return new steps, in their order in a batch."""
        return [Inbox(self), Postponed(self)]

    def put_off(self, envelope_hashes: Collection[bytes]) -> None:
        """Leave these envelopes for a while."""
        for each in envelope_hashes:
            _, last = self._put_off.get(each, (0.0, PUT_OFF_SECONDS / 2))
            seconds = min(2 * last, MAX_PUT_OFF_SECONDS)
            self._put_off[each] = (monotonic() + seconds, seconds)

    def to_be_left(self) -> Collection[bytes]:
        """Return the envelopes that were put off a moment ago."""
        now = monotonic()
        if self._put_off:  # who was not put off again by then is through
            self._put_off = {each: of for each, of in self._put_off.items() if of[0] + MAX_PUT_OFF_SECONDS > now}
        return [each for each, (until, _) in self._put_off.items() if until > now]

    def suspects(self, *, now: datetime) -> list[bytes]:
        """Return the envelopes that wait and must be taken alone, which `Inbox` does. Those that killed another process
        then are given up.
        """
        crashes = self._crash_reports.count()
        if not crashes:
            return []
        found = inbound.still_waiting(crashes.keys())
        self._crash_reports.forget(crashes.keys() - found.keys())
        waiting = [each for each, can_be_taken in found.items() if can_be_taken]
        inbound.give_up([each for each in waiting if crashes[each] > CRASHES_BEFORE_ALONE], now=now)
        suspects = [each for each in waiting if crashes[each] == CRASHES_BEFORE_ALONE]
        inbound.recall(suspects)
        return suspects
