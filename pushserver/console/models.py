"""The tables of the canaries. Each belongs to the app of its bridge, in which it was created."""

from pushserver.console.waku.models import CanaryRun
from pushserver.console.xmpp.models import CanaryRun as XmppCanaryRun

__all__ = ["CanaryRun", "XmppCanaryRun"]
