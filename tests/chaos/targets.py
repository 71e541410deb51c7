"""Phones that are notified during a fault run, and the senders of their notifications."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from tests.flows.network import Network, Sender, android, iphone, new_sender
from waku_bridge.client import Destination
from waku_bridge.messages import WakuMessage


@dataclass(frozen=True, slots=True)
class Target:
    """A phone that can be notified, and the fate of pushes to its token at Apple or Google."""

    fate: str
    device_token: str
    sender: Sender
    destinations: tuple[Destination, ...]

    def request(self, message_id: bytes) -> WakuMessage:
        """Return a request whose message id is also the payload, so that its push is traceable."""
        content = self.sender.one_to_one(message_id)
        return self.sender.request(self.destinations, content, message_id, timestamp_ns=time.time_ns()).message


def targets_of(network: Network, fates: Mapping[str, int]) -> list[Target]:
    """Register the given number of phones for each fate."""
    sender = new_sender()
    targets = []
    for number, fate in enumerate(fate for fate, count in fates.items() for _ in range(count)):
        address = iphone(fate) if number % 2 else android(fate)
        destinations = network.query(sender, network.phone(address))
        targets.append(Target(fate, address.device_token, sender, destinations))
    return targets
