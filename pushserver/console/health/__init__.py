"""Health: facts, the indicators that judge them, incidents, alerts, and the history of traffic.

    asking   asks the servers around us, within seconds, and reads the cache     ┐
    stored   reads the database                                                  ├─ one dict of facts
    parts    add the facts of their own servers and tables                       ┘
    indicators, and those of parts: facts → verdicts, without I/O
    snapshot facts and verdicts of one moment, and the probes        incidents  since when each is bad

`traffic` counts minutes and adds up hours, which `history` reads. `watch` takes snapshots in workers, and
sends `alerts`, so no page is imported here.

See docs/console.md.
"""
