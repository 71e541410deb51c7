"""What one worker process knows about delivery, and the stages of delivery in a turn."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from time import monotonic
from typing import LiteralString, Protocol

import structlog

from kit.db.clock import clock
from kit.metrics import batches
from kit.tracing.steps import note
from kit.turns import BaseStage, Bell, Stage
from notifications import queues
from notifications.admission import COUNTED_EVERY_SECONDS, Counts, Part
from notifications.delivery import recording, settling
from notifications.delivery.claim import Claim, Claimed, claim, postpone_first
from notifications.delivery.concurrency import ConcurrencyLimits
from notifications.delivery.flights import Done, Flights
from notifications.delivery.settling import WaitingRequest, WaitingRequests, answer_ended, settle
from notifications.gateways.interface import Gateway
from notifications.messages import Answer
from notifications.metrics import FINISHED, LEFT_BEHIND
from notifications.models import Notification

log = structlog.get_logger(__name__)


class TakesAnswers(Protocol):
    """The part of a front door that delivery knows."""

    def answer(self, answers: Sequence[Answer], *, now: datetime) -> None:
        """Take answers to requests of this front door, in the turn that decided them."""
        ...


class Delivery:
    """What the stages of a process share: pushes under way, their limits, and requests that wait for an answer."""

    def __init__(
        self, gateway_for: Callable[[str], Gateway], bell: Bell, *, lease: timedelta, limits: ConcurrencyLimits
    ) -> None:
        self.lease = lease
        self.limits = limits
        self.flights = Flights(gateway_for, bell, self.limits, lease=lease)
        self.waiting = WaitingRequests()
        self.front_doors: Mapping[str, TakesAnswers] = {}

    def accepted(self, claims: Sequence[Claim], requests: Sequence[WaitingRequest]) -> None:
        """Send the claims of new requests and remember what waits, after the commit that stored them."""
        self.limits.keep()
        self.flights.send(claims)
        self.waiting.add(requests)
        queues.create({claim.queue for claim in claims if claim.slot.queue_id == queues.UNSORTED})

    def answer(self, answers: Sequence[Answer], *, now: datetime) -> None:
        """Hand answers to the front doors that took their requests."""
        note((answer.source_key, {"count": len(answer.reports)}) for answer in answers)
        for name, door in self.front_doors.items():
            own = [answer for answer in answers if answer.front_door == name]
            if own:
                door.answer(own, now=now)

    def stages(self) -> list[Stage]:
        """Return the stages of delivery, in the order in which a turn makes them.

        The stages that wait for locks on rows come before those that skip locked rows. A process that holds
        notifications and waits for a route could otherwise dead-lock with one that holds the route and waits for the
        notifications.
        """
        return [Results(self), Settling(self), Overdue(self), Lost(), Expired(), Due(self), Counting()]


class Lost(BaseStage):
    """Takes up what a dead worker left: its pushes are ambiguous, and due again."""

    waits: LiteralString = recording.LOST

    def work(self, limit: int, *, now: datetime) -> bool:
        count = recording.take_up_lost(now=now, limit=limit)
        batches.count(LEFT_BEHIND, {("pushes",): count})
        return count == limit

    def set_aside(self, error: Exception, *, now: datetime) -> None:
        """Put off the push that cannot be taken up, so that it does not stop the others that were lost."""
        super().set_aside(error, now=now)
        recording.postpone_first_lost(now=now)


class Expired(BaseStage):
    """Closes what expired while it waited, also behind a halt, where nothing else looks at it."""

    waits: LiteralString = queues.EXPIRED

    def work(self, limit: int, *, now: datetime) -> bool:
        count = queues.close_expired(limit=limit, now=now)
        batches.count(FINISHED, {(Notification.State.EXPIRED,): count})
        return count == limit


class Due(BaseStage):
    """Claims what is due: retries, and notifications that found no room when they were accepted."""

    waits: LiteralString = queues.IS_DUE

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._claimed = Claimed()

    def next_at(self) -> float | None:
        return 0.0 if self._delivery.limits.has_room_again() else None

    def work(self, limit: int, *, now: datetime) -> bool:
        self._claimed = claim(
            limit=limit,
            now=now,
            lease=self._delivery.lease,
            limits=self._delivery.limits,
        )
        note((each.source_key, {"attempt": each.push.attempt_number}) for each in self._claimed.claims)
        return self._claimed.is_more_left

    def committed(self) -> None:
        claimed, self._claimed = self._claimed, Claimed()
        self._delivery.limits.keep()
        self._delivery.flights.send(claimed.claims)
        queues.create(claimed.new_queues)

    def undone(self) -> None:
        self._delivery.limits.give_back()
        self._claimed = Claimed()

    def set_aside(self, error: Exception, *, now: datetime) -> None:
        super().set_aside(error, now=now)
        postpone_first(limits=self._delivery.limits, now=now)


class Counting(BaseStage):
    """Counts what waits in each queue, in the worker on duty."""

    waits: LiteralString = "SELECT FROM notifications_queue"
    is_for_one = True

    def __init__(self) -> None:
        self._counts = Counts()
        self._parts: Mapping[int, Part] = {}
        self._next_at = float("-inf")

    def work(self, limit: int, *, now: datetime) -> bool:  # noqa: ARG002 - the signature of a stage
        if monotonic() >= self._next_at:
            self._parts = self._counts.step(now=now)
        return False

    def committed(self) -> None:
        if monotonic() >= self._next_at:
            self._counts.keep(self._parts)
            self._next_at = monotonic() + COUNTED_EVERY_SECONDS


class Results(BaseStage):
    """Records what the gateways answered."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._results: list[Done] = []

    def next_at(self) -> float | None:
        return self._delivery.flights.next_result_at()

    def is_under_way(self) -> bool:
        return self._delivery.flights.under_way > 0

    def work(self, limit: int, *, now: datetime) -> bool:
        self._results = self._delivery.flights.peek(limit)
        note((claim.source_key, {"outcome": result.outcome.value}) for claim, result in self._results)
        # A request whose last result this is can then be answered in the same commit.
        self._delivery.waiting.note(recording.record(self._results, now=now))
        return False

    def committed(self) -> None:
        results, now = self._results, clock.now()
        self._drop_results()
        recording.end_halts(results, now=now)
        self._delivery.flights.refresh_gateways(claim for claim, _ in results)

    def undone(self) -> None:
        self._doubt()
        self._results = []

    def set_aside(self, error: Exception, *, now: datetime) -> None:  # noqa: ARG002 - the signature of a stage
        """Drop a result that cannot be stored. Its push counts as lost when its lease ends."""
        log.error("result_not_stored", error=type(error).__name__)
        self._results = self._delivery.flights.peek(1)
        self._doubt()
        self._drop_results()

    def _doubt(self) -> None:
        self._delivery.waiting.doubt(claim.request_id for claim, _ in self._results)

    def _drop_results(self) -> None:
        self._delivery.flights.recorded(len(self._results))
        self._results = []


