"""The pushes of this process that are under way: sent on its event loop, and never waited for by a turn."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from math import inf
from time import monotonic, time_ns

import structlog

from kit.db.clock import clock
from kit.inflight import InFlight
from kit.tracing.steps import Role, step
from kit.turns import Bell
from notifications.delivery.claim import Claim
from notifications.delivery.concurrency import ConcurrencyLimits
from notifications.gateways.interface import Gateway
from notifications.messages import FAILURES, Outcome, Result

log = structlog.get_logger(__name__)

Done = tuple[Claim, Result]
# How long a result waits for others of the same process.
GATHERING_SECONDS = 0.1
# There is traffic while two batches are sent within this time.
QUIET_SECONDS = 0.3
USABLE_PART_OF_LEASE = 0.9  # the rest is for recording


class Flights(InFlight[Done]):
    """Sends claims, each by the gateway of its route, and keeps their results until a turn has recorded them."""

    def __init__(
        self, gateway_for: Callable[[str], Gateway], bell: Bell, limits: ConcurrencyLimits, *, lease: timedelta
    ) -> None:
        super().__init__(bell, timeout_seconds=lease.total_seconds() * USABLE_PART_OF_LEASE)
        self._gateway_for = gateway_for
        self._limits = limits
        self._sent_at = self._sent_before = float("-inf")  # monotonic; of the last two batches

    def send(self, claims: Sequence[Claim]) -> None:
        """Start sending. It is called after the commit that wrote the attempts."""
        if claims:
            self._sent_before, self._sent_at = self._sent_at, monotonic()
            self.refresh_gateways(claims)
            self.start([partial(self._push, claim) for claim in claims])

    def refresh_gateways(self, claims: Iterable[Claim]) -> None:
        """Let the gateways of these claims read and write what they want to, before sending and after it.

        One that fails keeps no push from being sent, not even its own.
        """
        for name in {claim.gateway for claim in claims}:
            try:
                self._gateway_for(name).refresh(now=clock.now())
            except Exception as error:  # noqa: BLE001 - the claims are committed, so they have to be sent
                log.error("gateway_not_refreshed", gateway=name, error=type(error).__name__)  # noqa: TRY400

    def next_result_at(self) -> float | None:
        """Return when a turn should record what came in (monotonic), or None while nothing has.

        While there is traffic, results wait a moment for each other and for new requests: a commit for each costs more
        than its push. The last one of a quiet time waits for nobody.
        """
        if not self.has_results():
            return None
        is_quiet = self.are_all_done() and self._sent_before < monotonic() - QUIET_SECONDS
        return 0.0 if is_quiet else self.first_result_at + GATHERING_SECONDS

    async def _push(self, claim: Claim) -> Done:
        began_at, began_ns = monotonic(), time_ns()
        result = await _try(self._gateway_for, claim)
        is_error = result.outcome in FAILURES
        said = _said(claim, result)
        step("send", claim.source_key, said, began_ns=began_ns, role=Role.CLIENT, is_error=is_error)
        self._limits.complete(claim.slot, monotonic() - began_at if result.outcome is Outcome.DELIVERED else inf)
        return claim, result


async def _try(gateway_for: Callable[[str], Gateway], claim: Claim) -> Result:
    try:
        gateway = gateway_for(claim.gateway)
        return gateway.find_fault(claim.push) or await gateway.send(claim.push)
    except asyncio.CancelledError:
        return Result(Outcome.AMBIGUOUS, "timeout")
    except Exception as error:  # noqa: BLE001 - a fault of ours must not leave anybody waiting for a result
        log.warning("gateway_failed", gateway=claim.gateway, error=type(error).__name__)
        return Result(Outcome.AMBIGUOUS, "gateway_failed")


def _said(claim: Claim, result: Result) -> dict[str, object]:
    """Return what the trace of a message says about one push."""
    return {
        "gateway": claim.gateway,
        "attempt": claim.push.attempt_number,
        "outcome": result.outcome.value,
        "code": result.code,
    }
