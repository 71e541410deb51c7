"""Registration of Waku as a bridge: the steps of a worker that process envelopes and publish replies."""

from collections.abc import Sequence

from django.conf import settings

from kit.batches.batch import Step, Wakeup
from kit.http import lasting_connections
from kit.processes import once
from notifications import tasks
from notifications.delivery.steps import Delivery
from waku_bridge.inbox.journal import InFlightJournal
from waku_bridge.inbox.steps import InboxIntake
from waku_bridge.messages import BRIDGE
from waku_bridge.node import Nodes, WakuNode
from waku_bridge.outbound.outbox import reply_steps
from waku_bridge.outbound.sending import Sends
from waku_bridge.tasks import want_keys

# nwaku's relay answers within 5 seconds, or not at all. Publishing the same bytes through another node meanwhile does
# no harm.
NODE_TIMEOUT_SECONDS = 5.0
# Limit of a whole request: a node that answers byte by byte is given up, and the next node is used.
NODE_IN_ALL_SECONDS = 20.0


class WakuBridge:
    """The steps of one process: they take requests from the inbox and publish replies from the outbox."""

    def __init__(self, delivery: Delivery, wakeup: Wakeup, *, nodes: Nodes, stores: Nodes) -> None:
        self._outlet = reply_steps(Sends(nodes, stores, wakeup))
        self._steps = InboxIntake(delivery, want_keys, _journal()).steps()

    def intake(self) -> Sequence[Step]:
        """Return the steps that take envelopes."""
        return self._steps

    def outlet(self) -> Sequence[Step]:
        """Return the steps that publish replies and have them confirmed."""
        return self._outlet


def open_bridge(delivery: Delivery, wakeup: Wakeup) -> WakuBridge:
    """Open the bridge for this process, with the nodes of the settings."""
    return WakuBridge(delivery, wakeup, nodes=_nodes(), stores=_stores())


@once
def _nodes() -> Nodes:
    """Return the nodes that replies are published through."""
    connections = lasting_connections(silent_seconds=NODE_TIMEOUT_SECONDS, total_seconds=NODE_IN_ALL_SECONDS)
    return Nodes(WakuNode(url, connections) for url in settings.WAKU_NODES)


@once
def _stores() -> Nodes:
    """Return the store nodes. They are kept apart because a node that publishes well may have a store that hangs."""
    connections = lasting_connections(silent_seconds=NODE_TIMEOUT_SECONDS, total_seconds=NODE_IN_ALL_SECONDS)
    return Nodes(WakuNode(url, connections) for url in settings.WAKU_STORE_NODES)


@once
def _journal() -> InFlightJournal:
    """Return the in-flight journal of this process. Its folder must not be shared with other machines."""
    return InFlightJournal(settings.METRICS_DIR / "journal")


def register() -> None:
    tasks.register_bridge(BRIDGE, open_bridge)
