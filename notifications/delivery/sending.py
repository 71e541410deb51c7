"""Sending what was claimed, all at once, with the results handed out as they come."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from queue import Empty, SimpleQueue
from threading import Lock
from time import monotonic

import structlog

from notifications.connections import submit
from notifications.delivery.claim import Claim
from notifications.delivery.lanes import Lanes
from notifications.gateways.interface import Gateway
from notifications.messages import Outcome, Result
from notifications.policy import FAULTS, find_fault

log = structlog.get_logger(__name__)

# Results that come in within this time are recorded together. A transaction for a few of them costs several times their
# POSTs, and a reply that is this much later is still in time.
RECORDING_PAUSE_SECONDS = 0.05
USABLE_PART_OF_LEASE = 0.9  # the rest is for recording

Done = tuple[Claim, Result]
Put = Callable[[list[Done]], None]


class Flight:
    """The pushes of one task on their way. Whoever waits for them may hand the rest of it over to somebody else."""

    def __init__(self, claims: Sequence[Claim], gateway: Gateway, *, lease: timedelta, lanes: Lanes) -> None:
        self._gateway = gateway
        self._timeout_seconds = lease.total_seconds() * USABLE_PART_OF_LEASE
        self._lanes = lanes
        self._arrived: SimpleQueue[list[Done]] = SimpleQueue()
        self._handful: list[Done] = []  # touched by the loop only
        self._lock = Lock()
        # Guarded by the lock: what has not been handed out yet, where results go, and which are late.
        self._under_way = {claim.attempt_id: claim for claim in claims}
        self._put: Put = self._arrived.put
        self._overdue: frozenset[int] = frozenset()
        self._expected = len(claims)
        submit(self._send_all(claims))

    def results(self, *, until: float) -> Iterator[list[Done]]:
        """What comes in by then (monotonic), in handfuls worth a write."""
        while self._expected:
            try:
                handful = self._arrived.get(timeout=max(until - monotonic(), 0))
            except Empty:
                return
            while not self._arrived.empty():  # came in while the last one was recorded
                handful += self._arrived.get()
            self._expected -= len(handful)
            yield handful

    def hand_over(self, put: Put, *, as_overdue: bool) -> None:
        """From now on results go to ``put``. ``as_overdue`` makes their lanes slow until the last of them is in."""
        with self._lock:
            while not self._arrived.empty():
                put(self._arrived.get())
            self._put = put
            if as_overdue:
                self._overdue = frozenset(self._under_way)
                self._lanes.mark_overdue([claim.lane for claim in self._under_way.values()])

    async def _send_all(self, claims: Sequence[Claim]) -> None:
        sending = [asyncio.create_task(self._send_one(claim)) for claim in claims]
        # One timer for all of them. The client's own starts over with every byte that trickles in.
        _, endless = await asyncio.wait(sending, timeout=self._timeout_seconds)
        for task in endless:
            task.cancel()
        await asyncio.gather(*endless)
        self._hand_out()

    async def _send_one(self, claim: Claim) -> None:
        self._note(claim, await self._try(claim))

    async def _try(self, claim: Claim) -> Result:
        if fault := find_fault(claim.push):
            return Result(FAULTS[fault], fault)
        try:
            return await self._gateway.send(claim.push)
        except asyncio.CancelledError:
            return Result(Outcome.AMBIGUOUS, "timeout")
        except Exception as error:  # noqa: BLE001 - a fault of ours must not leave anybody waiting for a result
            log.warning("gateway_failed", gateway=self._gateway.name, error=type(error).__name__)
            return Result(Outcome.AMBIGUOUS, "gateway_failed")

    def _note(self, claim: Claim, result: Result) -> None:
        """Whoever records is not woken for each: that costs more than the result."""
        if not self._handful:
            asyncio.get_running_loop().call_later(RECORDING_PAUSE_SECONDS, self._hand_out)
        self._handful.append((claim, result))

    def _hand_out(self) -> None:
        handful, self._handful = self._handful, []
        if not handful:
            return
        with self._lock:
            ended = [self._under_way.pop(claim.attempt_id) for claim, _ in handful]
            overdue = [claim.lane for claim in ended if claim.attempt_id in self._overdue]
            self._lanes.leave([claim.lane for claim in ended], overdue=overdue)
            self._put(handful)
