"""Waku as a front door: envelopes come in, and replies go out."""

from collections.abc import Sequence

from django.conf import settings

from kit.hands import Hands
from kit.http.connections import lasting_client
from kit.once import once
from kit.turns import Bell, Stage
from notifications import front_doors
from notifications.delivery.desk import Delivery
from waku_bridge.messages import FRONT_DOOR
from waku_bridge.node import WakuNode
from waku_bridge.outbound import Nodes, Outbox
from waku_bridge.steps import InboxIntake
from waku_bridge.tasks import want_keys

# nwaku's relay answers within 5 seconds, or not at all. Identical bytes given to another node meanwhile do no harm.
NODE_TIMEOUT_SECONDS = 5.0
# A node that answers byte by byte is given up, and the next one asked.
NODE_IN_ALL_SECONDS = 20.0


class WakuDoor:
    """Takes requests from the inbox, and answers through the outbox."""

    def __init__(self, delivery: Delivery, bell: Bell, *, nodes: Nodes, stores: Nodes) -> None:
        self._outbox = Outbox(nodes, stores, bell)
        self._steps = InboxIntake(delivery, want_keys, _hands()).steps()

    def intake(self) -> Sequence[Stage]:
        """Return the steps that take envelopes."""
        return self._steps

    def outlet(self) -> Sequence[Stage]:
        """Return the stages that publish replies and have them confirmed."""
        return self._outbox.stages()


def open_door(delivery: Delivery, bell: Bell) -> WakuDoor:
    """Open the front door for this process, with the nodes of the settings."""
    return WakuDoor(delivery, bell, nodes=_nodes(), stores=_stores())


@once
def _nodes() -> Nodes:
    """Return the nodes that replies are published through."""
    client = lasting_client(timeout_seconds=NODE_TIMEOUT_SECONDS, in_all_seconds=NODE_IN_ALL_SECONDS)
    return Nodes(WakuNode(url, client) for url in settings.WAKU_NODES)


@once
def _stores() -> Nodes:
    """Return the store nodes. They are kept apart because a node that publishes well may have a store that hangs."""
    client = lasting_client(timeout_seconds=NODE_TIMEOUT_SECONDS, in_all_seconds=NODE_IN_ALL_SECONDS)
    return Nodes(WakuNode(url, client) for url in settings.WAKU_STORE_NODES)


@once
def _hands() -> Hands:
    """Return the hands of this process, in a folder of this machine alone."""
    return Hands(settings.METRICS_DIR / "hands")


def register() -> None:
    """Make Waku known as a front door."""
    front_doors.register(FRONT_DOOR, open_door)
