"""How messages come in: two paths into one inbox, neither of which is complete.

A relay cache is quick and forgets what it hands out; a store is late and refuses some messages. Whatever one of them
loses the other brings, and the inbox takes each message once.

    bridge.py        all of it together, in one process    store/walker.py       reads the store of one node, in tiers
    live.py          drains the relay cache of one node    store/windows.py      what to read next (pure)
    pace.py          when to read a cache again (pure)     store/progress.py     how far a store was read (table)
    intake.py        a page into the inbox                 store/store_pages.py  pages of a store into the intake
    pages.py         which messages of a page are ours     store/backfill.py     the past of a topic that is new
    reader.py        which path brought a page (pure)      store/bound.py        how much may wait in the inbox
    dead_letters.py  what cannot be read, kept             threads.py            work of the event loop that blocks

A relay cache gives each message to one reader only, so two bridges would share its pages between them. Each would still
write its part into the same inbox: an overlap of a moment loses nothing and doubles nothing. The leader lock prevents
that it lasts, and that every standby adds to the load of nodes and stores.

See docs/reading.md.
"""
