"""Delivery in one worker process: its pushes under way, and the steps of delivery in a batch.

Pushes are sent on the event loop of the process. A batch never waits for one.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from math import inf
from time import monotonic, time_ns
from typing import LiteralString

import structlog
from django.conf import settings

from kit.batches.batch import LONG_AGO, Batch, Step, Wakeup, Work, wake_peers
from kit.batches.inflight import InFlight
from kit.db.clock import clock
from kit.telemetry import Role, count, note, step
from notifications.delivery import recording, settling
from notifications.delivery.silence import FirstAttempts, began
from notifications.gateways import Gateway
from notifications.messages import FAILURES, TIMEOUT, Answer, Outcome, Result
from notifications.metrics import LEFT_BEHIND
from notifications.policy import GATEWAY_FAILED
from notifications.queues import queues
from notifications.queues.capacity import UNCOUNTED, ConcurrencyLimits, Counts, Part
from notifications.queues.claim import Claim, Claimed, Done, claim, close_expired, postpone
from notifications.reports import GRACE, Request

log = structlog.get_logger(__name__)

# A result waits this long for other results of the same process.
GATHERING_SECONDS = 0.1
# Two batches of pushes within this time count as traffic.
QUIET_SECONDS = 0.3
USABLE_PART_OF_LEASE = 0.9  # the rest is for recording


class Delivery(InFlight[Done | Request]):
    """The state that the steps of a process share: its pushes under way, their limits, and when answers are due.

    Each claim is sent through the gateway of its route, and results are kept until a batch has recorded them. Silences
    are among the sends, so that batches take the ends of silences just as they take results. The end of a silence is
    the request that waited for it.
    """

    def __init__(self, gateway_for: Callable[[str], Gateway], wakeup: Wakeup) -> None:
        super().__init__(wakeup)
        self._gateway_for = gateway_for
        self.limits = ConcurrencyLimits()
        self._first_attempts = FirstAttempts()
        self._silent: list[Request] = []  # whose silence has not begun
        # By deadline, the ids of the requests that this process has stored and nobody may have answered yet.
        self.due: defaultdict[datetime, set[int]] = defaultdict(set)
        self.recording_seconds = 0.0  # the time that it took to record the last result which came alone
        self._sent_at = self._sent_before = float("-inf")  # monotonic; when the last two batches of pushes were sent

    def steps(self) -> list[Step]:
        """Return the steps of delivery, in the order in which a batch runs them.

        The steps that wait for locks on rows come before those that skip locked rows. In the other order, a process
        that holds notifications and waits for a route could dead-lock with one that holds the route and waits for the
        notifications.
        """
        return [Results(self), Deadlines(self), Expired(), Due(self), Counting()]

    def accepted(self, claims: Sequence[Claim], requests: Sequence[Request]) -> None:
        """Send the claims of new requests and add the waiting requests, after the commit that stored them."""
        for request in requests:
            self.due[request.reply_due_at].add(request.id)
        self._silent += [request for request in requests if request.silent_queues]
        self.send(claims)
        queues.create({claim.queue for claim in claims if claim.slot.queue_id == queues.UNSORTED})
        self.leave_to_others()

    def answered(self, requests: Iterable[Request]) -> None:
        """Forget when the answers to these requests were due."""
        for request in requests:
            ids = self.due.get(request.reply_due_at, set())
            ids.discard(request.id)
            if not ids:
                self.due.pop(request.reply_due_at, None)

    def leave_to_others(self) -> None:
        """Wake the other processes for the pushes that this one cannot send, as it does not reach their gateway."""
        if self.limits.reach:
            wake_peers()

    def send(self, claims: Sequence[Claim]) -> None:
        """Start sending claims after the commit that wrote them, and begin silences.

        A full queue holds up a silence while pushes wait there: its push would have gone out only then. Without a known
        attempt that a silence could last as long as, it lasts until the answer is due.
        """
        self.limits.keep()
        waiting = [request for request in self._silent if request.id in self.due.get(request.reply_due_at, ())]
        self._silent = [request for request in waiting if self.limits.are_crowded(request.full_queue_ids)]
        silent = [request for request in waiting if not self.limits.are_crowded(request.full_queue_ids)]
        self._first_attempts.learn([queue for request in silent for queue in request.silent_queues])
        timed = [request for request in silent if self._first_attempts.know(request.silent_queues)]
        if claims or timed:
            self._sent_before, self._sent_at = self._sent_at, monotonic()
            self.refresh_gateways(claims)
            pushes = [partial(self._push, claim) for claim in claims]
            now = monotonic()
            since = [now if request.full_queue_ids else began(request.received_at) for request in timed]
            silences = [partial(self._be_silent, *each) for each in zip(timed, since, strict=True)]
            self.start([*pushes, *silences])

    def refresh_gateways(self, claims: Iterable[Claim]) -> None:
        """Let the gateways of these claims read and write their own data, before sending and after it.

        A gateway that fails to do so keeps no push from being sent, not even its own.
        """
        for name in {each.gateway for each in claims}:
            try:
                self._gateway_for(name).refresh(now=clock.now())
            except Exception as error:  # noqa: BLE001 - the claims are committed, so they have to be sent
                log.error("gateway_not_refreshed", gateway=name, error=type(error).__name__)  # noqa: TRY400

    def next_result_at(self) -> float | None:
        """Return when a batch should record the results so far (monotonic), or None while there are none.

        While there is traffic, results wait a moment for each other and for new requests, because a commit costs more
        than a push. The last result before a quiet time does not wait.
        """
        if not self.has_results():
            return None
        is_quiet = self.are_all_done() and self._sent_before < monotonic() - QUIET_SECONDS
        return 0.0 if is_quiet else self.first_result_at + GATHERING_SECONDS

    async def _push(self, claim: Claim) -> Done:
        began_at, started, began_ns = clock.now(), monotonic(), time_ns()
        first = self._first_attempts.begin(claim)
        result = _timed(await _try(self._gateway_for, claim), began_at)
        if first:
            self._first_attempts.end(claim, first, result)
        facts = {
            "gateway": claim.gateway,
            "attempt": claim.attempt_number,
            "outcome": result.outcome.value,
            "code": result.code,
        }
        is_error = result.outcome in FAILURES
        step("send", claim.source_key, facts, began_ns=began_ns, role=Role.CLIENT, is_error=is_error)
        self.limits.complete(claim.slot, monotonic() - started if result.outcome is Outcome.DELIVERED else inf)
        return claim, result

    async def _be_silent(self, request: Request, since: float) -> Request:
        """Wait as long as pushes would take. The end of a silence that comes alone is recorded sooner than a result."""
        try:
            async with _timeout():
                await asyncio.gather(*(self._first_attempts.wait(queue, since) for queue in request.silent_queues))
                if self.under_way == 1:
                    await asyncio.sleep(self.recording_seconds)
        except TimeoutError:
            log.info("silence_cut_off")  # the answer was due long ago
        return request


def _timeout() -> asyncio.Timeout:
    """Return a timeout that ends a send before its lease ends."""
    return asyncio.timeout(settings.DELIVERY_LEASE_SECONDS * USABLE_PART_OF_LEASE)


async def _try(gateway_for: Callable[[str], Gateway], claim: Claim) -> Result:
    try:
        gateway = gateway_for(claim.gateway)
        async with _timeout():
            return gateway.find_fault(claim) or await gateway.send(claim)
    except TimeoutError:
        return Result(Outcome.AMBIGUOUS, TIMEOUT)
    except Exception as error:  # noqa: BLE001 - a fault of ours must not leave anybody waiting for a result
        log.warning("gateway_failed", gateway=claim.gateway, error=type(error).__name__)
        return Result(Outcome.AMBIGUOUS, GATEWAY_FAILED)


def _timed(result: Result, began_at: datetime) -> Result:
    """Return a result with its times. What left no connection has no begin, so that a later push is the first."""
    is_unsent = result.is_untried or result.is_unreached
    return replace(result, began_at=None if is_unsent else result.began_at or began_at, ended_at=clock.now())


def traced(answers: Sequence[Answer]) -> Sequence[Answer]:
    """Return answers to hand on, noted in the traces of their requests."""
    note((answer.source_key, {"count": len(answer.reports)}) for answer in answers)
    return answers


class PushStep(Step):
    """The common part of both steps that take pushes, which skip locked ones."""

    def quarantine(self, error: Exception, batch: Batch) -> None:
        super().quarantine(error, batch)
        postpone(batch.taken, now=batch.now)


class Expired(PushStep):
    """Closes notifications whose time is over, also behind halts."""

    waits: LiteralString = queues.IS_EXPIRED
    oldest: LiteralString = queues.OLDEST_EXPIRY
    is_for_leader = True  # one worker is enough

    def work(self, batch: Batch) -> Work[None]:
        close_expired(batch)
        return Work(None, is_more_left=len(batch.taken) == batch.limit)


class Due(PushStep):
    """Claims what is due: retries, probes, pushes of dead workers, and those that were stored without a claim."""

    waits: LiteralString = queues.IS_DUE
    oldest: LiteralString = queues.OLDEST_DUE

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def next_at(self) -> float | None:
        return 0.0 if self._delivery.limits.has_capacity_again() else None

    def work(self, batch: Batch) -> Work[Claimed]:
        claimed = claim(batch, self._delivery.limits)
        note((each.source_key, {"attempt": each.attempt_number}) for each in claimed.claims)
        return Work(claimed, is_more_left=claimed.is_more_left)

    def committed(self, decided: Claimed) -> None:
        self._delivery.send(decided.claims)
        queues.create(decided.new_queues)

    def rolled_back(self, batch: Batch) -> None:  # noqa: ARG002 - the signature of a step
        self._delivery.limits.give_back()


class Counting(Step):
    """Counts the waiting notifications of each queue, in the leader."""

    waits: LiteralString = UNCOUNTED
    is_for_leader = True

    def __init__(self) -> None:
        self._counts = Counts()

    def work(self, batch: Batch) -> Work[Mapping[int, Part]]:
        return Work(self._counts.step(now=batch.now))

    def committed(self, decided: Mapping[int, Part]) -> None:
        self._counts.keep(decided)


Taken = Sequence[Done | Request]  # results, and requests whose silence has ended


class Results(Step):
    """Records the results of the gateways, and answers the requests whose last result is among them."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def next_at(self) -> float | None:
        return self._delivery.next_result_at()

    def is_under_way(self) -> bool:
        return self._delivery.under_way > 0

    def work(self, batch: Batch) -> Work[tuple[Taken, Sequence[Request]]]:
        """Decide what was taken, and which requests are answered."""
        batch.taken = taken = self._delivery.peek(batch.limit)
        results, silences = _results(taken), [each for each in taken if isinstance(each, Request)]
        locked = settling.lock([c.request_id for c, _ in results] + [silence.id for silence in silences])
        since = monotonic()
        reach = self._delivery.limits.reach
        changes = recording.record(results, reach=reach, now=batch.now) if results else []
        if len(results) == 1:
            self._delivery.recording_seconds = monotonic() - since
        requests = settling.note(locked, changes, silences)
        # An answer that fails must not cost a result, whose push would be sent again. So it waits for its deadline.
        complete = [request for request in requests if request.is_complete and batch.limit > 1]
        settling.keep(set(requests) - {*locked, *complete})
        answers = settling.answer(complete, now=batch.now)
        _trace(results, answers)
        return Work((taken, complete), answers, is_more_left=len(taken) == batch.limit)

    def committed(self, decided: tuple[Taken, Sequence[Request]]) -> None:
        taken, answered = decided
        results = _results(taken)
        self._delivery.recorded(len(taken))
        self._delivery.answered(answered)
        recording.end_halts(results, now=clock.now())
        self._delivery.refresh_gateways(claim for claim, _ in results)
        self._delivery.leave_to_others()

    def quarantine(self, error: Exception, batch: Batch) -> None:
        """Drop a result that cannot be stored. Its push counts as lost when its lease ends."""
        log.error("result_not_stored", error=type(error).__name__)
        self._delivery.recorded(len(batch.taken))

    def again(self, batch: Batch) -> None:
        """Record the result some seconds later."""
        self._delivery.again(len(batch.taken))


