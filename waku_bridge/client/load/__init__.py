"""A load generator: registered devices, and requests to notify them at a steady rate, whatever the server does.

The loop is open: every request has its moment before the first is sent. It goes out at that moment however many are
unanswered, and its latencies count from there. So a server that stalls is measured as its senders see it.
"""

from kit.figures import Distribution, distribution
from waku_bridge.client.load.devices import register_devices, unregister_devices
from waku_bridge.client.load.listening import Ear, pushes_recorded
from waku_bridge.client.load.requests import LoadRequests, build
from waku_bridge.client.load.result import Result, evaluate
from waku_bridge.client.load.shooting import Shots, shoot
from waku_bridge.client.load.target import is_loopback

__all__ = [
    "Distribution",
    "Ear",
    "LoadRequests",
    "Result",
    "Shots",
    "build",
    "distribution",
    "evaluate",
    "is_loopback",
    "pushes_recorded",
    "register_devices",
    "shoot",
    "unregister_devices",
]
