"""The reader of Waku messages: two paths into one inbox, neither of which is complete.

A relay cache is fast, but it forgets a message once it was read. A store is late, and it refuses some messages. Each
path brings the messages that the other one loses, and the inbox takes each message once.

    bridge.py        all readers, in one process           store/walker.py       reads the store of one node, in tiers
    live.py          drains the relay cache of one node    store/windows.py      what to read next (pure)
    pace.py          when to read a cache again (pure)     store/progress.py     how far a store was read (table)
    intake.py        writes a page into the inbox          store/store_pages.py  pages of a store into the intake
    pages.py         which messages of a page are ours     store/backfill.py     the past of a new content topic
    reader.py        which path brought a page (pure)      store/bound.py        how much may wait in the inbox
    dead_letters.py  keeps unreadable messages             threads.py            blocking work of the event loop

A relay cache gives each message to one reader only, so two bridges would split its pages between them. Both write into
the same inbox: a short overlap loses no message and stores none twice. The leader lock keeps an overlap short, and it
keeps standby bridges from adding load to nodes and stores.

See docs/reading.md.
"""