def _trace(results: Iterable[Done], answers: Iterable[Answer]) -> None:
    """Note results, and the answers that follow from them, in the traces of their requests."""
    notes: dict[bytes, dict[str, object]] = {c.source_key: {"outcome": r.outcome.value} for c, r in results}
    for answer in answers:
        notes.setdefault(answer.source_key, {})["count"] = len(answer.reports)
    note(notes.items())


def _results(taken: Taken) -> list[Done]:
    """Return the results of pushes among what a batch took."""
    return [each for each in taken if not isinstance(each, Request)]


class Deadlines(Step):
    """Answers requests that are due, with the results so far. A process keeps the times of the requests that it has
    stored, and answers at once. What another process left due is found a little later.
    """

    oldest: LiteralString = settling.OVERDUE

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def next_at(self) -> float | None:
        due_at = min(self._delivery.due, default=None)
        return None if due_at is None else monotonic() + (due_at - clock.now()).total_seconds()

    def is_under_way(self) -> bool:
        return bool(self._delivery.due)

    def work(self, batch: Batch) -> Work[datetime]:
        """Decide until when all is answered."""
        due = settling.take_due(batch)
        is_more_left = len(due) == batch.limit
        count(LEFT_BEHIND, {("requests",): sum(each.reply_due_at <= batch.now - GRACE for each in due)})
        answers = traced(settling.answer(due, now=batch.now))
        return Work(LONG_AGO if is_more_left else batch.now, answers, is_more_left=is_more_left)

    def committed(self, decided: datetime) -> None:
        """Forget the answers that were due until then. What others had locked is left to them."""
        for at in [at for at in self._delivery.due if at <= decided]:
            del self._delivery.due[at]

    def quarantine(self, error: Exception, batch: Batch) -> None:
        """Close the request without an answer. The sender repeats it."""
        super().quarantine(error, batch)
        settling.answer(settling.lock(request.id for request in batch.taken), now=batch.now)
