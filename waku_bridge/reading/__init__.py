"""The reader of Waku messages: two paths into one inbox, neither of which is complete.

A relay cache is fast, but it forgets a message once it was read. A store is late, and it refuses some messages. So the
cache is read live, and each message is read three times from each store:

    live      5 to 20 times a second   what the node's cache has                                           live.py
    fast      every 3 seconds          what is 3 seconds old: what the live read lost                      stores.py
    minute    every 15 seconds         what is a minute old: everything that came in time, whatever failed
    slow      every 10 minutes         what is 65 minutes old: what stores handed each other

`intake.py` writes a page into the inbox, and `pages.py` says which messages are ours. The inbox takes each message
once, by its hash, and a store is not asked for a message whose hash was seen. Up to the store's watermark nothing is
missing: it is where the minute tier stands. After an outage that tier walks on from there, while the fast tier and the
live read bring what is new.

A relay cache gives each message to one reader only, so two bridges would split its pages between them. Both write into
the same inbox: a short overlap loses no message and stores none twice. The leader lock keeps an overlap short, and it
keeps standby bridges from adding load to nodes and stores (`management/commands/run_waku_bridge.py`).

See docs/reading.md.
"""
