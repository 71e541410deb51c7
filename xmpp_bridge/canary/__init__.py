"""The canary of XMPP: every minute it registers a device of its own app, pushes to it, and unregisters it.

The connected component sends the canary's stanzas to itself. The XMPP server routes each stanza back to the component,
like the stanzas of other servers. So the canary needs no account, and shows that the XMPP server routes to us.

    links.py      the chain, link by link            diagnosis.py    the cause when a link breaks (pure)
    stanzas.py    the stanzas that it sends (pure)   traces.py       its rows in the tables of real traffic

See docs/canary.md.
"""

from xmpp_bridge.canary.links import XmppCanary

canary = XmppCanary()
__all__ = ["canary"]
