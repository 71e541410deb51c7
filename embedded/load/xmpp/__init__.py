"""A load generator: devices registered by the users of a server of its own, and notifications at a steady rate.

The loop is open: every notification has its moment before the first is sent. It goes out at that moment however many
are unanswered, and its latencies count from there. Each is encrypted, with a ciphertext of its own, by which it is
known again at gorush. The dialects take turns.
"""

from embedded.load.xmpp.devices import register_devices, unregister_devices
from embedded.load.xmpp.recorded import pushes_recorded
from embedded.load.xmpp.result import Result, evaluate
from embedded.load.xmpp.sending import Sent, send

__all__ = ["Result", "Sent", "evaluate", "pushes_recorded", "register_devices", "send", "unregister_devices"]
