"""A load generator: registered devices, and requests to notify them at a steady rate, whatever the server does.

The loop is open: every request has its moment before the first is sent. It goes out at that moment however many are
unanswered, and its latencies count from there. So a server that stalls is measured as its senders see it.
"""

from embedded.load.waku.devices import register_devices, unregister_devices
from embedded.load.waku.listening import Ear, pushes_recorded
from embedded.load.waku.requests import LoadRequests, build
from embedded.load.waku.result import Result, evaluate
from embedded.load.waku.sender import Shots, shoot
from embedded.load.waku.target import is_loopback
from kit.figures import Distribution, distribution

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
