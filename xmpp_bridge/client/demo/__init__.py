"""Life for a demonstration: users of a real XMPP server, and a user's server that speaks Push 2.0."""
