"""A load generator: registered devices, and requests to notify them at a steady rate, however slow the server is.

The loop is open: the moment of every request is fixed before the first is sent. A request goes out at its moment with
any number of others unanswered, and its latencies count from there. So the measure of a server that stalls is what its
senders would see.
"""

from embedded.load.waku.devices import register_devices, unregister_devices
from embedded.load.waku.replies import ReplyReader, pushes_recorded
from embedded.load.waku.requests import LoadRequests, build, phones_for
from embedded.load.waku.result import Result, evaluate
from embedded.load.waku.sender import Sent, publish_on_time
from embedded.load.waku.target import is_loopback

__all__ = [
    "LoadRequests",
    "ReplyReader",
    "Result",
    "Sent",
    "build",
    "evaluate",
    "is_loopback",
    "phones_for",
    "publish_on_time",
    "pushes_recorded",
    "register_devices",
    "unregister_devices",
]
