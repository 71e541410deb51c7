"""How messages come in: two paths into one inbox, neither of which is complete.

A relay cache is quick and forgets what it hands out; a store is late and refuses some messages. Whatever one of them
loses the other brings, and the inbox takes each message once.

    live.py      drains the relay cache of one node        walker.py    reads the store of one node, again and again
    leases.py    one reader per node and shard             windows.py   which stretch of time to read next (pure)
    intake.py    a page into the inbox                     progress.py  how far a store was read (table)
    pages.py     which messages of a page are ours         backfill.py  the last minutes, for a topic that is new
    seen.py      hashes read lately (pure)                 pace.py      when to read a cache again (pure)
    bridge.py    all of it together                        sightings.py what each path missed (pure)
"""
