"""Phones that are notified during a fault run, and the senders of their notifications."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

from tests.chaos.stories import known
from tests.rig.network import Network, Sender, android, iphone, new_sender
from waku_bridge.client import Destination
from waku_bridge.messages import WakuMessage

WAVES_PER_SECOND = 10


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


def targets_of(network: Network, fates: Mapping[str, int], *, senders: int = 1) -> list[Target]:
    """Register the given number of phones for each fate. The senders share them."""
    in_turn = cycle([new_sender() for _ in range(senders)])
    names = [fate for fate, count in fates.items() for _ in range(count)]
    addresses = [iphone(fate) if number % 2 else android(fate) for number, fate in enumerate(names)]
    addressed = [(next(in_turn), address) for address in addresses]
    return [
        Target(fate, address.device_token, sender, destinations)
        for fate, (sender, address), destinations in zip(names, addressed, network.phones(addressed), strict=True)
    ]


def send_steadily(
    network: Network, targets: Sequence[Target], *, seconds: float, per_second: int, max_waiting: int | None = None
) -> dict[bytes, str]:
    """Send in waves to one phone after the other. Return the fate of each message.

    Slow down while more than ``max_waiting`` requests are not read yet, as on a busy machine.
    """
    fates: dict[bytes, str] = {}
    started = time.monotonic()
    for step in range(round(seconds * WAVES_PER_SECOND)):
        while max_waiting is not None and len(fates) - known(network) > max_waiting:
            time.sleep(0.5)
        wave = {os.urandom(32): targets[(len(fates) + i) % len(targets)] for i in range(per_second // WAVES_PER_SECOND)}
        network.publish(*(target.request(message_id) for message_id, target in wave.items()))
        fates |= {message_id: target.fate for message_id, target in wave.items()}
        time.sleep(max(0.0, started + (step + 1) / WAVES_PER_SECOND - time.monotonic()))
    return fates
