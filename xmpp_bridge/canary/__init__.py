"""The canary of XMPP: an app and a user's server of our own. Every minute it registers a device, pushes to it, and
unregisters it.

The component that is connected says this to itself: the XMPP server takes each stanza and hands it back, as it hands
over those of others. So it needs no account anywhere, and shows that the server routes to us.

    links.py      the chain, link by link            diagnosis.py    what it means when one breaks (pure)
    stanzas.py    what it has said (pure)            traces.py       what it leaves in the tables, and removing it

See docs/canary.md.
"""

from xmpp_bridge.canary.links import XmppCanary

canary = XmppCanary()
__all__ = ["canary"]
