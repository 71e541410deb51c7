"""The two lanes of the inbox, as stages of a turn.

    received ──opened──┬──▶ decided                                      (`Inbox`)
                       └──▶ postponed ──opened again──┬──▶ decided       (`Postponed`)
                                                      └──▶ dropped: more than MAX_POSTPONED_ENVELOPES wait

Nothing is postponed while the inbox keeps up. When it does not, `precedence` says who goes first. What was postponed is
worked off once it keeps up again, in half of the time, and what came last comes first: its sender may still be waiting.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from time import monotonic
from typing import LiteralString

import structlog
from django.conf import settings

from kit.buckets.share import own_share
from kit.buckets.shared import own_buckets
from kit.db.statements import fetch
from kit.hands import Hands, LeftBehind
from kit.metrics.batches import count
from kit.turns import BaseStage, Batch, Stage, Work
from notifications.acceptance import Sending
from notifications.delivery.desk import Delivery, traced
from notifications.standing import find_addresses
from waku_bridge import inbound
from waku_bridge.inbound import Envelope, Item, Processed, Taken
from waku_bridge.metrics import ENVELOPES_PROCESSED
from waku_bridge.precedence import LEAST_UNITS, UNITS, Room, cost, named

log = structlog.get_logger(__name__)

# The inbox keeps up while nothing has waited for longer than this.
PATIENCE = timedelta(milliseconds=250)
# Once something has waited for longer than this, strangers get as little as they ever do.
NO_PATIENCE = timedelta(milliseconds=500)
# While the inbox does not keep up, it is looked so often whether it does again.
PAUSE_SECONDS = 0.2
# An envelope that so many processes died with is taken alone the next time.
DEATHS_BEFORE_ALONE = 2
# What was postponed is opened again for so many envelopes at a time.
POSTPONED_LIMIT = 20
# How often it is looked whether more is postponed than may be, and how many are dropped in one go.
SHED_EVERY_SECONDS = 5.0
MOST_SHED = 2000
OVERLOAD = "overload"


class Lane(BaseStage):
    """What both lanes do with the envelopes they take."""

    def __init__(self, desk: "IntakeDesk") -> None:
        self._desk = desk

    def _process(self, items: Sequence[Item], *, now: datetime) -> Work[Processed]:
        sending = Sending(self._desk.delivery.lease, self._desk.delivery.limits)
        processed = inbound.process(items, sending=sending, now=now)
        return Work(processed, [*processed.replies, *traced(processed.accepted.answers)])

    def committed(self, decided: Processed) -> None:
        """Send the pushes that were claimed."""
        own_buckets().keep()
        self._desk.end()
        self._desk.delivery.accepted(decided.accepted.claims, decided.accepted.waiting)
        if decided.needs_keys:
            self._desk.want_keys()

    def undone(self, batch: Batch) -> None:  # noqa: ARG002 - the signature of a stage
        """Forget what was decided."""
        own_buckets().take_back()
        self._desk.delivery.limits.give_back()
        self._desk.end()

    def set_aside(self, error: Exception, batch: Batch) -> None:
        """Mark the envelope that was taken alone as failed. Its payload is kept, so that it can be processed again."""
        for envelope in batch.taken:
            inbound.set_aside(envelope, error, now=batch.now)


class Inbox(Lane):
    """The stage that takes envelopes as they come."""

    waits: LiteralString = "SELECT FROM waku_bridge_inboundenvelope WHERE state = 'received'"
    announced_as = "inbox"

    def __init__(self, desk: "IntakeDesk") -> None:
        super().__init__(desk)
        self._takes_one_alone = False

    def work(self, batch: Batch) -> Work[Processed]:
        """Process what waits. Answers and replies are handed on within the same turn."""
        now = batch.now
        taken = self._take(batch.limit, now=now)
        batch.taken = taken.envelopes
        self._desk.hands.hold([envelope.hash for envelope in taken.envelopes])
        items = inbound.open_all(taken.envelopes, now=now)
        chosen = _choose(items, self._desk.room, now=now)
        _postpone([item for place, item in enumerate(items) if place not in chosen])
        work = self._process([item for place, item in enumerate(items) if place in chosen], now=now)
        return replace(work, is_more_left=taken.is_more_left)

    def _take(self, limit: int, *, now: datetime) -> Taken:
        """Take envelopes, and care for those that processes died with.

        After two deaths an envelope is taken alone, every other turn, so that it neither takes neighbours with it nor
        makes all others wait. When a process dies with it then, it is given up.
        """
        suspects = self._desk.suspects(now=now)
        if not suspects:
            return inbound.take(limit)
        self._takes_one_alone = not self._takes_one_alone
        if self._takes_one_alone:
            return inbound.take_one_of(suspects)._replace(is_more_left=True)
        return inbound.take_all_but(suspects, limit)._replace(is_more_left=True)


class Postponed(Lane):
    """The stage that works off what was postponed, in half of the time."""

    waits: LiteralString = "SELECT FROM waku_bridge_inboundenvelope WHERE state = 'postponed'"

    def __init__(self, desk: "IntakeDesk") -> None:
        super().__init__(desk)
        self._next_at: float | None = None
        self._shed_at = 0.0

    def next_at(self) -> float | None:
        return self._next_at

    def work(self, batch: Batch) -> Work[Processed]:
        """Process some of what was postponed. It is never more than is left: the next ones have their time."""
        started, now = monotonic(), batch.now
        if self._next_at is not None and started < self._next_at:
            return Work(Processed())
        self._shed(now=now)
        if self._desk.room.is_short:
            self._next_at = started + PAUSE_SECONDS
            return Work(Processed())
        _recall(self._desk.suspects(now=now))
        most = min(batch.limit, POSTPONED_LIMIT)
        batch.taken = [Envelope._make(columns) for columns in fetch(_TAKE_POSTPONED, {"limit": most})]
        self._desk.hands.hold_also([envelope.hash for envelope in batch.taken])
        items = inbound.open_all(batch.taken, now=now)
        chosen = self._desk.room.choose([cost(item.decoded) for item in items], [()] * len(items))
        work = self._process([item for place, item in enumerate(items) if place in chosen], now=now)
        is_more_left = len(batch.taken) == most or len(chosen) < len(items)
        self._next_at = monotonic() + (monotonic() - started) if is_more_left else None
        return work

    def undone(self, batch: Batch) -> None:
        super().undone(batch)
        self._next_at = None

    def _shed(self, *, now: datetime) -> None:
        """Drop what was postponed first, if more waits than may."""
        if monotonic() < self._shed_at:
            return
        self._shed_at = monotonic() + SHED_EVERY_SECONDS
        most = settings.MAX_POSTPONED_ENVELOPES
        if dropped := len(fetch(_SHED, {"now": now, "most": most, "limit": MOST_SHED, "reason": OVERLOAD})):
            log.warning("envelopes_dropped", reason=OVERLOAD, count=dropped)
            count(ENVELOPES_PROCESSED, {("unknown", OVERLOAD): dropped})


class IntakeDesk:
    """What the lanes of a process share.

    ``want_keys`` is called when envelopes wait for keys. In ``hands`` the process notes what it works on, so that
    others learn what it died with.
    """

    def __init__(self, delivery: Delivery, want_keys: Callable[[], None], hands: Hands) -> None:
        self.delivery = delivery
        self.want_keys = want_keys
        self.hands = hands
        self.room = Room(settings.ROUTE_LIMITS[:1], lambda: own_share().part)
        self._left_behind = LeftBehind(hands.path.parent)

    def lanes(self) -> list[Stage]:
        """Return new lanes, in the order in which a turn works them off."""
        return [Inbox(self), Postponed(self)]

    def end(self) -> None:
        """Note that the turn is over."""
        self.hands.let_go()
        self.room.begin()

    def suspects(self, *, now: datetime) -> list[bytes]:
        """Return the envelopes that wait and must be taken alone. Those that killed another process then are given
        up.
        """
        deaths = self._left_behind.count()
        if not deaths:
            return []
        waiting = inbound.still_waiting(deaths.keys())
        self._left_behind.forget(deaths.keys() - waiting)
        inbound.give_up([each for each in waiting if deaths[each] > DEATHS_BEFORE_ALONE], now=now)
        return [each for each in waiting if deaths[each] == DEATHS_BEFORE_ALONE]


_TAKE_POSTPONED = """
    SELECT hash, pubsub_topic, content_topic, coalesce(payload, '') AS payload, received_at
    FROM waku_bridge_inboundenvelope WHERE state = 'postponed'
    ORDER BY received_at DESC LIMIT %(limit)s FOR UPDATE SKIP LOCKED