class Settling(BaseStage):
    """Answers the requests of this process: those whose results are known, and those that are due."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._answered: list[int] = []

    def next_at(self) -> float | None:
        waiting = self._delivery.waiting
        if waiting.has_ready():
            return 0.0
        due_at = waiting.next_due_at()
        return None if due_at is None else monotonic() + (due_at - clock.now()).total_seconds()

    def is_under_way(self) -> bool:
        return self._delivery.waiting.next_due_at() is not None

    def work(self, limit: int, *, now: datetime) -> bool:
        ready = self._delivery.waiting.ready(limit)
        overdue = self._delivery.waiting.overdue(limit, now=now)
        open_ids = [request.request_id for request in (*overdue, *ready) if request.positions or request.is_open]
        ended = [request for request in ready if not request.is_open]
        answers = answer_ended(ended, now=now) + (settle(open_ids, now=now) if open_ids else [])
        self._answered = [request.request_id for request in (*ready, *overdue)]
        self._delivery.answer(answers, now=now)
        return False

    def committed(self) -> None:
        self._delivery.waiting.forget(self._answered)
        self._answered = []

    def undone(self) -> None:
        self._answered = []

    def set_aside(self, error: Exception, *, now: datetime) -> None:
        """Forget the request, so that the stage that looks for overdue requests takes it up."""
        super().set_aside(error, now=now)
        waiting = self._delivery.waiting
        waiting.forget([request.request_id for request in (*waiting.ready(1), *waiting.overdue(1, now=now))])


class Overdue(BaseStage):
    """Answers requests that the worker which accepted them did not answer."""

    waits: LiteralString = settling.OVERDUE

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def work(self, limit: int, *, now: datetime) -> bool:
        ids = settling.overdue_request_ids(now=now, limit=limit)
        batches.count(LEFT_BEHIND, {("requests",): len(ids)})
        self._delivery.answer(settle(ids, now=now), now=now)
        return len(ids) == limit

    def set_aside(self, error: Exception, *, now: datetime) -> None:
        """Close the request without an answer. The sender repeats it."""
        super().set_aside(error, now=now)
        settling.give_up(settling.overdue_request_ids(now=now, limit=1), now=now)
