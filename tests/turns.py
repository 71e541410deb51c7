"""The turns of a worker process with Waku as its front door: all is real but the gateway, the nodes and the clock."""

import asyncio
import select
from collections.abc import Iterable, Sequence

from django.utils import timezone

from kit.turns import Bell, Stage, Worker
from notifications.acceptance import Sending
from notifications.delivery.desk import Delivery
from notifications.gateways.interface import Gateway
from notifications.messages import Push, Result
from tests.delivering import Desk, RecordingGateway
from waku_bridge.front_door import WakuDoor
from waku_bridge.node import WakuNode
from waku_bridge.outbound import Nodes

# For those that need no bell of their own.
BELL = Bell()
PATIENCE_SECONDS = 10


class SilentGateway(RecordingGateway):
    """Takes every push and never answers."""

    async def send(self, push: Push) -> Result:
        self.pushes.append(push)
        await asyncio.Event().wait()
        raise AssertionError


class Process(Desk):
    """A worker process with Waku as its front door. Without nodes its replies stay in the outbox."""

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
        self.open(self._open_door)

    def _open_door(self, delivery: Delivery, bell: Bell) -> WakuDoor:
        return WakuDoor(delivery, bell, nodes=self._nodes, stores=self._stores)

    @property
    def sending(self) -> Sending:
        """Return what the process may send with."""
        return Sending(self.delivery.lease, self.delivery.limits)


def look_and_turn(stages: Sequence[Stage]) -> bool:
    """Make one turn of a worker that has just started: it looks for rows, whatever was announced."""
    return Worker(stages, BELL).turn(now=timezone.now())


def hear() -> None:
    """Wait until the loop has something to tell, for a moment."""
    readable, _, _ = select.select([BELL.fileno()], [], [], 0.02)
    if readable:
        BELL.hush()
