"""Rules of the bridge: whether a push wakes a device, what a command may do, how much, and what a push shows.

See docs/xmpp.md.
"""
