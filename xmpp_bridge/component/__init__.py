"""The process that is connected to the XMPP server as its component.

    server ──stanzas──▶ connection ──queue──▶ handler (a thread: decode, decide, one transaction) ──▶ answers ──▶ server
                                              ends of routes, once a second ───────────────────▶ announcements

Nothing is answered before it is stored, and what is stored is sent by the workers, so that nothing here waits for a
gateway. Any number of processes may run: one is connected, and the others stand by (`kit/processes/leader.py`).

See docs/xmpp.md.
"""
