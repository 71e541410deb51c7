"""A load generator: devices registered by the users of a server of its own, and notifications at a steady rate.

The loop is open: the moment of every notification is fixed before the first is sent. A notification goes out at its
moment with any number of others unanswered, and its latencies count from there. Each has a ciphertext of its own, which
identifies it at gorush. The dialects alternate.
"""

from functools import partial

from embedded.load import recorded
from embedded.load.xmpp.devices import register_devices, unregister_devices
from embedded.load.xmpp.result import Result, evaluate
from embedded.load.xmpp.sending import Sent, send

__all__ = ["Result", "Sent", "evaluate", "pushes_recorded", "register_devices", "send", "unregister_devices"]

# The key of the ciphertext in a device's push, in the generic style, is "e".
pushes_recorded = partial(recorded.pushes_recorded, identify=lambda data: data.get("e", ""))
