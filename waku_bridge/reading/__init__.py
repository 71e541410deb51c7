"""How messages come in: two paths into one inbox, neither of which is complete.

A relay cache is quick and forgets what it hands out; a store is late and refuses some messages. Whatever one of them
loses the other brings, and the inbox takes each message once.

    bridge.py        all of it together, in one process    threads.py      work of the event loop that blocks
    live.py          drains the relay cache of one node    walker.py       reads the store of one node, in tiers
    pace.py          when to read a cache again (pure)     windows.py      which stretch of time to read next (pure)
    intake.py        a page into the inbox                 progress.py     how far a store was read (table)
    bound.py         how much may wait in the inbox        store_pages.py  pages of a store into the intake
    pages.py         which messages of a page are ours     reader.py       which path brought a page (pure)
    dead_letters.py  what cannot be read, kept             backfill.py     the last minutes, for a topic that is new

A relay cache gives each message to one reader only, so two bridges would share its pages between them. Each would still
write its part into the same inbox: an overlap of a moment loses nothing and doubles nothing. The leader lock prevents
that it lasts, and that every standby adds to the load of nodes and stores.
"""
