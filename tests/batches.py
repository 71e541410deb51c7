"""Batches of a worker process with Waku as its bridge. All is real but the gateway, the nodes and the clock."""

import select
from collections.abc import Iterable, Sequence

from django.utils import timezone

from kit.batches.batch import Step, Wakeup, Worker
from notifications.acceptance.acceptance import Sending
from notifications.delivery.steps import Delivery
from notifications.gateways.interface import Gateway
from tests.delivering import DeliveryProcess, SilentGateway
from waku_bridge.bridge import WakuBridge
from waku_bridge.node import WakuNode
from waku_bridge.outbound import Nodes

# Shared by tests that need no wakeup of their own.
WAKEUP = Wakeup()
TIMEOUT_SECONDS = 10


class Process(DeliveryProcess):
    """A worker process with Waku as its bridge. Without nodes its replies stay in the outbox."""

    def __init__(
        self,
        gateway: Gateway | None = None,
        *,
        nodes: Iterable[WakuNode] = (),
        stores: Iterable[WakuNode] = (),
        limit: int = 128,
    ) -> None:
        super().__init__(gateway or SilentGateway(), limit=limit)
        self._nodes, self._stores = Nodes(nodes), Nodes(stores)
        self.open(self._open_bridge)

    def _open_bridge(self, delivery: Delivery, wakeup: Wakeup) -> WakuBridge:
        return WakuBridge(delivery, wakeup, nodes=self._nodes, stores=self._stores)

    @property
    def sending(self) -> Sending:
        """Return the lease and the concurrency limits that acceptance needs."""
        return Sending(self.delivery.lease, self.delivery.limits)


def poll_and_process(steps: Sequence[Step]) -> bool:
    """Process one batch of a worker that has just started, which looks for rows without a wakeup."""
    return Worker(steps, WAKEUP).process_batch(now=timezone.now())


def wait_for_wakeup() -> None:
    """Wait until the asyncio loop sets the wakeup, for at most 20 ms."""
    readable, _, _ = select.select([WAKEUP.fileno()], [], [], 0.02)
    if readable:
        WAKEUP.clear()