"""
_POSTPONE = "UPDATE waku_bridge_inboundenvelope SET state = 'postponed' WHERE hash = ANY (%b::bytea[])"
_RECALL = """
    UPDATE waku_bridge_inboundenvelope SET state = 'received' WHERE hash = ANY (%b::bytea[]) AND state = 'postponed'
"""
# The oldest that may stay is found in the index alone, and nothing that stays is locked.
_SHED = """
    UPDATE waku_bridge_inboundenvelope
    SET state = 'dropped', reason = %(reason)s, payload = NULL, processed_at = %(now)s
    WHERE hash IN (
        SELECT hash FROM waku_bridge_inboundenvelope
        WHERE state = 'postponed' AND received_at <= (
            SELECT received_at FROM waku_bridge_inboundenvelope
            WHERE state = 'postponed' ORDER BY received_at DESC OFFSET %(most)s LIMIT 1
        )
        ORDER BY received_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    )
    RETURNING hash
"""


def _choose(items: Sequence[Item], room: Room, *, now: datetime) -> Collection[int]:
    """Return the places of the envelopes that are decided in this turn: all, while the inbox keeps up."""
    costs = [cost(item.decoded) for item in items]
    oldest = min((item.envelope.received_at for item in items), default=now)
    waited = now - oldest
    if room.has(costs) or waited < PATIENCE:
        room.take(costs)
        return range(len(items))
    names = [named(item.decoded) for item in items]
    found = find_addresses({name for each in names for name in each})
    addresses = [[found[name] for name in each if name in found] for each in names]
    return room.choose(costs, addresses, units=UNITS if waited < NO_PATIENCE else LEAST_UNITS)


def _postpone(items: Sequence[Item]) -> None:
    if items:
        fetch(_POSTPONE, [[item.hash for item in items]])


def _recall(suspects: Sequence[bytes]) -> None:
    """Have envelopes that must be taken alone taken by the other lane, which does so."""
    if suspects:
        fetch(_RECALL, [suspects])
