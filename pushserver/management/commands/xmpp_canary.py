"""`manage.py xmpp_canary`: make one round trip through the XMPP server and the whole chain, and show its links.

The exit code is 0 if all links hold.
"""

from django.conf import settings

from pushserver.console.canary.command import CanaryCommand
from pushserver.console.canary.xmpp import canary


class Command(CanaryCommand):
    help = "Register, push and unregister through the XMPP server, and show which link of the chain is broken."
    canary = canary
    title = "XMPP canary"
    labels = {  # noqa: RUF012 - a constant
        "register": "a device is registered",
        "push": "a push is accepted",
        "gateway": "the gateway takes the push",
        "unregister": "the device is unregistered",
    }

    def lacks(self) -> str:
        component = "XMPP_COMPONENT_JID and XMPP_COMPONENT_SECRET are not set: docs/xmpp.md says how."
        return "" if settings.XMPP_COMPONENT_JID else component
