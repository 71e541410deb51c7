"""Health: facts, the indicators that judge them, incidents, alerts, and the history of traffic.

    asking   asks the servers around us, within seconds, and reads the cache     ┐
    stored   reads the database                                                  ├─ one dict of facts
    parts    add the facts of their own servers and tables                       ┘
    indicators, pushes, and those of parts: facts → verdicts, without I/O
    snapshot facts and verdicts of one moment        incidents  since when each is bad

`traffic` counts each minute, `hours` adds them up, and `hour` reads the last sixty. No page is imported here, because
workers take snapshots, too.

See docs/console.md.
"""
