"""How messages come in: two paths into one inbox, neither of which is complete.

A relay cache is quick and forgets what it hands out; a store is late and refuses some messages. Whatever one of them
loses the other brings, and the inbox takes each message once.

    bridge.py        all of it together                    leases.py       one reader per node and shard
    live.py          drains the relay cache of one node    walker.py       reads the store of one node, again and again
    pace.py          when to read a cache again (pure)     windows.py      which stretch of time to read next (pure)
    intake.py        a page into the inbox                 progress.py     how far a store was read (table)
    pages.py         which messages of a page are ours     store_pages.py  pages of a store into the intake
    dead_letters.py  what cannot be read, kept             seen.py         hashes read lately (pure)
    sightings.py     what each path missed (pure)          backfill.py     the last minutes, for a topic that is new
    backoff.py       how long to wait after a failure      threads.py      database work of the event loop
"""
