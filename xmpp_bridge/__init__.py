"""The bridge of XMPP: a component of an XMPP server takes pushes from the servers of its users. See docs/xmpp.md."""
