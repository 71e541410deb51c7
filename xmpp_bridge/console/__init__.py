"""The console's side of XMPP: operations on devices. See docs/console.md."""
