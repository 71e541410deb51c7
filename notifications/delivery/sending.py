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

# Results that come in within this time are recorded together.
RECORDING_PAUSE_SECONDS = 0.01
USABLE_PART_OF_LEASE = 0.9  # the rest is for recording

Done = tuple[Claim, Result]


class Flight:
    """The pushes of one task on their way. Whoever waits for them may hand the rest of it over to somebody else."""

    def __init__(self, claims: Sequence[Claim], gateway: Gateway, *, lease: timedelta, lanes: Lanes) -> None:
        self._gateway = gateway
        self._timeout_seconds = lease.total_seconds() * USABLE_PART_OF_LEASE
        self._lanes = lanes
        self._arrived: SimpleQueue[Done] = SimpleQueue()
        self._lock = Lock()
        # Guarded by the lock: what has no result yet, where results go, and which are late.
        self._under_way = {claim.attempt_id: claim for claim in claims}
        self._put: Callable[[Done], None] = self._arrived.put
        self._overdue: frozenset[int] = frozenset()
        self._expected = len(claims)
        submit(self._send_all(claims))

    def results(self, *, until: float) -> Iterator[list[Done]]:
        """What comes in by then (monotonic), in handfuls worth a write."""
        while self._expected:
            handful = _take_handful(self._arrived, self._expected, until)
            if not handful:
                return
            self._expected -= len(handful)
            yield handful

    def hand_over(self, put: Callable[[Done], None], *, as_overdue: bool) -> None:
        """From now on results go to ``put``. ``as_overdue`` makes their channels slow until the last of them is in."""
        with self._lock:
            while not self._arrived.empty():
                put(self._arrived.get())
            self._put = put
            if as_overdue:
                self._overdue = frozenset(self._under_way)
                self._lanes.mark_overdue([claim.channel for claim in self._under_way.values()])

    async def _send_all(self, claims: Sequence[Claim]) -> None:
        await asyncio.gather(*map(self._send_one, claims))

    async def _send_one(self, claim: Claim) -> None:
        result = await self._try(claim)
        with self._lock:
            del self._under_way[claim.attempt_id]
            self._lanes.leave(claim.channel, was_overdue=claim.attempt_id in self._overdue)
            self._put((claim, result))

    async def _try(self, claim: Claim) -> Result:
        if fault := find_fault(claim.push):
            return Result(FAULTS[fault], fault)
        try:
            # The client's own timeout starts over with every byte that trickles in.
            return await asyncio.wait_for(self._gateway.send(claim.push), self._timeout_seconds)
        except TimeoutError:
            return Result(Outcome.AMBIGUOUS, "timeout")
        except Exception as error:  # noqa: BLE001 - a fault of ours must not leave anybody waiting for a result
            log.warning("gateway_failed", gateway=self._gateway.name, error=type(error).__name__)
            return Result(Outcome.AMBIGUOUS, "gateway_failed")


def _take_handful(arrived: SimpleQueue[Done], expected: int, until: float) -> list[Done]:
    """Empty when nothing came in time."""
    handful: list[Done] = []
    deadline = until
    while len(handful) < expected:
        try:
            handful.append(arrived.get(timeout=max(deadline - monotonic(), 0)))
        except Empty:
            break
        if len(handful) == 1:
            deadline = monotonic() + RECORDING_PAUSE_SECONDS
    return handful
