"""The XMPP bridge: a component of an XMPP server that accepts pushes from the servers of users. See docs/xmpp.md."""
