"""The canary of XMPP: an app and a user's server of our own. Every minute it registers a device, pushes to it, and
unregisters it.

The component that is connected says this to itself: the XMPP server takes each stanza and hands it back, as it hands
over those of others. So it needs no account anywhere, and shows that the server routes to us. The canary stands beside
the component, and the two share the database only. What it leaves in the tables is marked, left out of reports, and
removed when the run is over.
"""
