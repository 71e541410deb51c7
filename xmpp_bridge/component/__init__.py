"""The process that connects to the XMPP server as its component.

    server ──stanzas──▶ connection ──queue──▶ handler (a thread: decode, decide, one transaction) ──▶ answers ──▶ server
                                              ends of routes, once a second ───────────────────▶ announcements

A push is stored before it is answered. The workers send the stored pushes, so this process never waits for a gateway.
Any number of processes may run: one is connected, and the others stand by (`kit/processes/leader.py`).

See docs/xmpp.md.
"""
